// gather_tokens: out[row, i] = x[row, perm[i]], the activations in packed row order, laid out as the decode kernels read them.
//
// `perm` is null for natural order (then this only aligns and pads); perm[i] < 0 and i >= k give 0, so padded rows of W meet zeros.
// A thread makes 8 values of one row. With `staged` the CTA first brings the whole row to shared memory: straight from global memory every
// value would cost a sector of 32 bytes and a cycle of L1.
//
// Indices are loaded before the previous kernel has finished; they do not depend on it. Little code comes after the wait: it is on the
// way from one kernel to the next.
#include "ptx.cuh"

constexpr int ROW_AT = 128;  // of the staged row in shared memory; before it lies the zero that index -1 finds

extern "C" __global__ void __launch_bounds__(1024)
    gather_tokens(const u16* x, const int* perm, u16* out, int staged, int columns, int k, int k_padded, i64 row_stride, i64 column_stride) {
  extern __shared__ __align__(128) u8 shared_memory[];
  launch_dependents();
  const u32 spans = (k_padded / 8 + blockDim.x - 1) / blockDim.x;
  const u32 row = blockIdx.x / spans;
  const int at = (blockIdx.x % spans * blockDim.x + threadIdx.x) * 8;
  const u16* const source = x + row * row_stride;
  const u32 shared = shared_address(shared_memory), barrier = shared;
  if (threadIdx.x == 0) {
    store_word(shared + ROW_AT - 4, 0);
    barrier_init(barrier, 1);
    fence_barrier_init();
    if (staged) barrier_expect(barrier, columns * 2);
  }
  int from[8];
#pragma unroll
  for (int i = 0; i < 8; i++) from[i] = at + i;
  if (perm) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (at + i < k) from[i] = perm[at + i];
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (at + i >= k) from[i] = -1;
  __syncthreads();
  wait_for_previous_kernel();
  u32 v[8];
  if (staged) {
    if (threadIdx.x == 0) bulk_load(shared + ROW_AT, source, columns * 2, barrier);
    barrier_wait(barrier, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = load_half(shared + ROW_AT + from[i] * 2);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = from[i] < 0 ? 0 : source[from[i] * column_stride];
  }
  if (at < k_padded) *(Words4*)(out + (i64)row * k_padded + at) = {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
}
