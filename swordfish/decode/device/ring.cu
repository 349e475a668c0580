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
// With SF_GATHER (act-order) the lanes load the tokens of a unit one by one through the permutation, its indices two units ahead and the
// values one.
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
#include "ptx.cuh"
#include "dequant.cuh"

SF_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
SF_DEVICE constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

constexpr int K_BLOCKS = ceil_div(SF_K, 64);
constexpr int N_BLOCKS = ceil_div(SF_N, 64);
constexpr int N_PITCH = N_BLOCKS * 64;  // elements of a scale row
constexpr int GROUPS = ceil_div(SF_K, SF_GROUP);
constexpr int TILES = ceil_div(N_BLOCKS, SF_COLS);
constexpr int TILE_N = SF_COLS * 64;
constexpr int UNITS = ceil_div(K_BLOCKS, SF_UNIT);
constexpr int UNIT_K = SF_UNIT * 64;
constexpr bool SHORT_UNIT = K_BLOCKS % SF_UNIT != 0;    // the last unit has fewer blocks
constexpr bool SHORT_TILE = N_BLOCKS % SF_COLS != 0;    // the last tile has fewer columns
constexpr int TOKEN_TILES = ceil_div(SF_ROWS, 8);

constexpr int BLOCK_BYTES = SF_BITS * 512;
constexpr int SUBTILE_BYTES = BLOCK_BYTES / 4;
constexpr int COLUMN_BYTES = SF_UNIT * BLOCK_BYTES;

// Sums of integers are scaled and added up every FOLD_K of the K axis: the largest run that stays inside one group and one unit.
constexpr int FOLD_K = SF_GROUP >= SF_K || SF_GROUP % UNIT_K == 0 ? UNIT_K
                       : UNIT_K % SF_GROUP == 0                   ? SF_GROUP
                       : SF_GROUP % 64 == 0                       ? 64
                                                                  : 32;
constexpr int SCALE_ROWS = UNIT_K / FOLD_K;
constexpr int SCALE_ROW_BYTES = TILE_N * 2;
constexpr bool ZERO_ROWS = SF_ZEROS != SF_ZEROS_NONE;

constexpr int TOKEN_PITCH = UNIT_K * 2 + 16;  // 16 bytes of padding make ldmatrix conflict-free
constexpr int TOKEN_CHUNKS = UNIT_K / 8;      // 16-byte chunks of a row
constexpr int ROWS_PER_COPY = 32 / TOKEN_CHUNKS;
static_assert(TOKEN_CHUNKS <= 32, "a row of a unit is at most one chunk per lane");
constexpr int SCALE_OFFSET = SF_COLS * COLUMN_BYTES;
constexpr int ZERO_OFFSET = SCALE_OFFSET + SCALE_ROWS * SCALE_ROW_BYTES;
constexpr int WEIGHT_SLOT_BYTES = ZERO_OFFSET + (ZERO_ROWS ? SCALE_ROWS * SCALE_ROW_BYTES : 0);
static_assert(WEIGHT_SLOT_BYTES % 128 == 0, "bulk copies into lines of 128 bytes: 16-byte alignment alone costs up to 20 %");
constexpr int TOKEN_OFFSET = SF_SLOTS * WEIGHT_SLOT_BYTES;  // the token slots of a warp lie behind its weight slots
constexpr int TOKEN_SLOT_BYTES = SF_ROWS * TOKEN_PITCH;
constexpr int RING_BYTES = round_up(TOKEN_OFFSET + SF_SLOTS * TOKEN_SLOT_BYTES, 128);

constexpr int PARTIAL_PITCH = TILE_N + 4;  // floats; makes the stores of an accumulator fragment conflict-free
constexpr int PARTIAL_BYTES = SF_ROWS * PARTIAL_PITCH * 4;
constexpr int QUADS = TILE_N / 4;  // a quad is 4 adjacent columns of one row
constexpr int OWNED_QUADS = ceil_div(QUADS, SF_SPLIT);

constexpr int BARRIER_OFFSET = SF_WARPS * RING_BYTES;
constexpr int EXCHANGE_BARRIER_OFFSET = BARRIER_OFFSET + SF_WARPS * SF_SLOTS * 8;
constexpr int PARTIAL_OFFSET = round_up(EXCHANGE_BARRIER_OFFSET + 8, 16);
constexpr int EXCHANGE_OFFSET = PARTIAL_OFFSET + SF_WARPS * PARTIAL_BYTES;
constexpr int SHARED_BYTES = EXCHANGE_OFFSET + (SF_SPLIT > 1 ? SF_SPLIT * SF_ROWS * OWNED_QUADS * 16 : 0);
static_assert(SHARED_BYTES == SF_SHARED_BYTES, "decode/ring.py and this file disagree on the shared memory layout");

// One row tile of the operands.
struct Problem {
  const u8* words;
  const u16 *scales, *zeros, *x, *bias;
  const int* perm;
  u16* out;
  int rows;                  // of this row tile
  i64 x_stride, out_stride;  // elements
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
  SF_DEVICE void request_weights(const Problem& p, int tile, int unit, int slot) const {
    const u32 dst = weights(slot), bar = barriers + slot * 8;
    const int blocks = blocks_of(unit), columns = columns_of(tile);
    const int scale_rows = SHORT_UNIT ? ceil_div(blocks * 64, FOLD_K) : SCALE_ROWS;
    const int scale_bytes = columns * 128;
    barrier_expect(bar, columns * blocks * BLOCK_BYTES + (ZERO_ROWS ? 2 : 1) * scale_rows * scale_bytes);
#pragma unroll
    for (int i = 0; i < SF_COLS; i++) {
      if (SHORT_TILE && i >= columns) break;
      const u8* src = p.words + ((i64)(tile * SF_COLS + i) * K_BLOCKS + unit * SF_UNIT) * BLOCK_BYTES;
      bulk_load_hinted(dst + i * COLUMN_BYTES, src, blocks * BLOCK_BYTES, bar, policy);
    }
#pragma unroll
    for (int i = 0; i < SCALE_ROWS; i++) {
      if (SHORT_UNIT && i >= scale_rows) break;
      // The clamp serves a K that ends inside its last block: tokens are zero there.
      const int group = min((unit * UNIT_K + i * FOLD_K) / SF_GROUP, GROUPS - 1);
      const i64 at = (i64)group * N_PITCH + tile * TILE_N;
      bulk_load(dst + SCALE_OFFSET + i * SCALE_ROW_BYTES, p.scales + at, scale_bytes, bar);
      if (ZERO_ROWS) bulk_load(dst + ZERO_OFFSET + i * SCALE_ROW_BYTES, p.zeros + at, scale_bytes, bar);
    }
  }

  // All lanes call it, once per unit: the groups of a lane complete in the order of the units.
  SF_DEVICE void request_tokens(const Problem& p, int unit, int slot, int lane) const {
    const int row = lane / TOKEN_CHUNKS, chunk = lane % TOKEN_CHUNKS;
    const u16* src = p.x + row * p.x_stride + unit * UNIT_K + chunk * 8;
    const u32 dst = tokens(slot) + row * TOKEN_PITCH + chunk * 16;
#pragma unroll
    for (int i = 0; i < SF_ROWS; i += ROWS_PER_COPY) {
      if (row + i < p.rows && (!SHORT_UNIT || chunk < blocks_of(unit) * 8)) copy_async16(dst + i * TOKEN_PITCH, src + i * p.x_stride);
    }
  }
};

#if SF_GATHER
// The tokens of one unit in packed order; every lane has GATHERED adjacent ones. Rows of x stay in L1, where reading them costs a line a
// lane but no wait for all of x and no room in shared memory.
constexpr int GATHERED = UNIT_K / 32;

struct Indices {
  int from[GATHERED];  // columns of x

  SF_DEVICE void load(const Problem& p, int unit, int lane) {
    const int at = unit * UNIT_K + lane * GATHERED;
#pragma unroll
    for (int i = 0; i < GATHERED; i += 2) {
      const u64 pair = SHORT_UNIT && at + i >= SF_K ? 0 : load_global_once(p.perm + at + i);
      from[i] = (int)pair;
      from[i + 1] = (int)(pair >> 32);
    }
  }
};

struct Gathered {
  u32 value[SF_ROWS][GATHERED];

  SF_DEVICE void load(const Problem& p, const Indices& indices) {
#pragma unroll
    for (int row = 0; row < SF_ROWS; row++) {
      if (row >= p.rows) break;
#pragma unroll
      for (int i = 0; i < GATHERED; i++) value[row][i] = load_global_u16_coherent(p.x + row * p.x_stride + indices.from[i]);
    }
  }

  // To the token area of a slot.
  SF_DEVICE void store(u32 tokens, int lane) const {
#pragma unroll
    for (int row = 0; row < SF_ROWS; row++)
#pragma unroll
      for (int i = 0; i < GATHERED; i += 2) store_word(tokens + row * TOKEN_PITCH + (lane * GATHERED + i) * 2, value[row][i] | value[row][i + 1] << 16);
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

// ---- the arithmetic of one unit ------------------------------------------------------------------------------------------------------

typedef float Fragment[4];
typedef Fragment Accumulators[SF_COLS][4][TOKEN_TILES];  // [column block][m16 tile][token tile]

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

SF_DEVICE void multiply_unit(Accumulators& total, u32 slot, u32 token_slot, int blocks, const u32 (&token_offsets)[TOKEN_TILES], int lane) {
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
      const u32 row = fold * SCALE_ROW_BYTES + i * 128 + pair_offset;
      multiply_fold(total[i], slot + i * COLUMN_BYTES + (k / 16) * SUBTILE_BYTES, slot + SCALE_OFFSET + row, slot + ZERO_OFFSET + row, tokens, blocks * 64 - k, lane);
    }
  }
}

// ---- reduction ---------------------------------------------------------------------------------------------------------------------

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
  const Problem p = {words, scales, zeros, x + row_at * x_stride, bias, perm, out + row_at * out_stride, min(SF_ROWS, rows - row_at), x_stride, out_stride};

  const int first_tile = blockIdx.y, tile_step = SF_SPLIT == 1 ? gridDim.y : TILES;
  const int first_unit = rank * UNITS / SF_SPLIT + warp, end_unit = (rank + 1) * UNITS / SF_SPLIT;

  const Ring ring = {shared + warp * RING_BYTES, shared + BARRIER_OFFSET + warp * SF_SLOTS * 8, evict_first_policy()};
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < SF_SLOTS; s++) barrier_init(ring.barriers + s * 8, 1);
    if (SF_SPLIT > 1 && warp == 0) barrier_init(shared + EXCHANGE_BARRIER_OFFSET, 1);
    fence_barrier_init();
  }
  warp_sync();
#if SF_SPLIT > 1
  if (threadIdx.x == 0) barrier_expect(shared + EXCHANGE_BARRIER_OFFSET, p.rows * quads_owned_by(rank) * SF_SPLIT * 16);
  cluster_arrive_relaxed();
#endif

  // A warp without units (K is shorter than the CTA is wide) only takes part in the reduction.
  const Cursor start = {first_unit < end_unit ? first_tile : TILES, first_unit};
  Cursor next = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (next.tile >= TILES) break;
    if (lane == 0) ring.request_weights(p, next.tile, next.unit, s);
    next.advance(first_unit, end_unit, tile_step);
  }
#if SF_GATHER
  Indices indices[SF_SLOTS + 1];
  Gathered gathered;
  {
    Cursor at = start;
#pragma unroll
    for (int s = 0; s <= SF_SLOTS; s++) {
      if (at.tile < TILES) indices[s].load(p, at.unit, lane);
      at.advance(first_unit, end_unit, tile_step);
    }
  }
  wait_for_previous_kernel();
  {
    Cursor at = start;
    Gathered first[SF_SLOTS];
#pragma unroll
    for (int s = 0; s < SF_SLOTS; s++) {
      if (at.tile < TILES) first[s].load(p, indices[s]);
      at.advance(first_unit, end_unit, tile_step);
    }
    at = start;
#pragma unroll
    for (int s = 0; s < SF_SLOTS; s++) {
      if (at.tile < TILES) first[s].store(ring.tokens(s), lane);
      at.advance(first_unit, end_unit, tile_step);
    }
  }
  // From here on `gathered` holds the tokens of `next` and `ahead` the indices of the unit after it.
  Cursor after = next;
  Indices ahead;
  if (next.tile < TILES) {
    gathered.load(p, indices[SF_SLOTS]);
    after.advance(first_unit, end_unit, tile_step);
    if (after.tile < TILES) ahead.load(p, after.unit, lane);
  }
#else
  wait_for_previous_kernel();
  Cursor late = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (late.tile < TILES) {
      ring.request_tokens(p, late.unit, s, lane);
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
      multiply_unit(total, ring.weights(slot), ring.tokens(slot), blocks_of(unit), token_offsets, lane);
      warp_sync();  // every lane has read the slot
      if (next.tile < TILES) {
        if (lane == 0) ring.request_weights(p, next.tile, next.unit, slot);
#if SF_GATHER
        gathered.store(ring.tokens(slot), lane);
#else
        ring.request_tokens(p, next.unit, slot, lane);
#endif
        next.advance(first_unit, end_unit, tile_step);
      }
#if SF_GATHER
      if (next.tile < TILES) {
        gathered.load(p, ahead);
        after.advance(first_unit, end_unit, tile_step);
        if (after.tile < TILES) ahead.load(p, after.unit, lane);
      }
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
#if SF_SPLIT > 1
    cluster_wait();  // the barriers of all peers exist
#endif
    reduce_tile(p, tile, shared, rank);
#if SF_SPLIT > 1
    barrier_wait(shared + EXCHANGE_BARRIER_OFFSET, 0);
    reduce_cluster(p, tile, shared, rank);
#endif
  }
}
