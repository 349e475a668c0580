// experts_wide: the products of experts with many rows each, on the wide kernel of decode (wide_loop.cuh).
//
// A CTA makes one output tile: a block of up to TOKENS rows (routing.cuh) by COLUMNS columns of its expert's weights. CTAs side by side work
// on blocks of one expert and share its weights in L2. (Sharing all stages evenly among as many CTAs as fit, as decode_wide can, is slower:
// nothing runs beside the output of a tile then, and tiles are many and short.)
// x is in the order by experts: the rows of a block are one box of a tensor map. What the box holds beyond them are rows of other blocks,
// whose products land in columns of the tile that are never stored.
//
// SF_GATED, SF_ROUTER and SF_EARLY as in ring.cu. With SF_GATED a warp's tiles 2 i and 2 i + 1 are gate and up of the same columns. With
// SF_NARROW down gives 16 bits by pair: half the traffic where all pairs together are larger than L2.
#include "swordfish/decode/device/wide_loop.cuh"
#include "routing.cuh"

static_assert(!STREAM && SF_SPLIT == 1, "one CTA makes a tile");
static_assert(!SF_GATED || TILES % 2 == 0, "a warp owns gate and up");

constexpr int N_PITCH = N_BLOCKS * 64;
constexpr int ROWS_AT_END = (SF_SHARED_BYTES + 15) / 16 * 16;  // of shared memory: a Row for each row of the block

extern __shared__ __align__(1024) u8 shared_memory[];

#include "tile_output.cuh"

SF_DEVICE Row* kept_rows() { return (Row*)(shared_memory + ROWS_AT_END); }

struct BlockTile {
  ExpertTile<TOKENS, COLUMN_TILES> at;

  SF_DEVICE BlockTile(const Routing& routing, int index) : at(routing, index) {}
  SF_DEVICE int advance() { return 0; }  // there is no other

  SF_DEVICE int token_row() const { return at.start(); }
  SF_DEVICE int word_block() const { return at.group.expert * N_BLOCKS + scale_block(); }
  SF_DEVICE int scale_block() const { return at.column * (COLUMNS / 64); }
  SF_DEVICE int scale_row() const { return at.group.expert * GROUPS; }
  SF_DEVICE bool shares_weights() const { return true; }
};

extern "C" __global__ void __launch_bounds__(THREADS, SF_MIN_CTAS)
experts_wide(const __grid_constant__ TensorMap words, const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
             const __grid_constant__ TensorMap x, const u16* bias, void* out, const int* schedule, const int* order, const float* router_weights) {
  const Place p = place();
  const Slots slots = {shared_address(shared_memory)};
  const Routing routing = {schedule, order, nullptr, nullptr, 0, 0};

  if (!SF_EARLY) {
    wait_for_previous_kernel();
    launch_dependents();
  }
  if (blockIdx.x >= routing.blocks() * COLUMN_TILES) {
    if (SF_EARLY) wait_for_previous_kernel();
    return;
  }
  const BlockTile tile(routing, blockIdx.x);
  const Range range = {0, STAGES};

  if (p.warp >= WARPS) {
    const auto ready = [] {
      if (SF_EARLY) wait_for_previous_kernel();  // only tokens depend on it
    };
    produce({words, scales, zeros, x}, slots, p, tile, 0, range, [] {}, ready);
    return;
  }
  take_registers<SF_REGISTERS>();
  cta_sync();
  if (SF_EARLY) {
    wait_for_previous_kernel();
    launch_dependents();
  }
  for (int row = threadIdx.x; (SF_ROUTER || !SF_GATED) && row < tile.at.rows(); row += 32 * WARPS) {
    const int pair = routing.pair(tile.at.start() + row);
    kept_rows()[row] = {pair, SF_ROUTER ? router_weights[pair] : 1.0f};
  }

  Products products(p, slots.shared);
  const u32 channel_row = products.row_at - ROWS_AT + CHANNEL_ROWS_AT;
  barrier_wait(slots.full(0), 0);
  products.begin_tile(0, channel_row);

  Position ring;
  int unit = 0;
  multiply_units(products, slots, p.lane, ring, range, unit, STAGES);
  products.sums.finish(channel_row);
  multipliers_sync();  // rows
  Output(p, kept_rows(), out, tile.at, bias).store_all(products.sums.total);
}
