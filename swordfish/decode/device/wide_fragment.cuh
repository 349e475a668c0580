// From shared memory to operands: packed words to fragments, scales and zero points of the rows a lane owns.
#pragma once
#include "dequant.cuh"
#include "wide_shape.cuh"

constexpr u32 UNIT_PAIR = SF_MINUS_UNIT & 0x7fff7fffu;  // an A operand of these sums the tokens

// The words of a k16 slice for all tiles of a warp: one load of up to 16 bytes, two for four tiles of int8.
SF_DEVICE void load_lane_words(u32 (&w)[TILES * LANE_WORDS], u32 address) {
  if constexpr (TILES * LANE_WORDS == 1) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[0]) : "r"(address));
  } else if constexpr (TILES * LANE_WORDS == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address));
  } else {
#pragma unroll
    for (int i = 0; i < TILES * LANE_WORDS; i += 4) {
      const Words4 v = load_words4(address + i * 4);
#pragma unroll
      for (int e = 0; e < 4; e++) w[i + e] = v.v[e];
    }
  }
}

SF_DEVICE void dequantise_fragment(const u32 (&w)[TILES * LANE_WORDS], int tile, RowBias bias, u32 (&a)[4]) {
#if SF_BITS == 4
  dequantise4(w[tile], bias, a);
#else
  dequantise8(w[2 * tile], w[2 * tile + 1], bias, a);
#endif
}

struct RowPair { u32 low, high; };  // 16-bit values of rows c and 8 + c

SF_DEVICE u32 load_u16(u32 address) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

// Row block `tile` of the lane; address is that of its first row block.
SF_DEVICE RowPair load_row_pair(u32 address, int tile) { return {load_u16(address + tile * 32), load_u16(address + tile * 32 + 16)}; }

SF_DEVICE RowBias default_bias() { return {SF_DEFAULT_BIAS, SF_DEFAULT_BIAS}; }

// Zero points become the addends of the dequantisation.
SF_DEVICE RowBias zero_bias(RowPair z) { return row_bias(__byte_perm(z.low, z.high, 0x5410)); }
