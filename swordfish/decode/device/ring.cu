// decode_ring: out[M, N] = x[M, K] @ dequant(W) for few rows (SF_ROWS per row tile), at the speed of reading W.
//
// Weights are operand A of mma.m16n8k16 (16 columns of W are its rows), tokens are operand B (8 per mma). Every warp owns a ring of
// slots in shared memory and fills it itself, on its own barriers: no producer warp, no CTA barrier in the main loop.
// A slot holds one unit of work:
//
//     weights          SF_COLS columns of SF_UNIT blocks (k64 x n64)     } bulk copies, requested before the previous kernel has finished
//     scales (zeros)   SCALE_ROWS rows of SF_COLS x 64 values             }
//     tokens           SF_ROWS rows of SF_UNIT x 64 values                  cp.async groups, requested after it
//
// With SF_GATHER (act-order) whole rows of x come to shared memory once: each CTA of a cluster reads a part and sends it to all. The warps
// put the tokens of a unit together from there through the permutation, whose indices they load a unit ahead.
//
// The warps of a CTA split K (unit u belongs to warp u % SF_WARPS) and the SF_SPLIT CTAs of a cluster split it further. Partial sums meet
// in shared memory and then, by st.async, on the CTA of the cluster that owns the columns. Every sum has a fixed order and every
// output is rounded once.
//
// Grid: x = row tile * SF_SPLIT + rank, so that row tiles of the same weights run side by side and share them in L2; y = first column tile,
// then every gridDim.y-th. With SF_SPLIT > 1 there is one column tile per cluster, so no peer is ever a tile ahead.
//
// Defines (see decode/ring.py): SF_BITS SF_BF16 SF_ZEROS SF_GROUP SF_K SF_N SF_BIAS SF_ROWS SF_COLS SF_UNIT SF_WARPS SF_SLOTS SF_SPLIT
// SF_MIN_CTAS SF_GATHER SF_SHARED_BYTES
#include "ring_unit.cuh"

constexpr int ROW_BYTES = SF_K * 2;  // of x; with SF_GATHER, K is a multiple of 64 and the permutation has no padding
constexpr int ROWS_BARRIER_OFFSET = RING_END;
constexpr int ROWS_OFFSET = round_up(ROWS_BARRIER_OFFSET + 8, 128);
static_assert((SF_GATHER ? ROWS_OFFSET + SF_ROWS * ROW_BYTES : RING_END) == SF_SHARED_BYTES, "decode/ring.py and this file disagree on the shared memory layout");

// A warp's units all have slots of their own: nothing is requested after the start.
constexpr bool ALL_IN_FLIGHT = SF_SPLIT > 1 && ceil_div(ceil_div(UNITS, SF_SPLIT), SF_WARPS) <= SF_SLOTS;

// One row tile of the operands.
struct Problem {
  Weights weights;
  const u16 *x, *bias;
  const int* perm;
  u16* out;
  int rows;                  // of this row tile
  i64 x_stride, out_stride;  // elements

  struct Rows {
    const u16* first;
    i64 stride;
    SF_DEVICE const u16* row(int i) const { return first + i * stride; }
  };
  SF_DEVICE Rows from(int row, int k) const { return {x + row * x_stride + k, x_stride}; }
};

#if SF_GATHER
// This CTA's part of the rows, for all CTAs of the cluster. One thread for each row calls it.
SF_DEVICE void request_rows(const Problem& p, u32 shared, int rank) {
  constexpr int LINES = ROW_BYTES / 128;
  const int first = rank * LINES / SF_SPLIT * 128, bytes = (rank + 1) * LINES / SF_SPLIT * 128 - first;
  const u32 dst = shared + ROWS_OFFSET + threadIdx.x * ROW_BYTES + first, bar = shared + ROWS_BARRIER_OFFSET;
  const u8* src = (const u8*)(p.x + threadIdx.x * p.x_stride) + first;
#if SF_SPLIT == 1
  bulk_load(dst, src, bytes, bar);
#else
  bulk_load_multicast(dst, src, bytes, bar, (1 << SF_SPLIT) - 1);
#endif
}

// Where the tokens of one unit lie in a row of x; every lane knows GATHERED adjacent ones.
constexpr int GATHERED = UNIT_K / 32;

struct Gather {
  int from[GATHERED];

  SF_DEVICE void load_indices(const Problem& p, int unit, int lane) {
    const int at = unit * UNIT_K + lane * GATHERED;
#pragma unroll
    for (int i = 0; i < GATHERED; i += 2) {
      const u64 pair = SHORT_UNIT && at + i >= SF_K ? 0 : *(const u64*)(p.perm + at + i);
      from[i] = (int)pair;
      from[i + 1] = (int)(pair >> 32);
    }
  }

  // From the `count` rows of x in shared memory to the token area of a slot.
  SF_DEVICE void copy_tokens(u32 rows, int count, u32 tokens, int lane) const {
#pragma unroll
    for (int row = 0; row < SF_ROWS; row++) {
      if (row > 0 && row >= count) break;
      u32 value[GATHERED];
#pragma unroll
      for (int i = 0; i < GATHERED; i++) value[i] = load_half(rows + row * ROW_BYTES + from[i] * 2);
#pragma unroll
      for (int i = 0; i < GATHERED; i += 2) store_word(tokens + row * TOKEN_PITCH + (lane * GATHERED + i) * 2, value[i] | value[i + 1] << 16);
    }
  }
};
#endif

// Walks the units of a warp through all column tiles of its CTA.
struct Cursor {
  int tile, unit;

  SF_DEVICE void advance(int first_unit, int end_unit, int tile_step) {
    unit += SF_WARPS;
    if (unit >= end_unit) {
      unit = first_unit;
      tile += tile_step;
    }
  }
};

// ---- reduction ---------------------------------------------------------------------------------------------------------------------

// Adds the bias, rounds once, writes the columns that exist.
SF_DEVICE void store_output(const Problem& p, Floats4 v, int row, int n) {
  if (n >= SF_N) return;
  u16 h[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    float f = v.v[e];
    if (SF_BIAS && n + e < SF_N) f += low_to_float(load_global_u16(p.bias + n + e));
    h[e] = round_to_half(f);
  }
  u16* out = p.out + row * p.out_stride + n;
  if (SF_N % 4 == 0) {
    *(u64*)out = (u64)h[0] | (u64)h[1] << 16 | (u64)h[2] << 32 | (u64)h[3] << 48;
  } else {
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (n + e < SF_N) out[e] = h[e];
  }
}

// Sums the warps of this CTA; a split tile then goes on to the CTA of the cluster that owns the quad.
SF_DEVICE void reduce_tile(const Problem& p, int tile, u32 shared, int rank) {
  for (int i = threadIdx.x; i < p.rows * QUADS; i += SF_WARPS * 32) {
    const int row = i / QUADS, quad = i % QUADS;
    const Floats4 v = sum_quads<SF_WARPS>(shared + PARTIAL_OFFSET + row * PARTIAL_PITCH * 4 + quad * 16, PARTIAL_BYTES);
#if SF_SPLIT == 1
    store_output(p, v, row, tile * TILE_N + quad * 4);
#else
    const u32 owner = quad % SF_SPLIT;
    const u32 place = shared + EXCHANGE_OFFSET + ((rank * SF_ROWS + row) * OWNED_QUADS + quad / SF_SPLIT) * 16;
    store_async(peer_address(place, owner), v, peer_address(shared + EXCHANGE_BARRIER_OFFSET, owner));
#endif
  }
}

#if SF_SPLIT > 1
SF_DEVICE int quads_owned_by(int rank) { return (QUADS - rank + SF_SPLIT - 1) / SF_SPLIT; }

// Sums the CTAs of the cluster for the quads that this one owns.
SF_DEVICE void reduce_cluster(const Problem& p, int tile, u32 shared, int rank) {
  const int owned = quads_owned_by(rank);
  for (int i = threadIdx.x; i < p.rows * owned; i += SF_WARPS * 32) {
    const int row = i / owned, index = i % owned;
    const Floats4 v = sum_quads<SF_SPLIT>(shared + EXCHANGE_OFFSET + (row * OWNED_QUADS + index) * 16, SF_ROWS * OWNED_QUADS * 16);
    store_output(p, v, row, tile * TILE_N + (index * SF_SPLIT + rank) * 4);
  }
}
#endif

// ---- the kernel --------------------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(SF_WARPS * 32, SF_MIN_CTAS)
    decode_ring(const u8* words, const u16* scales, const u16* zeros, const u16* x, const int* perm, const u16* bias, u16* out, int rows, i64 x_stride, i64 out_stride) {
  extern __shared__ __align__(128) u8 shared_memory[];
  launch_dependents();
  const u32 shared = shared_address(shared_memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int rank = blockIdx.x % SF_SPLIT, row_at = blockIdx.x / SF_SPLIT * SF_ROWS;
  const Problem p = {{words, scales, zeros}, x + row_at * x_stride, bias, perm, out + row_at * out_stride, min(SF_ROWS, rows - row_at), x_stride, out_stride};

  const int first_tile = blockIdx.y, tile_step = SF_SPLIT == 1 ? gridDim.y : TILES;
  const int first_unit = rank * UNITS / SF_SPLIT + warp, end_unit = (rank + 1) * UNITS / SF_SPLIT;

  const Ring ring = {shared + warp * RING_BYTES, shared + BARRIER_OFFSET + warp * SF_SLOTS * 8, evict_first_policy()};
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < SF_SLOTS; s++) barrier_init(ring.barriers + s * 8, 1);
    if (SF_SPLIT > 1 && warp == 0) barrier_init(shared + EXCHANGE_BARRIER_OFFSET, 1);
    if (SF_GATHER && warp == 0) barrier_init(shared + ROWS_BARRIER_OFFSET, 1);
    fence_barrier_init();
  }
  warp_sync();
  if (SF_GATHER && threadIdx.x == 0) barrier_expect(shared + ROWS_BARRIER_OFFSET, p.rows * ROW_BYTES);
#if SF_SPLIT > 1
  if (threadIdx.x == 0) barrier_expect(shared + EXCHANGE_BARRIER_OFFSET, p.rows * quads_owned_by(rank) * SF_SPLIT * 16);
  cluster_arrive_relaxed();
#endif

  // A warp without units (K is shorter than the CTA is wide) only takes part in the reduction.
  const Cursor start = {first_unit < end_unit ? first_tile : TILES, first_unit};
#if SF_GATHER
  // Before the weights are requested: behind them in memory's queues the indices would come last, and they are needed first.
  Gather first[SF_SLOTS], gather;
  Cursor late = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (late.tile < TILES) first[s].load_indices(p, late.unit, lane);
    late.advance(first_unit, end_unit, tile_step);
  }
  // From here on `late` is `next`, and `gather` holds the indices of its unit.
  if (!ALL_IN_FLIGHT && late.tile < TILES) gather.load_indices(p, late.unit, lane);
#endif
  Cursor next = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (next.tile >= TILES) break;
    if (lane == 0) ring.request_weights(p.weights, next.tile, next.unit, s);
    next.advance(first_unit, end_unit, tile_step);
  }
#if SF_GATHER
#if SF_SPLIT == 1
  __syncthreads();  // the barrier of the rows exists,
#else
  cluster_wait();  // in all peers, too, and so do their other barriers
#endif
  wait_for_previous_kernel();
  if (threadIdx.x < p.rows) request_rows(p, shared, rank);
  barrier_wait(shared + ROWS_BARRIER_OFFSET, 0);
  late = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (late.tile < TILES) first[s].copy_tokens(shared + ROWS_OFFSET, p.rows, ring.tokens(s), lane);
    late.advance(first_unit, end_unit, tile_step);
  }
#else
  wait_for_previous_kernel();
  Cursor late = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (late.tile < TILES) {
      ring.request_tokens(p, p.rows, late.unit, s, lane);
      late.advance(first_unit, end_unit, tile_step);
    }
    copy_async_commit();
  }
#endif

  // Lanes of rows that do not exist read the last row instead: their products land in columns that are never stored.
  u32 token_offsets[TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++) token_offsets[t] = min(8 * t + (lane & 7), p.rows - 1) * TOKEN_PITCH + (lane >> 3) * 16;

  int slot = 0;
  u32 parity = 0;
  for (int tile = first_tile; tile < TILES; tile += tile_step) {
    Accumulators total = {};
    for (int unit = first_unit; unit < end_unit; unit += SF_WARPS) {
#if !SF_GATHER
      copy_async_wait<SF_SLOTS - 1>();
#endif
      barrier_wait(ring.barriers + slot * 8, parity);
      warp_sync();  // the other lanes' tokens
      multiply_unit(total, ring.weights(slot), ring.tokens(slot), blocks_of(unit), columns_of(tile), token_offsets, lane);
      warp_sync();  // every lane has read the slot
      if (!ALL_IN_FLIGHT && next.tile < TILES) {
        if (lane == 0) ring.request_weights(p.weights, next.tile, next.unit, slot);
#if SF_GATHER
        gather.copy_tokens(shared + ROWS_OFFSET, p.rows, ring.tokens(slot), lane);
#else
        ring.request_tokens(p, p.rows, next.unit, slot, lane);
#endif
        next.advance(first_unit, end_unit, tile_step);
      }
#if SF_GATHER
      if (!ALL_IN_FLIGHT && next.tile < TILES) gather.load_indices(p, next.unit, lane);
#else
      copy_async_commit();
#endif
      if (++slot == SF_SLOTS) {
        slot = 0;
        parity ^= 1;
      }
    }

    if (tile != first_tile) __syncthreads();  // the previous tile's partials have been read
    store_partial(total, shared + PARTIAL_OFFSET + warp * PARTIAL_BYTES, p.rows, lane);
    __syncthreads();
#if SF_SPLIT > 1 && !SF_GATHER
    cluster_wait();  // the barriers of all peers exist
#endif
    reduce_tile(p, tile, shared, rank);
#if SF_SPLIT > 1
    barrier_wait(shared + EXCHANGE_BARRIER_OFFSET, 0);
    reduce_cluster(p, tile, shared, rank);
#endif
  }
}
