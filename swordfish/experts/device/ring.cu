// experts_ring: the products of experts with few rows each, at the speed of reading their weights.
//
// The ring kernel of decode (ring_unit.cuh) over items: a block of rows (routing.cuh) times a tile of SF_COLS x 64 columns of its expert's
// weights. A cluster of SF_SPLIT CTAs takes every gridDim.x / SF_SPLIT-th item; the rings of its warps run on from item to item. Items of
// one expert follow each other, so blocks that share weights run side by side and share them in L2.
//
//     SF_GATED 1   gate_up: out[place, column / 2] = activation(gate, up), 16 bits; gate and up alternate every 16 columns
//     SF_GATED 0   down:    out[pair, column] in fp32
//     SF_ROUTER    sums are multiplied by the pair's router weight: before the bias in gate_up (the weight of the input), after it in down
//     SF_SORTED    rows of x are in the order by experts; else row i belongs to token i
//     SF_EARLY     the schedule was complete before the previous kernel began: weights are requested before that one has ended
//
// What a CTA will do is planned in shared memory first: its items and, for each row of an item, where the tokens lie, the pair and the
// router weight.
//
// Every MoE kernel waits for its predecessor before it lets its successor start: a kernel may rely on all but the one before it.
#include "swordfish/decode/device/ring_unit.cuh"
#include "activation.cuh"
#include "routing.cuh"

struct alignas(16) Item { int expert, rows, start, tile; };
struct alignas(16) Row { int source, pair; float weight; int unused; };

constexpr int ITEM_BYTES = 16 + SF_ROWS * 16;
constexpr int SHARED_BYTES = round_up(RING_END, 16) + SF_ITEMS * ITEM_BYTES;
constexpr int PLAN_OFFSET = SHARED_BYTES - SF_ITEMS * ITEM_BYTES;
static_assert(!SF_NARROW, "few rows: fp32 by pair");
static_assert(SHARED_BYTES == SF_SHARED_BYTES, "experts/kernels.py and this file disagree on the shared memory layout");

constexpr i64 EXPERT_WORDS = (i64)N_BLOCKS * K_BLOCKS * BLOCK_BYTES;  // bytes
constexpr i64 EXPERT_SCALES = (i64)GROUPS * N_PITCH;

// A piece is what one thread finishes: a quad, or a gate quad and its up quad, 16 columns apart.
constexpr int PARTS = SF_GATED ? 2 : 1;
constexpr int PIECES = QUADS / PARTS;
constexpr int OWNED_PIECES = ceil_div(PIECES, SF_SPLIT);
static_assert(OWNED_PIECES * PARTS <= OWNED_QUADS, "SF_SPLIT is a power of two");
SF_DEVICE int quad_of(int piece, int part) { return SF_GATED ? piece / 4 * 8 + piece % 4 + part * 4 : piece; }

struct Operands {
  Weights weights;
  const u16 *bias, *x;
  void* out;
  i64 x_stride;  // elements

  SF_DEVICE Weights of(int expert) const {
    return {weights.words + expert * EXPERT_WORDS, weights.scales + expert * EXPERT_SCALES, weights.zeros + expert * EXPERT_SCALES};
  }
};

// ---- the plan of a CTA -----------------------------------------------------------------------------------------------------------

extern __shared__ __align__(128) u8 shared_memory[];

SF_DEVICE Item& item_at(int i) { return *(Item*)(shared_memory + PLAN_OFFSET + i * ITEM_BYTES); }
SF_DEVICE Row& row_at(int i, int row) { return *(Row*)(shared_memory + PLAN_OFFSET + i * ITEM_BYTES + 16 + row * 16); }

// Returns the number of items.
SF_DEVICE int plan_items(const Routing& routing, int cluster, int clusters) {
  const int all = routing.blocks() * TILES;
  const int items = all > cluster ? (all - 1 - cluster) / clusters + 1 : 0;
  for (int i = threadIdx.x; i < items; i += SF_WARPS * 32) {
    const ExpertTile<SF_ROWS, TILES> tile(routing, cluster + i * clusters);
    item_at(i) = {tile.group.expert, tile.rows(), tile.start(), tile.column};
  }
  __syncthreads();
  return items;
}

SF_DEVICE void plan_rows(const Routing& routing, const float* router_weights, int top_k, int items) {
  for (int i = threadIdx.x; i < items * SF_ROWS; i += SF_WARPS * 32) {
    const int row = i % SF_ROWS;
    const Item item = item_at(i / SF_ROWS);
    if (row >= item.rows) continue;
    const int place = item.start + row, pair = routing.pair(place);
    row_at(i / SF_ROWS, row) = {SF_SORTED ? place : pair / top_k, pair, SF_ROUTER ? router_weights[pair] : 1.0f, 0};
  }
  __syncthreads();
}

// Where the tokens of an item's rows lie.
struct Tokens {
  const Operands& operands;
  int item;

  struct Rows {
    const u16* x;
    i64 stride;
    const Row* first;
    SF_DEVICE const u16* row(int i) const { return x + first[i].source * stride; }
  };
  SF_DEVICE Rows from(int row, int k) const { return {operands.x + k, operands.x_stride, &row_at(item, row)}; }
};

// Walks the units of a warp through the items of its CTA.
struct Cursor {
  int item, unit;

  SF_DEVICE void skip_empty(int items) {
    while (SF_DIRECT && item < items && item_at(item).rows == 0) item++;
  }
  SF_DEVICE void advance(int first_unit, int end_unit, int items) {
    unit += SF_WARPS;
    if (unit >= end_unit) {
      unit = first_unit;
      item++;
      skip_empty(items);
    }
  }
};

// ---- from sums to output ---------------------------------------------------------------------------------------------------------

// `sum` holds the quads of a piece.
SF_DEVICE void finish(const Operands& p, const Item& item, int index, int row, int piece, const Floats4 (&sum)[PARTS]) {
  const Row where = row_at(index, row);
  const int column = item.tile * TILE_N + quad_of(piece, 0) * 4;
  if (SHORT_TILE && column >= N_PITCH) return;
  float v[PARTS][4];
#pragma unroll
  for (int part = 0; part < PARTS; part++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      v[part][e] = sum[part].v[e];
      if (SF_ROUTER && SF_GATED) v[part][e] *= where.weight;
      if (SF_BIAS) v[part][e] += low_to_float(load_global_u16(p.bias + (i64)item.expert * N_PITCH + column + part * 16 + e));
      if (SF_ROUTER && !SF_GATED) v[part][e] *= where.weight;
    }
#if SF_GATED
  u32 h[4];
#pragma unroll
  for (int e = 0; e < 4; e++) h[e] = round_to_half(activate(v[0][e], v[1][e]));
  u16* out = (u16*)p.out + (i64)(item.start + row) * (N_PITCH / 2) + item.tile * (TILE_N / 2) + piece * 4;
  *(u64*)out = (u64)(h[0] | h[1] << 16) | (u64)(h[2] | h[3] << 16) << 32;
#else
  *(Floats4*)((float*)p.out + (i64)where.pair * N_PITCH + column) = {v[0][0], v[0][1], v[0][2], v[0][3]};
#endif
}

SF_DEVICE u32 exchange_place(u32 shared, int buffer, int rank, int row, int piece) {
  return shared + EXCHANGE_OFFSET + buffer * EXCHANGE_BYTES + ((rank * SF_ROWS + row) * OWNED_QUADS + piece / SF_SPLIT * PARTS) * 16;
}

// Sums the warps of this CTA; with a split K the sums go on to the CTA of the cluster that owns the piece.
SF_DEVICE void reduce_warps(const Operands& p, const Item& item, int index, int done, u32 shared, int rank) {
  for (int i = threadIdx.x; i < item.rows * PIECES; i += SF_WARPS * 32) {
    const int row = i / PIECES, piece = i % PIECES;
    Floats4 sum[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      sum[part] = sum_quads<SF_WARPS>(shared + PARTIAL_OFFSET + row * PARTIAL_PITCH * 4 + quad_of(piece, part) * 16, PARTIAL_BYTES);
#if SF_SPLIT == 1
    finish(p, item, index, row, piece, sum);
#else
    const u32 owner = piece % SF_SPLIT, place = peer_address(exchange_place(shared, done & 1, rank, row, piece), owner);
    const u32 barrier = peer_address(shared + EXCHANGE_BARRIER_OFFSET + (done & 1) * 8, owner);
#pragma unroll
    for (int part = 0; part < PARTS; part++) store_async(place + part * 16, sum[part], barrier);
#endif
  }
}

#if SF_SPLIT > 1
// Sums the CTAs of the cluster for the pieces that this one owns. Two buffers are enough: sums of the item after next come only after this
// CTA has sent those of the next one, which it does when it is done here.
SF_DEVICE void reduce_cluster(const Operands& p, const Item& item, int index, int done, u32 shared, int rank) {
  const int owned = (PIECES - rank + SF_SPLIT - 1) / SF_SPLIT;
  const u32 barrier = shared + EXCHANGE_BARRIER_OFFSET + (done & 1) * 8;
  if (threadIdx.x == 0) barrier_expect(barrier, item.rows * owned * SF_SPLIT * PARTS * 16);
  barrier_wait(barrier, done / 2 & 1);
  for (int i = threadIdx.x; i < item.rows * owned; i += SF_WARPS * 32) {
    const int row = i / owned, piece = i % owned * SF_SPLIT + rank;
    Floats4 sum[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      sum[part] = sum_quads<SF_SPLIT>(exchange_place(shared, done & 1, 0, row, piece) + part * 16, SF_ROWS * OWNED_QUADS * 16);
    finish(p, item, index, row, piece, sum);
  }
}
#endif

// ---- the kernel ------------------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(SF_WARPS * 32, SF_MIN_CTAS)
    experts_ring(const u8* words, const u16* scales, const u16* zeros, const u16* bias, const u16* x, i64 x_stride, void* out, const int* schedule,
                 const int* order, const Id* ids, const int* expert_map, const float* router_weights, int pairs, int global_experts, int top_k) {
  const u32 shared = shared_address(shared_memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int rank = blockIdx.x % SF_SPLIT;
  const Operands p = {{words, scales, zeros}, bias, x, out, x_stride};
  const Routing routing = {schedule, order, ids, expert_map, pairs, global_experts};
  const int first_unit = rank * UNITS / SF_SPLIT + warp, end_unit = (rank + 1) * UNITS / SF_SPLIT;

  const Ring ring = {shared + warp * RING_BYTES, shared + BARRIER_OFFSET + warp * SF_SLOTS * 8, evict_first_policy()};
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < SF_SLOTS; s++) barrier_init(ring.barriers + s * 8, 1);
    if (SF_SPLIT > 1 && warp == 0) {
      barrier_init(shared + EXCHANGE_BARRIER_OFFSET, 1);
      barrier_init(shared + EXCHANGE_BARRIER_OFFSET + 8, 1);
    }
    fence_barrier_init();
  }
  warp_sync();
#if SF_SPLIT > 1
  cluster_arrive_relaxed();
#endif

  if (!SF_EARLY) {
    wait_for_previous_kernel();
    launch_dependents();
  }
  const int items = plan_items(routing, blockIdx.x / SF_SPLIT, gridDim.x / SF_SPLIT);

  // A warp without units (K is shorter than the CTA is wide) only takes part in the reduction.
  Cursor start = {first_unit < end_unit ? 0 : items, first_unit};
  start.skip_empty(items);
  Cursor next = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (next.item >= items) break;
    const Item item = item_at(next.item);
    if (lane == 0) ring.request_weights(p.of(item.expert), item.tile, next.unit, s);
    next.advance(first_unit, end_unit, items);
  }
  plan_rows(routing, router_weights, top_k, items);
  if (SF_EARLY) {
    wait_for_previous_kernel();
    launch_dependents();
  }
  Cursor late = start;
#pragma unroll
  for (int s = 0; s < SF_SLOTS; s++) {
    if (late.item < items) {
      ring.request_tokens(Tokens{p, late.item}, item_at(late.item).rows, late.unit, s, lane);
      late.advance(first_unit, end_unit, items);
    }
    copy_async_commit();
  }

  int slot = 0, done = 0;
  u32 parity = 0;
  for (int index = 0; index < items; index++) {
    const Item item = item_at(index);
    if (SF_DIRECT && item.rows == 0) continue;
    // Lanes of rows that do not exist read the last row instead: their products land in columns that are never stored.
    u32 token_offsets[TOKEN_TILES];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) token_offsets[t] = min(8 * t + (lane & 7), item.rows - 1) * TOKEN_PITCH + (lane >> 3) * 16;
    Accumulators total = {};
    for (int unit = first_unit; unit < end_unit; unit += SF_WARPS) {
      copy_async_wait<SF_SLOTS - 1>();
      barrier_wait(ring.barriers + slot * 8, parity);
      warp_sync();  // the other lanes' tokens
      multiply_unit(total, ring.weights(slot), ring.tokens(slot), blocks_of(unit), columns_of(item.tile), token_offsets, lane);
      warp_sync();  // every lane has read the slot
      if (next.item < items) {
        const Item ahead = item_at(next.item);
        if (lane == 0) ring.request_weights(p.of(ahead.expert), ahead.tile, next.unit, slot);
        ring.request_tokens(Tokens{p, next.item}, ahead.rows, next.unit, slot, lane);
        next.advance(first_unit, end_unit, items);
      }
      copy_async_commit();
      if (++slot == SF_SLOTS) {
        slot = 0;
        parity ^= 1;
      }
    }

    if (done > 0) __syncthreads();  // the previous item's partial sums have been read
    store_partial(total, shared + PARTIAL_OFFSET + warp * PARTIAL_BYTES, item.rows, lane);
    __syncthreads();
#if SF_SPLIT > 1
    if (done == 0) cluster_wait();  // the barriers of all peers exist
#endif
    reduce_warps(p, item, index, done, shared, rank);
#if SF_SPLIT > 1
    reduce_cluster(p, item, index, done, shared, rank);
#endif
    done++;
  }
#if SF_SPLIT > 1
  if (done == 0) cluster_wait();
#endif
}
