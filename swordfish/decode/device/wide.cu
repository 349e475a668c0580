// Decode for 16 to 128 tokens: out[M, N] = x[M, K] * dequantise(words) + bias.
//
// Weight columns are the rows of operand A, dequantised into registers; tokens are the columns of operand B, read from swizzled shared
// memory. A CTA owns COLUMNS weight columns and one of SPLIT ranges of k; the CTAs of a cluster hold the ranges of the same columns.
//
//   weights, scales:  bulk copies into a ring of WEIGHT_SLOTS stages, one mbarrier per slot        (start before the previous kernel ends)
//   tokens:           16-byte asynchronous copies into a ring of TOKEN_SLOTS stages                (start after it)
//   per stage:        one CTA barrier, while the first products run, says both that the previous stage's slots are free to refill and
//                     that the next stage's tokens have arrived
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
decode_wide(const u8* words, const u16* scales, const u16* zeros, const u16* x, const u16* bias, u16* out, int m, i64 x_stride, i64 out_stride) {
  launch_dependents();
  const u32 shared = shared_address(shared_memory);
  const Place p = place();
  const int rank = SF_SPLIT == 1 ? 0 : blockIdx.x;
  const int first_block = blockIdx.y * (COLUMNS / 64);
  const int first_stage = rank * (STAGES / SF_SPLIT) + min(rank, STAGES % SF_SPLIT);
  const int stages = STAGES / SF_SPLIT + (rank < STAGES % SF_SPLIT);

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < WEIGHT_SLOTS; slot++) barrier_init(shared + BARRIERS_AT + slot * 8, WARPS);
    if (SF_SPLIT > 1) {
      for (int group = 0; group < SF_WARPGROUPS; group++) {
        const u32 bar = shared + BARRIERS_AT + (WEIGHT_SLOTS + group) * 8;
        barrier_init(bar, 1);
        barrier_expect(bar, exchange_bytes(rank, m));
      }
    }
    fence_barrier_init();
  }
  const WeightCopy weight_copy(p, words, scales, zeros, shared, first_block, first_stage);
  weight_copy.clear_missing_columns();
  cta_sync();
  if (SF_SPLIT > 1) cluster_arrive_relaxed();
  const u32 row_bytes = weight_copy.fill_row();
#pragma unroll 1
  for (int i = 0; i < min(WEIGHT_SLOTS, stages); i++) weight_copy.fill(true, i, i, i == 0 ? row_bytes : 0);
  const int bias_column = first_block * 64 + threadIdx.x;
  u16 bias_low = 0, bias_high = 0;
  if (SF_BIAS && bias_column < SF_N) bias_low = bias[bias_column];
  if (SF_BIAS && COLUMNS > THREADS && bias_column + THREADS < SF_N) bias_high = bias[bias_column + THREADS];

  wait_for_previous_kernel();
  const TokenCopy token_copy(x, x_stride, m, shared, first_stage);
#pragma unroll 1
  for (int i = 0; i < TOKEN_SLOTS - 1; i++) token_copy.fill(i < stages, i, i);
  if (SF_BIAS && threadIdx.x < COLUMNS) {
    store_u16(shared + BIAS_AT + threadIdx.x * 2, bias_low);
    if (COLUMNS > THREADS) store_u16(shared + BIAS_AT + (threadIdx.x + THREADS) * 2, bias_high);
  }

  Products products(p, shared);
  const u32 row = products.row_at - (shared + WEIGHTS_AT + WEIGHT_BYTES) + shared + ROW_AT;
  barrier_wait(shared + BARRIERS_AT, 0);
  products.start(0, row);
  copy_async_wait<TOKEN_SLOTS - 2>();
  if (SF_USE_WGMMA) fence_async_proxy();
  cta_sync();

  int slot = 0, token_slot = 0, parity = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; stage++) {
    const int next_slot = slot + 1 == WEIGHT_SLOTS ? 0 : slot + 1;
    const int previous_slot = slot == 0 ? WEIGHT_SLOTS - 1 : slot - 1;
    const int free_token_slot = token_slot == 0 ? TOKEN_SLOTS - 1 : token_slot - 1;
    if (next_slot == 0) parity ^= 1;
    products.stage(
        slot, next_slot, shared + token_slot * TOKEN_SLOT_BYTES,
        [&] {
          copy_async_wait<TOKEN_SLOTS - 3>();  // this thread's tokens of the next stage
          if (SF_USE_WGMMA) fence_async_proxy();
          cta_sync();
          const int refill = stage - 1 + WEIGHT_SLOTS, token_refill = stage - 1 + TOKEN_SLOTS;
          weight_copy.fill(stage > 0 && refill < stages, refill, previous_slot);
          token_copy.fill(token_refill < stages, token_refill, free_token_slot);
        },
        [&] {
          if (stage + 1 < stages) barrier_wait(shared + BARRIERS_AT + next_slot * 8, parity);
          return stage + 1 < stages;
        });
    slot = next_slot;
    token_slot = token_slot + 1 == TOKEN_SLOTS ? 0 : token_slot + 1;
  }

  products.sums.finish(row);
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
