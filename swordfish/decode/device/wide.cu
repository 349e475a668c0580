// Decode for 16 to 128 tokens: out[M, N] = x[M, K] * dequantise(words) + bias.
//
// Weight columns are the rows of operand A, dequantised into registers; tokens are the columns of operand B, read from swizzled shared
// memory. A CTA owns COLUMNS weight columns and one of SPLIT ranges of k; the CTAs of a cluster hold the ranges of the same columns.
//
//   ring:       SLOTS stages of tokens, weights, scales and zero points, filled by tensor copies. Weights start before the previous kernel
//               ends, tokens after it.
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

extern "C" __global__ void __launch_bounds__(THREADS, SF_MIN_CTAS)
decode_wide(const __grid_constant__ TensorMap words, const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
            const __grid_constant__ TensorMap x, const u16* bias, u16* out, int m, i64 out_stride) {
  launch_dependents();
  const u32 shared = shared_address(shared_memory);
  const Place p = place();
  const int rank = SF_SPLIT == 1 ? 0 : blockIdx.x;
  const int first_block = blockIdx.y * (COLUMNS / 64);
  const int first_stage = rank * (STAGES / SF_SPLIT) + min(rank, STAGES % SF_SPLIT);
  const int stages = STAGES / SF_SPLIT + (rank < STAGES % SF_SPLIT);
  const Staging staging(p, &x, &words, &scales, &zeros, shared, first_block, first_stage);

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

  const u32 row_bytes = staging.fill_channel_rows(&scales, &zeros);
  if (p.warp > 0) {
#pragma unroll 1
    for (int i = 0; i < min(SLOTS, stages); i++) staging.fill(true, i, i, i == 0 ? row_bytes : 0);
  }
  const int bias_column = first_block * 64 + threadIdx.x;
  u16 bias_low = 0, bias_high = 0;
  if (SF_BIAS && bias_column < SF_N) bias_low = bias[bias_column];
  if (SF_BIAS && COLUMNS > THREADS && bias_column + THREADS < SF_N) bias_high = bias[bias_column + THREADS];

  wait_for_previous_kernel();
  if (p.warp == 0) {
#pragma unroll 1
    for (int i = 0; i < min(SLOTS, stages); i++) staging.fill(true, i, i);
  }
  if (SF_BIAS && threadIdx.x < COLUMNS) {
    store_u16(shared + BIAS_AT + threadIdx.x * 2, bias_low);
    if (COLUMNS > THREADS) store_u16(shared + BIAS_AT + (threadIdx.x + THREADS) * 2, bias_high);
  }

  Products products(p, shared);
  const u32 channel_row = products.row_at - ROWS_AT + CHANNEL_ROWS_AT;
  barrier_wait(staging.full_barrier(0), 0);
  products.start(0, channel_row);

  int slot = 0, parity = 0;              // of the next slot's filling
  int free_slot = 0, free_parity = 0;    // of the slot to refill
#pragma unroll 1
  for (int stage = 0; stage < stages; stage++) {
    const int next_slot = slot + 1 == SLOTS ? 0 : slot + 1;
    if (next_slot == 0) parity ^= 1;
    products.stage(
        slot, next_slot, shared + slot * SLOT_BYTES,
        [&] {
          const int refill = stage - SF_LAG + SLOTS;
          const bool go = stage >= SF_LAG && refill < stages;
          if (go && p.warp < Staging::COPIES) barrier_wait(staging.free_barrier(free_slot), free_parity);
          staging.fill(go, refill, free_slot);
          if (stage >= SF_LAG && ++free_slot == SLOTS) {
            free_slot = 0;
            free_parity ^= 1;
          }
        },
        [&] {
          if (stage + 1 < stages) barrier_wait(staging.full_barrier(next_slot), parity);
          return stage + 1 < stages;
        },
        [&] { barrier_arrive_if(p.lane == 0, staging.free_barrier(slot)); });
    slot = next_slot;
  }

  products.sums.finish(channel_row);
  if (SF_BIAS) cta_sync();
  const Output output(p, out, out_stride, m, shared, first_block);
  if (SF_SPLIT == 1) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      if (slice / TILES * 8 < m) output.store(slice, slice_of(products.sums.total, slice));
    }
  } else {
    cluster_wait();
    if (SF_OVERLAY) cluster_sync();  // the rings of every CTA are idle
    exchange_and_store(products.sums.total, output, p, shared, rank, m);
  }
}
