// Decode for 16 to 128 tokens: out[M, N] = x[M, K] * dequantise(words) + bias.
//
// Weight columns are the rows of operand A, dequantised into registers; tokens are the columns of operand B, read from swizzled shared
// memory. A CTA owns a range of units (a stage of k of one tile of COLUMNS weight columns):
//
//   a tile, or one of SPLIT parts of it, whose sums meet in the cluster                   grid (SPLIT, tiles)
//   one of CTAS equal parts of everything (Stream-K), which may begin and end inside tiles  grid (CTAS)
//
//   ring:       SLOTS stages of tokens, weights, scales and zero points, filled by tensor copies. Weights start before the previous kernel
//               ends, tokens after it. The ring goes on from tile to tile.
//   per stage:  warps wait for the stage's slot, multiply, and say that they have read it; there is no CTA barrier, so that warpgroups
//               drift apart and fill each other's gaps. The slot read SF_LAG stages ago is refilled.
#include "wide_stage.cuh"
#include "wide_output.cuh"
#include "wide_sums.cuh"  // outside the condition: every file is pasted once
#if SF_USE_WGMMA
#include "wide_wgmma.cuh"
#else
#include "wide_mma.cuh"
#endif

extern __shared__ __align__(1024) u8 shared_memory[];

struct Range { int first, end; };  // of units

SF_DEVICE Range range_of_cta() {
#if SF_CTAS
  return {first_of_part<UNITS, SF_CTAS>(blockIdx.x), first_of_part<UNITS, SF_CTAS>(blockIdx.x + 1)};
#else
  const int tile_at = blockIdx.y * STAGES;
  return {tile_at + first_of_part<STAGES, SF_SPLIT>(blockIdx.x), tile_at + first_of_part<STAGES, SF_SPLIT>(blockIdx.x + 1)};
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, SF_MIN_CTAS)
decode_wide(const __grid_constant__ TensorMap words, const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
            const __grid_constant__ TensorMap x, const u16* bias, u16* out, float* partials, u32* counters, int m, i64 out_stride) {
  launch_dependents();
  const u32 shared = shared_address(shared_memory);
  const Place p = place();
  const int rank = SF_SPLIT == 1 ? 0 : blockIdx.x;
  const Range range = range_of_cta();
  const Staging staging(p, &x, &words, &scales, &zeros, shared);

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(staging.full_barrier(slot), Staging::COPIES);
      barrier_init(staging.free_barrier(slot), WARPS);
    }
    for (int group = 0; group < SF_WARPGROUPS && SF_SPLIT > 1; group++) {
      barrier_init(shared + INBOX_AT + group * 8, 1);
      barrier_expect(shared + INBOX_AT + group * 8, exchange_bytes(rank, m));
    }
    fence_barrier_init();
  }
  if (p.lane == 0 && p.warp < Staging::COPIES) prefetch_tensor_map(staging.map);
  cta_sync();
  if (SF_SPLIT > 1) cluster_arrive_relaxed();

  const int filled = min(SLOTS, range.end - range.first);
  const u32 row_bytes = staging.fill_channel_rows(&scales, &zeros);
  if (p.warp > 0) {
#pragma unroll 1
    for (int i = 0; i < filled; i++) staging.fill(true, range.first + i, i, i == 0 ? row_bytes : 0);
  }
  Bias row_bias;
  if (SF_BIAS) row_bias.load(p, bias, STREAM ? range.first / STAGES : blockIdx.y);

  wait_for_previous_kernel();
  if (p.warp == 0) {
#pragma unroll 1
    for (int i = 0; i < filled; i++) staging.fill(true, range.first + i, i);
  }

  Products products(p, shared);
  const u32 channel_row = products.row_at - ROWS_AT + CHANNEL_ROWS_AT;
  barrier_wait(staging.full_barrier(0), 0);
  products.start(0, channel_row);

  int slot = 0, parity = 0;              // of the next slot's filling
  int free_slot = 0, free_parity = 0;    // of the slot to refill
  int unit = range.first;
#pragma unroll 1
  do {
    const int tile = STREAM ? unit / STAGES : blockIdx.y;
    const int end = min(range.end, (tile + 1) * STAGES);
    [[maybe_unused]] const bool whole = end - unit == STAGES;
#pragma unroll 1
    for (; unit < end; unit++) {
      const int next_slot = slot + 1 == SLOTS ? 0 : slot + 1;
      if (next_slot == 0) parity ^= 1;
      products.stage(
          slot, next_slot, shared + slot * SLOT_BYTES, STREAM && unit + 1 == end,
          [&] {
            const int refill = unit - SF_LAG + SLOTS;
            const bool late = unit - range.first >= SF_LAG, go = late && refill < range.end;
            if (go && p.warp < Staging::COPIES) barrier_wait(staging.free_barrier(free_slot), free_parity);
            staging.fill(go, refill, free_slot);
            if (late && ++free_slot == SLOTS) {
              free_slot = 0;
              free_parity ^= 1;
            }
          },
          [&] {
            if (unit + 1 < range.end) barrier_wait(staging.full_barrier(next_slot), parity);
            return unit + 1 < range.end;
          },
          [&] { barrier_arrive_if(p.lane == 0, staging.free_barrier(slot)); });
      slot = next_slot;
    }

    products.sums.finish(channel_row);
    const Output output(p, out, out_stride, m, tile, row_bias);
#if SF_CTAS
    if (whole) store_all(products.sums.total, output, m);
    else merge_and_store(products.sums.total, output, p, partials, counters, tile, m);
    if (unit < range.end) {
      products.next_tile();
      if (SF_BIAS) row_bias.load(p, bias, tile + 1);
    }
#elif SF_SPLIT == 1
    store_all(products.sums.total, output, m);
#else
    cluster_wait();
    if (SF_OVERLAY) cluster_sync();  // the rings of every CTA are idle
    exchange_and_store(products.sums.total, output, p, shared, rank, m);
#endif
  } while (STREAM && unit < range.end);
}
