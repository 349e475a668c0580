// The fp32 sums of a lane and how the scales reach them. Weights enter the products as exact integers, so every segment of k with its own
// scale has to meet that scale here, in one of two ways:
//
//   two sets   the segment is summed on its own and then added:  total += scale * part
//              A single tile has two parts where registers allow, so that one is added while the other is summed; else one half of its
//              tokens is added while the other is summed.
//   in place   totals are kept in units of the running scale:    total *= previous scale / scale   before a segment, and total *= scale
//              at the very end. Half the registers, so twice the tokens or tiles. A scale below UNIT_FLOOR counts as UNIT_FLOOR there.
//
// With one scale per column (channelwise) a single fold at the end remains.
#pragma once
#include "wide_fragment.cuh"

constexpr bool IN_PLACE = SF_IN_PLACE && !CHANNELWISE;
constexpr bool ONE_SET = IN_PLACE || CHANNELWISE;
constexpr bool OFFSETS = SF_ZEROS == SF_ZEROS_OFFSET;  // scale * q + zero: needs the sums of the tokens, too
static_assert(!(IN_PLACE && OFFSETS), "offsets are added to totals in plain units");

// Two sets of a single tile, which nothing else multiplies beside: two parts, or two halves of its tokens, take turns in a span.
constexpr int PARTS = SF_PARTS;
constexpr int HALVES = SF_HALVES;
static_assert(PARTS * HALVES == 1 || (PARTS * HALVES == 2 && TILES == 1 && !ONE_SET && !OFFSETS), "who takes turns");

constexpr float UNIT_FLOOR = SF_BF16 ? 8.27e-25f : 8.67e-19f;  // 2^-80, 2^-60: far below any scale in use but zero

SF_DEVICE float approximate_reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

SF_DEVICE float unit_of(float scale) { return copysignf(fmaxf(fabsf(scale), UNIT_FLOOR), scale); }

struct Sums {
  float total[TILES][TOKENS / 2];
  float part[PARTS][TILES][TOKENS / 2];  // two sets: of the running segment
  float tokens[TOKENS / 2];  // offsets: sums of the tokens themselves, in UNIT
  float unit[TILES][2], ratio[TILES][2];  // in place: of rows c and 8 + c

  // The sums of one half of the tokens.
  static SF_DEVICE float (&share(float (&sums)[TOKENS / 2], int half))[TOKENS / HALVES / 2] {
    return reinterpret_cast<float(&)[TOKENS / HALVES / 2]>(sums[half * (TOKENS / HALVES / 2)]);
  }

  // Before the first product of a column tile. The first product of a segment overwrites what it finds in `part`; it is cleared so that its
  // registers are free between tiles.
  SF_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      unit[i][0] = unit[i][1] = 1.0f;
#pragma unroll
      for (int e = 0; e < TOKENS / 2; e++) {
        total[i][e] = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p++) part[p][i][e] = 0.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < TOKENS / 2; e++) tokens[e] = 0.0f;
  }

  // What products of tile i are added to.
  SF_DEVICE float (&running(int i, int p = 0, int half = 0))[TOKENS / HALVES / 2] {
    return share(ONE_SET ? total[i] : part[p][i], half);
  }

  // Before the first product of a segment. In place only. The ratios can be known before the sums are at rest.
  SF_DEVICE void next_unit(int i, RowPair scale) {
    if constexpr (IN_PLACE) {
      const float low = unit_of(low_to_float(scale.low)), high = unit_of(low_to_float(scale.high));
      ratio[i][0] = unit[i][0] * approximate_reciprocal(low);
      ratio[i][1] = unit[i][1] * approximate_reciprocal(high);
      unit[i][0] = low;
      unit[i][1] = high;
    }
  }
  SF_DEVICE void rescale(int i) {
    if constexpr (IN_PLACE) {
#pragma unroll
      for (int e = 0; e < TOKENS / 2; e++) total[i][e] *= ratio[i][e / 2 % 2];
    }
  }

  // After the last product of a segment, for n8 tiles from `begin` to `end` of the tokens. Two sets only.
  SF_DEVICE void end_segment(int i, RowPair scale, RowPair zero, int p = 0, int begin = 0, int end = TOKENS / 8) {
    if constexpr (!ONE_SET) {
      fold(total[i], part[p][i], scale, begin, end);
      if constexpr (OFFSETS) fold(total[i], tokens, zero, begin, end);
    }
  }

  // After the last product of all; row is the address of the scales of a channelwise weight.
  SF_DEVICE void finish(u32 row) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      if constexpr (CHANNELWISE) {
        const RowPair scale = load_row_pair(row, i);
        unit[i][0] = low_to_float(scale.low);
        unit[i][1] = low_to_float(scale.high);
      }
      if constexpr (ONE_SET) {
#pragma unroll
        for (int e = 0; e < TOKENS / 2; e++) total[i][e] *= unit[i][e / 2 % 2];
      }
      if constexpr (CHANNELWISE && OFFSETS) fold(total[i], tokens, load_row_pair(row + ROW_BYTES, i));
    }
  }

 private:
  SF_DEVICE static void fold(float (&to)[TOKENS / 2], const float (&from)[TOKENS / 2], RowPair scale, int begin = 0, int end = TOKENS / 8) {
    const float low = low_to_float(scale.low), high = low_to_float(scale.high);
#pragma unroll
    for (int e = begin * 4; e < end * 4; e++) to[e] = fmaf(e & 2 ? high : low, from[e], to[e]);
  }
};
