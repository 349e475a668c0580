// experts_wide: the products of experts with many rows each, on the wide kernel of decode (wide_loop.cuh).
//
// A tile is a block of up to TOKENS rows (routing.cuh) by COLUMNS columns of its expert's weights. CTAs share the tiles (tiles.cuh): as many as fit
// at a time, or one each. The ring of a CTA runs on from tile to tile, and tiles side by side are of one expert and share its weights in L2.
// (Sharing all stages evenly, as decode_wide can, is slower: a tile has few of them.)
//
//     warp WARPS           brings weights and, with SF_SORTED, rows of x, which are in the order by experts: one box of a tensor map. What the
//                          box holds beyond the block are rows of other blocks, whose products are never stored
//     warp WARPS + 1       looks up the tiles
//     warps WARPS + 2, 3   without SF_SORTED bring the rows of x of the tile's tokens, every other stage each
//     the others           multiply
//
// SF_GATED, SF_ROUTER and SF_EARLY as in ring.cu. With SF_GATED a warp's tiles 2 i and 2 i + 1 are gate and up of the same columns. With
// SF_NARROW down gives 16 bits by pair: half the traffic where all pairs together are larger than L2.
#include "swordfish/decode/device/wide_loop.cuh"

static_assert(STREAM && SF_SPLIT == 1, "a CTA goes from tile to tile");
static_assert(!SF_GATED || TILES % 2 == 0, "a warp owns gate and up");
static_assert(SF_SORTED || !SF_EARLY, "rows of x are requested with the first weights");

constexpr int N_PITCH = N_BLOCKS * 64;
constexpr int GATHER_WARPS = SF_SORTED ? 0 : 2;
constexpr int USERS = WARPS + 1 + GATHER_WARPS;
constexpr int TILES_AT = (SF_SHARED_BYTES + 15) / 16 * 16;  // of shared memory

#include "tile_output.cuh"

// What the producer asks of a tile.
struct BlockTile {
  int row, expert, column;

  SF_DEVICE explicit BlockTile(const Known& known) : row(known.first), expert(known.of_expert), column(known.column) {}

  SF_DEVICE int token_row() const { return row; }
  SF_DEVICE int word_block() const { return expert * N_BLOCKS + scale_block(); }
  SF_DEVICE int scale_block() const { return column * (COLUMNS / 64); }
  SF_DEVICE int scale_row() const { return expert * GROUPS; }
};

SF_DEVICE void fill_ring(const Operands& from, const Slots& slots, Walk walk) {
  const Producer<BlockTile> producer(from, slots, walk.lane, true);
  constexpr int FIRST = SLOTS < STAGES ? SLOTS : STAGES;  // stages whose weights do not wait for the previous kernel
  bool first = true;
  Position at;
#pragma unroll 1
  for (; walk.more(); walk.advance(), first = false) {
    Cursor<BlockTile> cursor = {BlockTile(walk.tile()), 0};
    walk.used();
    if (SF_EARLY && first) {
#pragma unroll 1
      for (; cursor.stage < FIRST; cursor.stage++) producer.request_weights(cursor, cursor.stage, false);
      wait_for_previous_kernel();
#pragma unroll 1
      for (cursor.stage = 0; cursor.stage < FIRST; cursor.stage++, at.advance()) producer.request_tokens(cursor, at.slot);
    }
#pragma unroll 1
    for (; cursor.stage < STAGES; cursor.stage++, at.advance()) {
      barrier_wait(slots.free(at.slot), at.parity ^ 1);
      producer.request_weights(cursor, at.slot, false, SF_SORTED);
      if (SF_SORTED) producer.request_tokens(cursor, at.slot);
    }
  }
}

// Rows of x by the lanes, eight to a row: tensor copies would take an instruction for each row. Nobody waits for the copies here: they say
// themselves that they are done.
SF_DEVICE void gather(const u8* x, const Slots& slots, bool mine, Walk walk) {
  constexpr int BATCH = 4;  // rows whose places are read together
  const int row = walk.lane / 8;
  x += walk.lane % 8 * 16;
  const u32 even = row * 128 + (walk.lane % 8 ^ row) * 16;  // where the lane's 16 bytes go in eight rows, and in the next four
  Position at;
#pragma unroll 1
  for (; walk.more(); walk.advance()) {
    const u32* const source = walk.tile().source + row;
#pragma unroll 1
    for (int stage = 0; stage < STAGES; stage++, at.advance(), mine = !mine) {
      if (!mine) continue;
      barrier_wait(slots.free(at.slot), at.parity ^ 1);
#pragma unroll 1
      for (int first = 0; first < TOKENS / 4; first += BATCH) {
        u32 places[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) places[i] = TOKENS / 4 % BATCH == 0 || first + i < TOKENS / 4 ? source[(first + i) * 4] : 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          if (TOKENS / 4 % BATCH != 0 && first + i >= TOKENS / 4) break;
          const u8* const from = x + ((u64)places[i] * 16 + stage * (STAGE_K * 2));
          const u32 to = slots.slot(at.slot) + (even ^ i % 2 * 64) + (first + i) * 512;
#pragma unroll
          for (int panel = 0; panel < STAGE_BLOCKS; panel++) {
            const bool there = K_BLOCKS % STAGE_BLOCKS == 0 || stage * STAGE_BLOCKS + panel < K_BLOCKS;
            copy_async16_or_zeros(to + panel * PANEL_BYTES, there ? from + panel * 128 : x, there);
          }
        }
      }
      copy_async_arrive(slots.full(at.slot));
    }
    walk.used();
  }
}

SF_DEVICE void multiply(const Place& p, const Slots& slots, const u16* bias, void* out, Walk walk) {
  const Range range = {0, walk.tiles() * STAGES};
  if (range.end == 0) return;
  Products products(p, slots.shared);
  const u32 channel_row = products.row_at - ROWS_AT + CHANNEL_ROWS_AT;
  slots.wait(Position());
  products.begin_tile(0, channel_row);

  Position ring;
  int unit = 0;
#pragma unroll 1
  for (;; walk.advance()) {
    multiply_units(products, slots, p.lane, ring, range, unit, unit + STAGES);
    products.sums.finish(channel_row);
    const Known& tile = walk.tile();
    Output(p, tile.row, out, tile, bias).store_all(products.sums.total);
    walk.used();
    if (unit == range.end) break;
    products.begin_tile(ring.slot, channel_row);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, SF_MIN_CTAS)
experts_wide(const __grid_constant__ TensorMap words, const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
             const __grid_constant__ TensorMap x_rows, const u8* x, u32 x_stride, const u16* bias, void* out, const int* schedule, const int* order,
             const float* router_weights, int top_k) {
  const Place p = place();
  const Slots slots = {shared_address(shared_memory)};
  const Routing routing = {schedule, order, nullptr, nullptr, 0, 0};
  if (threadIdx.x == 0) {
    slots.init(1 + (SF_SORTED ? 0 : 32));
    init_tiles(slots.shared);
    fence_barrier_init();
  }
  cta_sync();
  if (!SF_EARLY) {
    wait_for_previous_kernel();
    launch_dependents();
  }
  const Walk walk(slots.shared, p.lane, 0, routing.blocks() * COLUMN_TILES);
  if (p.warp >= WARPS) {
    give_registers<SF_PRODUCER_REGISTERS>();
    if (p.warp == WARPS) fill_ring({words, scales, zeros, x_rows}, slots, walk);
    if (p.warp == WARPS + 1) look_up(routing, router_weights, top_k, x_stride, walk);
    if (GATHER_WARPS && p.warp >= WARPS + 2) gather(x, slots, p.warp == WARPS + 2, walk);
  } else {
    take_registers<SF_REGISTERS>();
    if (SF_EARLY) {
      wait_for_previous_kernel();
      launch_dependents();
    }
    multiply(p, slots, bias, out, walk);
  }
}
