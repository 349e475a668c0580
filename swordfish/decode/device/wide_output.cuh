// From sums to output. Where several CTAs have worked on a column tile, their partial sums are added in the order of k, so that results do
// not depend on timing; slice x = n8 tile * TILES + tile is 16 bytes a lane.
//
//   cluster    sums meet in the distributed shared memory of the rank that owns the slice, x / SLICES_OWNED
//   Stream-K   sums meet in global memory (L2); whichever warp comes last adds them up. Nobody waits, so CTAs need not run together.
#pragma once
#include "wide_copy.cuh"
#include "wide_fragment.cuh"

SF_DEVICE u32 transpose_matrix(u32 v) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

SF_DEVICE u32 round_pair(float low, float high) { return round_to_half(low) | (u32)round_to_half(high) << 16; }

SF_DEVICE void store_columns(u16* out, int column, u32 pair) {
  if (SF_N % 2 == 0) {  // both columns exist or none
    if (column < SF_N) *(u32*)(out + column) = pair;
  } else {
    if (column < SF_N) out[column] = (u16)pair;
    if (column + 1 < SF_N) out[column + 1] = (u16)(pair >> 16);
  }
}

// Bias of the lane's rows of a column tile. Loaded when the tile begins; a product hides the latency.
struct Bias {
  RowPair rows[TILES];

  SF_DEVICE void load(const Place& p, const u16* bias, int tile) {
    const int n = tile * COLUMNS + p.block * 64 + first_row_block(p, p.lane >> 3) * 16 + p.c;
#pragma unroll
    for (int i = 0; i < TILES && SF_BIAS; i++) {
      rows[i].low = n + i * 16 < SF_N ? load_global_u16(bias + n + i * 16) : 0;
      rows[i].high = n + i * 16 + 8 < SF_N ? load_global_u16(bias + n + i * 16 + 8) : 0;
    }
  }
};

struct Output {
  u16* row;  // of token c
  i64 stride;
  int tokens;  // valid ones from token c on
  int column;  // first output column of the lane's pairs in its first row block
  const Bias& bias;

  SF_DEVICE Output(const Place& p, u16* out, i64 row_stride, int m, int tile, const Bias& row_bias) : bias(row_bias) {
    row = out + p.c * row_stride;
    stride = row_stride;
    tokens = m - p.c;
    column = tile * COLUMNS + p.block * 64 + first_row_block(p, p.t) * 16 + p.t * 2;
  }

  // Rows c and 8 + c, tokens 2t and 2t + 1 of a slice. Transposed, a lane holds neighbouring columns of one token.
  SF_DEVICE void store(int slice, Floats4 v) const {
    const int tile = slice % TILES, token = slice / TILES * 8;
    float low = 0.0f, high = 0.0f;
    if (SF_BIAS) {
      low = low_to_float(bias.rows[tile].low);
      high = low_to_float(bias.rows[tile].high);
    }
    const u32 upper = transpose_matrix(round_pair(fmaf(v.v[0], SF_UNIT_INVERSE, low), fmaf(v.v[1], SF_UNIT_INVERSE, low)));
    const u32 lower = transpose_matrix(round_pair(fmaf(v.v[2], SF_UNIT_INVERSE, high), fmaf(v.v[3], SF_UNIT_INVERSE, high)));
    if (token >= tokens) return;
    u16* const to = row + token * stride;
    store_columns(to, column + tile * 16, upper);
    store_columns(to, column + tile * 16 + 8, lower);
  }
};

SF_DEVICE Floats4 slice_of(const float (&total)[TILES][TOKENS / 2], int slice) {
  const float(&t)[TOKENS / 2] = total[slice % TILES];
  const int e = slice / TILES * 4;
  return {t[e], t[e + 1], t[e + 2], t[e + 3]};
}

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

// ---- Stream-K ------------------------------------------------------------------------------------------------------------------------

#if SF_CTAS
// Adds this CTA's piece of a tile; the warp that comes last has all pieces and stores the tile. A CTA has at most two pieces of unfinished
// tiles: one that begins a tile and one that does not. Counters are zero before and after.
SF_DEVICE void merge_and_store(float (&total)[TILES][TOKENS / 2], const Output& out, const Place& p, float* partials, u32* counters, int tile, int m) {
  const int first = part_of<UNITS, SF_CTAS>(tile * STAGES), last = part_of<UNITS, SF_CTAS>(tile * STAGES + STAGES - 1);
  float* const lane_at = partials + (p.warp * SLICES * 32 + p.lane) * 4;
  const auto piece = [&](int cta) { return lane_at + (i64)(2 * cta + (cta == first)) * (COLUMNS * TOKENS); };

  float* const mine = piece(blockIdx.x);
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    if (slice / TILES * 8 < m) store_global(mine + slice * 128, slice_of(total, slice));
  }
  warp_sync();
  u32* const counter = counters + first * WARPS + p.warp;
  u32 before = 0;
  if (p.lane == 0) before = count_up(counter);
  before = __shfl_sync(0xffffffffu, before, 0);
  warp_sync();
  if (before != last - first) return;
  if (p.lane == 0) store_global_word(counter, 0);

#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int e = 0; e < TOKENS / 2; e++) total[i][e] = 0.0f;
  for (int cta = first; cta <= last; cta++) {
    const float* const from = piece(cta);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      if (slice / TILES * 8 >= m) continue;
      const Floats4 v = load_global(from + slice * 128);
#pragma unroll
      for (int e = 0; e < 4; e++) total[slice % TILES][slice / TILES * 4 + e] += v.v[e];
    }
  }
  store_all(total, out, m);
}
#endif
