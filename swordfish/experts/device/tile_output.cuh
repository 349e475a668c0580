// From the sums of a block of rows to the output, for kernels whose lanes hold them as wgmma and mma.sync leave them: a lane has rows (weight
// columns) c and 8 + c, tokens 2t and 2t + 1 of each 8x8 matrix; tile i + 1 of a warp are the 16 columns behind tile i.
//
// The includer says what a tile is: TILES, COLUMNS, N_PITCH, Place and first_row_block (wide_shape.cuh), and in SF_UNIT_INVERSE
// what sums are multiplied by.
#pragma once
#include "activation.cuh"
#include "tiles.cuh"

struct Output {
  const Row* kept;  // of the block, in shared memory
  void* out;
  int start, rows;    // of the block
  int c, t;
  int column;         // in its expert, of row c of the lane's first tile
  int stored_column;  // 16 bits: output column of the lane's pair of columns after the transposition
  float bias[TILES][2];  // of rows c and 8 + c

  template <class Tile> SF_DEVICE Output(const Place& p, const Row* rows_kept, void* to, const Tile& tile, const u16* biases) {
    kept = rows_kept, out = to;
    start = tile.start(), rows = tile.rows();
    c = p.c, t = p.t;
    const int block = tile.column * (COLUMNS / 64) + p.block;
    column = block * 64 + first_row_block(p, p.lane >> 3) * 16 + p.c;
    stored_column = (SF_GATED ? block * 32 + first_row_block(p, p.t) / 2 * 16 : block * 64 + first_row_block(p, p.t) * 16) + p.t * 2;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      const int n = column + i * 8;
      bias[i / 2][i % 2] = SF_BIAS && n < N_PITCH ? low_to_float(load_global_u16(biases + (i64)tile.expert() * N_PITCH + n)) : 0.0f;
    }
  }

  // Of tokens 8 n + 2t and the next.
  SF_DEVICE void load_weights(float (&weight)[2], int n) const {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = n * 8 + 2 * t + e;
      weight[e] = SF_ROUTER && row < rows ? kept[row].weight : 1.0f;
    }
  }

  // Tokens 8 n to 8 n + 7 of tile i and tile i + 1.
  SF_DEVICE void store_gated(const float (&total)[TILES][TOKENS / 2], int i, int n) const {
    float weight[2];
    load_weights(weight, n);
    u32 half[2];
#pragma unroll
    for (int lower = 0; lower < 2; lower++) {
      float h[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int at = n * 4 + lower * 2 + e;
        const float scale = SF_UNIT_INVERSE * weight[e];
        h[e] = activate(fmaf(total[i][at], scale, bias[i][lower]), fmaf(total[i + 1][at], scale, bias[i + 1][lower]));
      }
      half[lower] = transpose_matrix(round_pair(h[0], h[1]));  // now columns 2t and 2t + 1 of token c
    }
    const int row = n * 8 + c, to = stored_column + i / 2 * 16;
    if (row >= rows || to >= N_PITCH / 2) return;
    u16* at = (u16*)out + (i64)(start + row) * (N_PITCH / 2) + to;
    *(u32*)at = half[0];
    *(u32*)(at + 8) = half[1];
  }

  // Tokens 8 n to 8 n + 7 of all tiles.
  SF_DEVICE void store_sums(const float (&total)[TILES][TOKENS / 2], int n) const {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = n * 8 + 2 * t + e;
      if (row >= rows) continue;
      const Row row_kept = kept[row];
      float* at = (float*)out + (i64)row_kept.pair * N_PITCH + column;
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
          if (column + i * 16 + lower * 8 < N_PITCH) at[i * 16 + lower * 8] = fmaf(total[i][n * 4 + lower * 2 + e], SF_UNIT_INVERSE, bias[i][lower]) * row_kept.weight;
        }
    }
  }

  // The same, rounded.
  SF_DEVICE void store_narrow(const float (&total)[TILES][TOKENS / 2], int n) const {
    float weight[2];
    load_weights(weight, n);
    const int row = n * 8 + c, pair = row < rows ? kept[row].pair : 0;  // after the transposition
    u16* at = (u16*)out + (i64)pair * N_PITCH + stored_column;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int lower = 0; lower < 2; lower++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) v[e] = fmaf(total[i][n * 4 + lower * 2 + e], SF_UNIT_INVERSE, bias[i][lower]) * weight[e];
        const u32 half = transpose_matrix(round_pair(v[0], v[1]));
        if (row < rows && stored_column + i * 16 + lower * 8 < N_PITCH) *(u32*)(at + i * 16 + lower * 8) = half;
      }
  }

  SF_DEVICE void store_all(const float (&total)[TILES][TOKENS / 2]) const {
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
      if (n * 8 >= rows) continue;
      if constexpr (SF_GATED) {
#pragma unroll
        for (int i = 0; i < TILES; i += 2) store_gated(total, i, n);
      } else if constexpr (SF_NARROW) {
        store_narrow(total, n);
      } else {
        store_sums(total, n);
      }
    }
  }
};
