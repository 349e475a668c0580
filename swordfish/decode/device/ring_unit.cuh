// What a warp of the ring kernels does with a unit: request it, wait for it, multiply it.
//
// Weights are operand A of mma.m16n8k16 (16 columns of W are its rows), tokens are operand B (8 per mma).
#pragma once
#include "ring_sums.cuh"

struct Weights {
  const u8* words;
  const u16 *scales, *zeros;
};

// ---- units and the ring of one warp --------------------------------------------------------------------------------------------------

SF_DEVICE int columns_of(int tile) { return SHORT_TILE ? min(SF_COLS, N_BLOCKS - tile * SF_COLS) : SF_COLS; }

SF_DEVICE int blocks_of(int unit) { return SHORT_UNIT ? min(SF_UNIT, K_BLOCKS - unit * SF_UNIT) : SF_UNIT; }

struct Ring {
  u32 slots, barriers;  // shared addresses
  u64 policy;

  SF_DEVICE u32 weights(int slot) const { return slots + slot * WEIGHT_SLOT_BYTES; }
  SF_DEVICE u32 tokens(int slot) const { return slots + TOKEN_OFFSET + slot * TOKEN_SLOT_BYTES; }

  // Announces all bytes of the unit and requests those that do not depend on the previous kernel. One lane calls it.
  SF_DEVICE void request_weights(const Weights& w, int tile, int unit, int slot) const {
    const u32 dst = weights(slot), bar = barriers + slot * 8;
    const int blocks = blocks_of(unit), columns = columns_of(tile);
    const int scale_rows = SHORT_UNIT ? ceil_div(blocks * 64, FOLD_K) : SCALE_ROWS;
    const int scale_bytes = columns * 128;
    barrier_expect(bar, columns * blocks * BLOCK_BYTES + (ZERO_ROWS ? 2 : 1) * scale_rows * scale_bytes);
#pragma unroll
    for (int i = 0; i < SF_COLS; i++) {
      if (SHORT_TILE && i >= columns) break;
      const u8* src = w.words + ((i64)(tile * SF_COLS + i) * K_BLOCKS + unit * SF_UNIT) * BLOCK_BYTES;
      bulk_load_hinted(dst + i * COLUMN_BYTES, src, blocks * BLOCK_BYTES, bar, policy);
    }
#pragma unroll
    for (int i = 0; i < SCALE_ROWS; i++) {
      if (SHORT_UNIT && i >= scale_rows) break;
      // The clamp serves a K that ends inside its last block: tokens are zero there.
      const int group = min((unit * UNIT_K + i * FOLD_K) / SF_GROUP, GROUPS - 1);
      const i64 at = (i64)group * N_PITCH + tile * TILE_N;
      bulk_load(dst + SCALE_OFFSET + i * SCALE_ROW_BYTES, w.scales + at, scale_bytes, bar);
      if (ZERO_ROWS) bulk_load(dst + ZERO_OFFSET + i * SCALE_ROW_BYTES, w.zeros + at, scale_bytes, bar);
    }
  }

  // All lanes call it, once per unit: the groups of a lane complete in the order of the units. `x.from(row, k)` tells
  // where values from k on lie for the rows from `row` on.
  template <class Source> SF_DEVICE void request_tokens(const Source& x, int rows, int unit, int slot, int lane) const {
    const int row = lane / TOKEN_CHUNKS, chunk = lane % TOKEN_CHUNKS;
    const auto src = x.from(row, unit * UNIT_K + chunk * 8);
    const u32 dst = tokens(slot) + row * TOKEN_PITCH + chunk * 16;
#pragma unroll
    for (int i = 0; i < SF_ROWS; i += ROWS_PER_COPY) {
      if (row + i < rows && (!SHORT_UNIT || chunk < blocks_of(unit) * 8)) copy_async16(dst + i * TOKEN_PITCH, src.row(i));
    }
  }
};

// ---- the arithmetic of one unit ------------------------------------------------------------------------------------------------------

// Lane offset for load_matrix4_transposed over a row of 64 values: matrix j alternates the octets 2j and 2j + 1, so a lane (c, t) receives the
// values of columns 16 j + c (low half) and 16 j + 8 + c (high half) of all four m16 tiles at once.
SF_DEVICE u32 row_pair_offset(int lane) { return ((lane >> 3) * 2 + (lane & 1)) * 16; }

SF_DEVICE void dequantise_subtile(u32 subtile, int lane, const RowBias (&bias)[4], u32 (&a)[4][4]) {
#if SF_BITS == 4
  const Words4 q = load_words4(subtile + lane * 16);
#pragma unroll
  for (int j = 0; j < 4; j++) dequantise4(q.v[j], bias[j], a[j]);
#else
  const Words4 q0 = load_words4(subtile + lane * 32), q1 = load_words4(subtile + lane * 32 + 16);
  dequantise8(q0.v[0], q0.v[1], bias[0], a[0]);
  dequantise8(q0.v[2], q0.v[3], bias[1], a[1]);
  dequantise8(q1.v[0], q1.v[1], bias[2], a[2]);
  dequantise8(q1.v[2], q1.v[3], bias[3], a[3]);
#endif
}

// Multiplies FOLD_K of one column with exact integer weights (times UNIT) and adds the scaled sums to `total`.
SF_DEVICE void multiply_fold(Fragment (&total)[4][TOKEN_TILES], u32 weights, u32 scale_row, u32 zero_row, const u32 (&tokens)[TOKEN_TILES], int k_left, int lane) {
  Words4 zero_pairs;
  RowBias bias[4];
  if (ZERO_ROWS) zero_pairs = load_matrix4_transposed(zero_row);
#pragma unroll
  for (int j = 0; j < 4; j++) {
#if SF_ZEROS == SF_ZEROS_INTEGER
    bias[j] = row_bias(zero_pairs.v[j]);
#else
    bias[j].low = bias[j].high = SF_DEFAULT_BIAS;
#endif
  }

  Fragment sum[4][TOKEN_TILES] = {};
  Fragment token_sum[TOKEN_TILES] = {};  // of the tokens alone, for weights with an offset
#pragma unroll
  for (int k = 0; k < FOLD_K; k += 32) {
    if (SHORT_UNIT && FOLD_K > 64 && k >= k_left) break;
    Words4 b[TOKEN_TILES];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) b[t] = load_matrix4(tokens[t] + k * 2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 a[4][4];
      dequantise_subtile(weights + (k / 16 + h) * SUBTILE_BYTES, lane, bias, a);
#pragma unroll
      for (int t = 0; t < TOKEN_TILES; t++) {
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sum[j][t], a[j], b[t].v[2 * h], b[t].v[2 * h + 1]);
        if (SF_ZEROS == SF_ZEROS_OFFSET) {
          const u32 ones[4] = {SF_ONES, SF_ONES, SF_ONES, SF_ONES};
          mma(token_sum[t], ones, b[t].v[2 * h], b[t].v[2 * h + 1]);
        }
      }
    }
  }

  const Words4 scale_pairs = load_matrix4_transposed(scale_row);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float scale[2] = {low_to_float(scale_pairs.v[j]), high_to_float(scale_pairs.v[j])};
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        total[j][t][e] = __fmaf_rn(scale[e >> 1], sum[j][t][e], total[j][t][e]);
        if (SF_ZEROS == SF_ZEROS_OFFSET) {
          const float offset = e < 2 ? low_to_float(zero_pairs.v[j]) : high_to_float(zero_pairs.v[j]);
          total[j][t][e] = __fmaf_rn(offset * (1 / SF_UNIT_INVERSE), token_sum[t][e], total[j][t][e]);
        }
      }
  }
}

SF_DEVICE void multiply_unit(Accumulators& total, u32 slot, u32 token_slot, int blocks, int columns, const u32 (&token_offsets)[TOKEN_TILES], int lane) {
  const u32 pair_offset = row_pair_offset(lane);
#pragma unroll
  for (int fold = 0; fold < UNIT_K / FOLD_K; fold++) {
    const int k = fold * FOLD_K;
    if (SHORT_UNIT && k >= blocks * 64) break;
    u32 tokens[TOKEN_TILES];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) tokens[t] = token_slot + token_offsets[t] + k * 2;
#pragma unroll
    for (int i = 0; i < SF_COLS; i++) {
      if (SHORT_TILE && i >= columns) break;
      const u32 row = fold * SCALE_ROW_BYTES + i * 128 + pair_offset;
      multiply_fold(total[i], slot + i * COLUMN_BYTES + (k / 16) * SUBTILE_BYTES, slot + SCALE_OFFSET + row, slot + ZERO_OFFSET + row, tokens, blocks * 64 - k, lane);
    }
  }
}
