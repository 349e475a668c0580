// experts_dense: the products of experts with very many rows each. Their weights are 16-bit numbers in memory (dense/device/dequant.cu), [expert,
// column, k]; columns are the rows of operand A, as in wide.cu, so gate and up of a column meet in a lane.
//
// A tile is a block of up to TOKENS rows (routing.cuh) by COLUMNS columns. CTAs share the tiles: number i takes i, i + gridDim.x, ... Its ring
// runs on from tile to tile, and while one warpgroup stores its part of a tile the other one has the tensor cores to itself.
//
//     warp WARPS           brings weights and, with SF_SORTED, rows of x, which are in the order by experts
//     warp WARPS + 1       looks up the tiles and where their rows are and go: one tile ahead, loads wait for each other
//     warps WARPS + 2, 3   without SF_SORTED bring the rows of x of the tile's tokens
//     the others           multiply; a warpgroup has 128 columns
//
// The weights are those of the experts `first` to `first + count` - 1, whose blocks `begins` counts. SF_GATED, SF_ROUTER and SF_NARROW as in wide.cu.
// Every result is one sum over k in order, whichever CTA makes it.
#include "swordfish/decode/device/wide_copy.cuh"
#include "swordfish/decode/device/wgmma.cuh"
#include "routing.cuh"

#define SF_UNIT_INVERSE 1.0f  // weights are what they are

constexpr int TOKENS = SF_TOKENS;
constexpr int TILES = 2;  // m64 tiles of a warpgroup: even and odd runs of 16 columns; with SF_GATED gate and up
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS + 128;
constexpr int COLUMNS = 64 * TILES * WARPS / 4;
constexpr int N_PITCH = (SF_N + 63) / 64 * 64;
constexpr int COLUMN_TILES = (N_PITCH + COLUMNS - 1) / COLUMNS;
constexpr int STAGES = (SF_K + 63) / 64;
constexpr int SLOTS = SF_SLOTS;
constexpr int GATHER_WARPS = SF_SORTED ? 0 : 2;
constexpr int REGISTERS = 216, OTHER_REGISTERS = 64;  // of threads that multiply, and of the others
static_assert(32 * WARPS * REGISTERS + 128 * OTHER_REGISTERS <= THREADS * 168, "168 are what a thread is launched with");

struct Place { int lane, warp, c, t, group, block, part; };  // as in wide_shape.cuh

SF_DEVICE Place place() {
  Place p;
  p.lane = threadIdx.x & 31;
  p.warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  p.c = p.lane >> 2;
  p.t = p.lane & 3;
  p.group = p.warp >> 2;
  p.block = p.group * TILES + (p.warp & 3) / 2;
  p.part = (p.warp & 1) * 2;
  return p;
}

SF_DEVICE int first_row_block(const Place& p, int) { return p.part; }

// Shared memory: slots of 64 k (weights, then tokens: rows of 128 bytes, swizzled), barriers, what is known of two tiles.
constexpr int WEIGHT_BYTES = COLUMNS * 128;
constexpr int SLOT_BYTES = WEIGHT_BYTES + TOKENS * 128;
constexpr int FULL_AT = SLOTS * SLOT_BYTES;  // barriers: a slot is filled,
constexpr int FREE_AT = FULL_AT + SLOTS * 8;  // every warp has read it
constexpr int TILES_AT = FREE_AT + SLOTS * 8;
constexpr int USERS = WARPS + 1 + GATHER_WARPS;
static_assert(SLOT_BYTES % 1024 == 0 && TOKENS % 16 == 0, "swizzled rows, two warps that bring them");

#include "tile_output.cuh"
static_assert(TILES_END == SF_SHARED_BYTES, "the host and the kernel disagree about shared memory");

// A place in the ring, and the parity of its filling.
struct Position {
  int slot = 0, parity = 0;

  SF_DEVICE void advance() {
    if (++slot == SLOTS) slot = 0, parity ^= 1;
  }
};

// 64 k of the columns of a tile, 64 k to a row, 16 rows to a run, even runs before odd ones.
SF_DEVICE void load_weights(u32 slot, const TensorMap& map, int pair_of_runs, int k_block, u32 bar) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {0, 0, %2, 0, %3}], [%4];" ::"r"(slot), "l"(&map), "r"(pair_of_runs), "r"(k_block), "r"(bar) : "memory");
}

SF_DEVICE void fill_ring(const TensorMap& weights, const TensorMap& x, int first_expert, Walk walk) {
  const u64 policy = evict_normal_policy();
  const u32 shared = walk.shared;
  Position at;
  at.parity = 1;  // slots begin free
#pragma unroll 1
  for (; walk.more(); walk.advance()) {
    const Known& tile = walk.tile();
    const int runs = (tile.of_expert - first_expert) * (N_PITCH / 32) + tile.column * (COLUMNS / 32), row = tile.first;
    walk.used();
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++) {
      const u32 slot = shared + at.slot * SLOT_BYTES, full = shared + FULL_AT + at.slot * 8;
      barrier_wait(shared + FREE_AT + at.slot * 8, at.parity);
      if (walk.lane == 0) {
        barrier_expect(full, SF_SORTED ? SLOT_BYTES : WEIGHT_BYTES);
        load_weights(slot, weights, runs, stage, full);
        if (SF_SORTED) tensor_load(slot + WEIGHT_BYTES, x, row, stage, full, policy);
      }
      at.advance();
    }
  }
}

// The copies of this lane are for products to see, which read as bulk copies write.
SF_DEVICE void announce(u32 bar) {
  fence_proxy_async();
  barrier_arrive_if(true, bar);
}

// Rows of x by the lanes, eight to a row: tensor copies would take an instruction for each row. A stage is announced when the next one is under way.
SF_DEVICE void gather(const u8* x, int half, Walk walk) {
  constexpr int ROWS = TOKENS / 2, STEPS = ROWS / 4;
  const u32 shared = walk.shared;
  const int lane = walk.lane, first = half * ROWS + lane / 8;
  Position at;
  at.parity = 1;
  u32 before = 0;  // the full barrier of the stage before
#pragma unroll 1
  for (; walk.more(); walk.advance()) {
    const Known& tile = walk.tile();
    u32 source[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) source[i] = tile.source[first + i * 4];
    walk.used();
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++) {
      const u8* const from = x + stage * 128 + lane % 8 * 16;
      const u32 to = shared + at.slot * SLOT_BYTES + WEIGHT_BYTES + first * 128;
      const u32 chunk[2] = {(u32)(lane ^ first) % 8 * 16, (u32)(lane ^ first ^ 4) % 8 * 16};  // of even and odd steps
      barrier_wait(shared + FREE_AT + at.slot * 8, at.parity);
#pragma unroll
      for (int i = 0; i < STEPS; i++) copy_async16(to + i * 512 + chunk[i % 2], from + (u64)source[i] * 16);
      copy_async_commit();
      if (before) {
        copy_async_wait<1>();
        announce(before);
      }
      before = shared + FULL_AT + at.slot * 8;
      at.advance();
    }
  }
  copy_async_wait<0>();
  if (before) announce(before);
}

SF_DEVICE void multiply(const Place& p, const u16* bias, void* out, Walk walk) {
  const u32 shared = walk.shared;
  // Of the warpgroup's even runs; its odd ones are COLUMNS / 2 rows further on.
  const u64 weights = wgmma_descriptor(shared + p.group * 64 * 128), tokens = wgmma_descriptor(shared + WEIGHT_BYTES);
  float total[TILES][TOKENS / 2];
  Position at;
#pragma unroll 1
  for (; walk.more(); walk.advance()) {
    u32 before = 0;  // the free barrier of the stage before
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_wait(shared + FULL_AT + at.slot * 8, at.parity);
      const u32 from = at.slot * (SLOT_BYTES / 16);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < TILES; i++) wgmma(total[i], weights + from + i * (COLUMNS / 2 * 128 / 16) + k * 2, tokens + from + k * 2, stage + k);
      wgmma_commit();
      wgmma_wait<1>();
      barrier_arrive_if(p.lane == 0 && stage > 0, before);
      before = shared + FREE_AT + at.slot * 8;
      at.advance();
    }
    wgmma_wait<0>();
    barrier_arrive_if(p.lane == 0, before);
    const Known& tile = walk.tile();
    Output(p, tile.row, out, tile, bias).store_all(total);
    walk.used();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
experts_dense(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap x_rows, const u8* x, u32 x_stride, const u16* bias, void* out,
              const int* schedule, const int* order, const int* begins, const float* router_weights, int first, int count, int top_k) {
  const Place p = place();
  const u32 shared = shared_address(shared_memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(shared + FULL_AT + i * 8, 1 + 32 * GATHER_WARPS);
      barrier_init(shared + FREE_AT + i * 8, WARPS);
    }
    init_tiles(shared);
    fence_barrier_init();
  }
  cta_sync();
  wait_for_previous_kernel();
  launch_dependents();
  const Walk walk(shared, p.lane, load_fresh(begins) * COLUMN_TILES, load_fresh(begins + count) * COLUMN_TILES);
  if (p.warp >= WARPS) {
    give_registers<OTHER_REGISTERS>();
    if (p.warp == WARPS) fill_ring(weights, x_rows, first, walk);
    if (p.warp == WARPS + 1) look_up({schedule, order, nullptr, nullptr, 0, 0}, router_weights, top_k, x_stride, walk);
    if (GATHER_WARPS && p.warp >= WARPS + 2) gather(x, p.warp - WARPS - 2, walk);
  } else {
    take_registers<REGISTERS>();
    multiply(p, bias, out, walk);
  }
}
