// Products by mma.sync (architectures without wgmma): the same fragments and sums as in wide_wgmma.cuh, one warp at a time. Token
// fragments are loaded once per k32 step and serve all tiles of the warp.
#pragma once
#include "wide_sums.cuh"

struct Products {
  Sums sums;
  RowBias bias[TILES];
  u32 words_at, row_at;  // of the lane, in slot 0: words, first row of scales
  u32 token_row;         // row lane % 8 of an n8 tile of tokens
  int chunk, swizzle;    // of 16 bytes in that row

  SF_DEVICE Products(const Place& p, u32 shared) {
    const int j = first_row_block(p, p.lane >> 3);
    words_at = shared + WEIGHTS_AT + p.block * (STAGE_BLOCKS * BLOCK_BYTES) + (p.lane * 4 + j) * LANE_WORDS * 4;
    row_at = shared + ROWS_AT + (p.block * 64 + j * 16 + p.c) * 2;
    token_row = (p.lane & 7) * 128;
    chunk = p.lane >> 3;
    swizzle = p.lane & 7;
#pragma unroll
    for (int i = 0; i < TILES; i++) bias[i] = default_bias();
  }

  SF_DEVICE void begin_tile(int slot, u32 channel_row) {
    sums.clear();
    if (CHANNELWISE && SF_ZEROS == SF_ZEROS_INTEGER) {
#pragma unroll
      for (int i = 0; i < TILES; i++) bias[i] = zero_bias(load_row_pair(channel_row + ROW_BYTES, i));
    }
  }

  // One stage: the contract of wide_wgmma.cuh, with nothing prepared for the next one.
  template <int COUNT, class Ready, class Release>
  SF_DEVICE void span(const Slots& slots, Position& at, bool more, bool last, Ready ready, Release release) {
    static_assert(COUNT == 1, "there are no products in flight to keep going");
    const int slot = at.slot;
    // With a scale for every 32 k all steps are alike, and unrolled the compiler would overlap them until it runs out of registers.
#pragma unroll(SEGMENT == 32 ? 1 : STAGE_K / 32)
    for (int k32 = 0; k32 < STAGE_K / 32; k32++) step(k32, slot * SLOT_BYTES, slots.slot(slot));
    release(slot);
    at.advance();
    if (more) ready(at);
  }

 private:
  SF_DEVICE void step(int k32, u32 slot_at, u32 tokens_at) {
    const bool first = !CHANNELWISE && k32 * 32 % SEGMENT == 0, last = !CHANNELWISE && (k32 + 1) * 32 % SEGMENT == 0;
    const u32 row = row_at + slot_at + k32 * 32 / SEGMENT * ROW_BYTES, zero_row = row + SCALE_ROWS * ROW_BYTES;
    if (first) {
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        if (IN_PLACE) {
          sums.next_unit(i, load_row_pair(row, i));
          sums.rescale(i);
        }
        if (SF_ZEROS == SF_ZEROS_INTEGER) bias[i] = zero_bias(load_row_pair(zero_row, i));
      }
    }
    u32 a[2][TILES][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      u32 words[TILES * LANE_WORDS];
      load_lane_words(words, words_at + slot_at + (k32 * 2 + k) * SLICE_BYTES);
#pragma unroll
      for (int i = 0; i < TILES; i++) dequantise_fragment(words, i, bias[i], a[k][i]);
    }
    RowPair scale[TILES], zero[TILES];
    if (last && !ONE_SET) {
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        scale[i] = load_row_pair(row, i);
        if (OFFSETS) zero[i] = load_row_pair(zero_row, i);
      }
    }
    const u32 tokens = tokens_at + k32 / 2 * PANEL_BYTES + token_row + (((k32 % 2 * 4 + chunk) ^ swizzle) << 4);
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
      const Words4 b = load_matrix4(tokens + n * 1024);
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        add_product(sums.running(i), n, a[0][i], b.v[0], b.v[1], first && !ONE_SET);
        add_product(sums.running(i), n, a[1][i], b.v[2], b.v[3], false);
      }
      if constexpr (OFFSETS) {
        const u32 ones[4] = {UNIT_PAIR, UNIT_PAIR, UNIT_PAIR, UNIT_PAIR};
        add_product(sums.tokens, n, ones, b.v[0], b.v[1], first);
        add_product(sums.tokens, n, ones, b.v[2], b.v[3], false);
      }
      if (last && !ONE_SET) {
#pragma unroll
        for (int i = 0; i < TILES; i++) sums.end_segment(i, scale[i], zero[i], 0, n, n + 1);
      }
    }
  }

  // Products of n8 tile n of the tokens, added to its four sums or, first, replacing them.
  SF_DEVICE static void add_product(float (&sum)[TOKENS / 2], int n, const u32 (&a)[4], u32 b0, u32 b1, bool first) {
    float d[4];
#pragma unroll
    for (int e = 0; e < 4; e++) d[e] = first ? 0.0f : sum[n * 4 + e];
    mma(d, a, b0, b1);
#pragma unroll
    for (int e = 0; e < 4; e++) sum[n * 4 + e] = d[e];
  }
};
