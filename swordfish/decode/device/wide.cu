// Decode for more tokens than an mma tile has: out[M, N] = x[M, K] * dequantise(words) + bias.
//
// Weight columns are the rows of operand A, dequantised into registers; tokens are the columns of operand B, read from swizzled shared
// memory. A CTA owns a range of units (a stage of k of an output tile of TOKENS rows and COLUMNS columns):
//
//   a tile, or one of SPLIT parts of it, whose sums meet in the cluster                     grid (SPLIT, tiles)
//   one of CTAS equal parts of everything (Stream-K): whole tiles, then units of the rest    grid (CTAS)
//
//   producer:      one warp fills a ring of SLOTS stages of tokens, weights, scales and zero points by tensor copies. Weights start before the
//                  previous kernel ends, tokens after it. The ring goes on from tile to tile. Its warpgroup gives its registers to the others.
//   other warps:   wait for a stage's slot, multiply, and say that they have read it. They do not wait for each other, so that warpgroups
//                  drift apart and fill each other's gaps.
#include "wide_loop.cuh"
#include "wide_output.cuh"

static_assert(SF_CTAS <= COLUMN_TILES * STAGES && (!STREAM || SF_SPLIT == 1), "every CTA has work, and only one way of splitting");

extern __shared__ __align__(1024) u8 shared_memory[];

extern "C" __global__ void __launch_bounds__(THREADS, SF_MIN_CTAS)
decode_wide(const __grid_constant__ TensorMap words, const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
            const __grid_constant__ TensorMap x, const u16* bias, u16* out, float* partials, u32* flags, int m, i64 out_stride) {
  launch_dependents();
  const Place p = place();
  const Slots slots = {shared_address(shared_memory)};
  const int row_tiles = (m + TOKENS - 1) / TOKENS;
#if SF_CTAS
  const Shares work(row_tiles, part_of_cta());
  const Range range = {work.first - work.waves * STAGES, work.end};
  Tile tile(work, row_tiles);
  const int first_stage = work.waves > 0 ? 0 : work.first % STAGES;
#else
  const Deal<SF_SPLIT> deal(STAGES);
  const Range range = {(int)blockIdx.y * STAGES + deal.first(blockIdx.x), (int)blockIdx.y * STAGES + deal.first(blockIdx.x + 1)};
  Tile tile(blockIdx.y, row_tiles);
  const int first_stage = deal.first(blockIdx.x);
#endif
  int tile_at = range.first - first_stage;  // first unit of the tile
  const int rank = SF_SPLIT == 1 ? 0 : blockIdx.x;
  const u32 inbox_barriers = slots.shared + INBOX_AT;

  if (p.warp >= WARPS) {
    const auto init = [&] {
      for (int group = 0; group < SF_WARPGROUPS && SF_SPLIT > 1; group++) {
        barrier_init(inbox_barriers + group * 8, 1);
        barrier_expect(inbox_barriers + group * 8, exchange_bytes(rank, tile.tokens(m)));
      }
    };
    const auto ready = [] {
      if (SF_SPLIT > 1) cluster_arrive_relaxed();
      wait_for_previous_kernel();  // only tokens depend on it
    };
    produce({words, scales, zeros, x}, slots, p, tile, first_stage, range, init, ready);
    if (SF_SPLIT > 1 && p.warp == WARPS) cluster_wait();
    return;
  }
  take_registers<SF_REGISTERS>();
  Bias(p, bias, tile).prefetch();
  cta_sync();
  if (SF_SPLIT > 1) cluster_arrive_relaxed();
  wait_for_previous_kernel();

  Products products(p, slots.shared);
  const u32 channel_row = products.row_at - ROWS_AT + CHANNEL_ROWS_AT;
  barrier_wait(slots.full(0), 0);
  products.begin_tile(0, channel_row);

  Position ring;
  int unit = range.first;
#pragma unroll 1
  do {
    const int end = min(range.end, tile_at + STAGES);
    multiply_units(products, slots, p.lane, ring, range, unit, end);

    products.sums.finish(channel_row);
    const Output output(p, out, out_stride, m, tile, bias);
    const int tokens = tile.tokens(m);
#if SF_CTAS
    const Pieces pieces(p, partials, flags);
    const int part = part_of_cta(), tile_end = tile_at + STAGES;
    const Shares shares(row_tiles, part);  // again: nothing that the main loop would have to keep
    if (tile_at < shares.first && shares.first < tile_end) {
      pieces.leave(products.sums.total, part, tokens, p.lane);
    } else {
      if (unit < tile_end) pieces.collect(products.sums.total, part + 1, shares.deal.part_of(tile_end - 1), tokens, p.lane);
      store_all(products.sums.total, output, tokens);
    }
    if (unit < range.end) {
      tile_at = unit - tile.advance();
      Bias(p, bias, tile).prefetch();
      products.begin_tile(ring.slot, channel_row);
    }
#elif SF_SPLIT == 1
    store_all(products.sums.total, output, tokens);
#else
    cluster_wait();
    if (SF_OVERLAY) cluster_sync();  // the rings of every CTA are idle
    exchange_and_store(products.sums.total, output, p, slots.shared, rank, tokens);
#endif
  } while (STREAM && unit < range.end);
}
