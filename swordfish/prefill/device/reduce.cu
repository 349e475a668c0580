// Partial sums of a split-K prefill to y: slices are added in their order, so the result does not depend on timing.
//
// y[m, n] = round(SF_FACTOR * factors[n] * sum over slices of workspace[slice, m, n] + bias[n]), without what is null;
// one thread per 8 columns.
#include "swordfish/decode/device/ptx.cuh"

// workspace: [slices, tokens, columns] fp32, whole tiles; y: rows of y_stride elements; n is a multiple of 8.
extern "C" __global__ void __launch_bounds__(128)
    prefill_reduce(const Floats4* workspace, const u16* factors, const u16* bias, Words4* y, u32 m, u32 n, u32 tokens,
                   u32 columns, u32 slices, u64 y_stride) {
  const u32 row_vectors = n / 8, at = blockIdx.x * 128 + threadIdx.x;
  const u32 row = at / row_vectors, column = at % row_vectors * 8;
  if (row >= m) return;
  wait_for_previous_kernel();
  float sum[8] = {};
  const Floats4* from = workspace + ((u64)row * columns + column) / 4;
  for (u32 s = 0; s < slices; ++s, from += (u64)tokens * columns / 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Floats4 part = from[half];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[4 * half + i] += part.v[i];
    }
  }
  Words4 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low = sum[2 * i] * SF_FACTOR, high = sum[2 * i + 1] * SF_FACTOR;
    if (factors != nullptr) {
      low *= low_to_float(factors[column + 2 * i]);
      high *= low_to_float(factors[column + 2 * i + 1]);
    }
    if (bias != nullptr) {
      low += low_to_float(bias[column + 2 * i]);
      high += low_to_float(bias[column + 2 * i + 1]);
    }
    out.v[i] = round_pair(low, high);
  }
  y[(row * y_stride + column) / 8] = out;
}
