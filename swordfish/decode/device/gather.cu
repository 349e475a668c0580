// gather_tokens: out[row, i] = x[row, perm[i]], the activations in packed row order, laid out as the decode kernels read them.
//
// `perm` is null for natural order (then this only aligns and pads); perm[i] < 0 and i >= k give 0, so padded rows of W meet zeros.
// A thread makes 8 values of one row. Indices are loaded before the previous kernel has finished; they do not depend on it.
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(128)
    gather_tokens(const u16* x, const int* perm, u16* out, int rows, int k, int k_padded, i64 row_stride, i64 column_stride) {
  launch_dependents();
  const u32 chunks = k_padded / 8;
  const i64 id = (i64)blockIdx.x * 128 + threadIdx.x;
  const i64 row = id / chunks;
  const int at = (int)(id % chunks) * 8;
  int from[8];
#pragma unroll
  for (int i = 0; i < 8; i++) from[i] = at + i >= k ? -1 : perm ? perm[at + i] : at + i;
  wait_for_previous_kernel();
  if (row >= rows) return;
  u32 v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = from[i] < 0 ? 0 : x[row * row_stride + from[i] * column_stride];
  *(Words4*)(out + row * k_padded + at) = {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
}
