// Partial sums of the ring kernels in shared memory: warps leave theirs, then every sum is made in a fixed order.
#pragma once
#include "ring_shape.cuh"

typedef float Fragment[4];
typedef Fragment Accumulators[SF_COLS][4][TOKEN_TILES];  // [column block][m16 tile][token tile]

// Undoes the UNIT of dequant.cuh on the way: a power of two, exact.
SF_DEVICE void store_partial(const Accumulators& total, u32 partial, int rows, int lane) {
#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = 8 * t + 2 * (lane & 3) + (e & 1);
      if (row >= rows) continue;
#pragma unroll
      for (int i = 0; i < SF_COLS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) store_float(partial + (row * PARTIAL_PITCH + i * 64 + j * 16 + (e >> 1) * 8 + (lane >> 2)) * 4, total[i][j][t][e] * SF_UNIT_INVERSE);
    }
}

// Sums `count` quads that lie `stride` bytes apart, in order.
template <int count> SF_DEVICE Floats4 sum_quads(u32 address, int stride) {
  Floats4 total = load_floats4(address);
#pragma unroll
  for (int i = 1; i < count; i++) {
    const Floats4 v = load_floats4(address + i * stride);
#pragma unroll
    for (int e = 0; e < 4; e++) total.v[e] += v.v[e];
  }
  return total;
}
