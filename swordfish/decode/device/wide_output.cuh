// From sums to output. Where several CTAs have worked on a column tile, their partial sums are added in the order of k, so that results do
// not depend on timing; slice x = n8 tile * TILES + tile is 16 bytes a lane.
//
//   cluster    sums meet in the distributed shared memory of the rank that owns the slice, x / SLICES_OWNED
//   Stream-K   sums meet in global memory (L2), where the CTA that begins the tile adds them up (wide_pieces.cuh)
#pragma once
#include "wide_copy.cuh"
#include "wide_pieces.cuh"

SF_DEVICE void store_columns(u16* out, int column, u32 pair) {
  if (SF_N % 2 == 0) {  // both columns exist or none
    if (column < SF_N) *(u32*)(out + column) = pair;
  } else {
    if (column < SF_N) out[column] = (u16)pair;
    if (column + 1 < SF_N) out[column + 1] = (u16)(pair >> 16);
  }
}

// Bias of the lane's rows.
struct Bias {
  const u16* bias;
  int n;  // of row c of tile 0

  SF_DEVICE Bias(const Place& p, const u16* values, Tile tile) : bias(values), n(tile.column * COLUMNS + p.block * 64 + first_row_block(p, p.lane >> 3) * 16 + p.c) {}

  // Long before it is read: there are no registers to keep it in.
  SF_DEVICE void prefetch() const {
    if (SF_BIAS && n < SF_N) prefetch_to_l2(bias + n);
  }

  SF_DEVICE RowPair load(int tile) const {
    const int low = n + tile * 16, high = low + 8;
    return {low < SF_N ? load_global_u16(bias + low) : 0, high < SF_N ? load_global_u16(bias + high) : 0};
  }
};

struct Output {
  u16* row;  // of token c
  i64 stride;
  int tokens;  // valid ones from token c on
  int column;  // first output column of the lane's pairs in its first row block
  RowPair bias[TILES];

  SF_DEVICE Output(const Place& p, u16* out, i64 row_stride, int m, Tile tile, const u16* bias_values) {
    row = out + (tile.row * TOKENS + p.c) * row_stride;
    stride = row_stride;
    tokens = tile.tokens(m) - p.c;
    column = tile.column * COLUMNS + p.block * 64 + first_row_block(p, p.t) * 16 + p.t * 2;
    const Bias rows(p, bias_values, tile);
#pragma unroll
    for (int i = 0; i < TILES && SF_BIAS; i++) bias[i] = rows.load(i);
  }

  // Rows c and 8 + c, tokens 2t and 2t + 1 of a slice. Transposed, a lane holds neighbouring columns of one token.
  SF_DEVICE void store(int slice, Floats4 v) const {
    const int tile = slice % TILES, token = slice / TILES * 8;
    float low = 0.0f, high = 0.0f;
    if (SF_BIAS) {
      low = low_to_float(bias[tile].low);
      high = low_to_float(bias[tile].high);
    }
    const u32 upper = transpose_matrix(round_pair(fmaf(v.v[0], SF_UNIT_INVERSE, low), fmaf(v.v[1], SF_UNIT_INVERSE, low)));
    const u32 lower = transpose_matrix(round_pair(fmaf(v.v[2], SF_UNIT_INVERSE, high), fmaf(v.v[3], SF_UNIT_INVERSE, high)));
    if (token >= tokens) return;
    u16* const to = row + token * stride;
    store_columns(to, column + tile * 16, upper);
    store_columns(to, column + tile * 16 + 8, lower);
  }
};

SF_DEVICE void store_all(const float (&total)[TILES][TOKENS / 2], const Output& out, int m) {
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    if (slice / TILES * 8 < m) out.store(slice, slice_of(total, slice));
  }
}

// ---- cluster -------------------------------------------------------------------------------------------------------------------------

// Bytes that a CTA of this rank will receive on a warpgroup's barrier.
SF_DEVICE u32 exchange_bytes(int rank, int m) {
  const int slices = min(SLICES, (m + 7) / 8 * TILES) - rank * SLICES_OWNED;
  return SF_SPLIT * max(0, min(SLICES_OWNED, slices)) * 2048;
}

SF_DEVICE void exchange_and_store(const float (&total)[TILES][TOKENS / 2], const Output& out, const Place& p, u32 shared, int rank, int m) {
  const u32 lane_at = ((p.warp & 3) * 32 + p.lane) * 16;
  const u32 inbox = shared + EXCHANGE_AT + p.group * (SF_SPLIT * SLICES_OWNED * 2048) + lane_at;
  const u32 bar = shared + INBOX_AT + p.group * 8;
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    if (slice / TILES * 8 >= m) break;
    const int owner = slice / SLICES_OWNED;
    const u32 at = inbox + (rank * SLICES_OWNED + slice % SLICES_OWNED) * 2048;
    store_async(peer_address(at, owner), slice_of(total, slice), peer_address(bar, owner));
  }
  barrier_wait(bar, 0);
  for (int s = 0; s < SLICES_OWNED; s++) {
    const int slice = rank * SLICES_OWNED + s;
    if (slice >= SLICES || slice / TILES * 8 >= m) break;
    Floats4 sum = load_floats4(inbox + s * 2048);
#pragma unroll
    for (int r = 1; r < SF_SPLIT; r++) {
      const Floats4 v = load_floats4(inbox + (r * SLICES_OWNED + s) * 2048);
#pragma unroll
      for (int e = 0; e < 4; e++) sum.v[e] += v.v[e];
    }
    out.store(slice, sum);
  }
}
