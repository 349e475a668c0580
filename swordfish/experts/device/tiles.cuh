// Tiles that CTAs share: number i takes tiles i, i + gridDim.x, ... One warp looks up the next tile (look_up) while the others are at the one
// before, for the loads that it takes wait for each other; what it finds is in shared memory, two tiles by turns.
//
// The includer says what a tile is (TOKENS, COLUMN_TILES), how many warps wait for what is known of one (USERS), and where in shared memory
// there is room (TILES_AT, a multiple of 16).
#pragma once
#include "swordfish/decode/device/wide_copy.cuh"
#include "routing.cuh"

// Where a row of the output goes, and its router weight: loads on the way there would wait for each other.
struct alignas(8) Row { int pair; float weight; };

struct Known {
  int of_expert, first, count, column;
  Row row[TOKENS];
  u32 source[TOKENS];  // where the token's row of x is, in 16 bytes

  SF_DEVICE int expert() const { return of_expert; }
  SF_DEVICE int start() const { return first; }
  SF_DEVICE int rows() const { return count; }
};

constexpr int TOGETHER = 16;  // blocks that take all columns before others of their expert do
constexpr int KNOWN_AT = TILES_AT;  // barriers: a Known is there,
constexpr int USED_AT = KNOWN_AT + 2 * 8;  // every warp has used it
constexpr int KNOWN_TILES_AT = USED_AT + 2 * 8;
constexpr int TILES_END = KNOWN_TILES_AT + 2 * sizeof(Known);
static_assert(TILES_AT % 16 == 0 && sizeof(Known) % 16 == 0, "words of 16 bytes");

extern __shared__ __align__(1024) u8 shared_memory[];

// Whose turn it is of two, and the parity of its filling.
struct Turn {
  int of = 0, parity = 0;

  SF_DEVICE void advance() {
    of ^= 1;
    if (of == 0) parity ^= 1;
  }
};

SF_DEVICE void init_tiles(u32 shared) {
  for (int i = 0; i < 2; i++) {
    barrier_init(shared + KNOWN_AT + i * 8, 32);
    barrier_init(shared + USED_AT + i * 8, USERS);
  }
}

// What every role walks along: the tiles of its CTA as they become known.
struct Walk {
  u32 shared;
  int lane, index, end;  // tile numbers
  Turn turn;

  SF_DEVICE Walk(u32 shared_at, int own_lane, int first, int tiles_end) : shared(shared_at), lane(own_lane), index(first + blockIdx.x), end(tiles_end) {}

  SF_DEVICE bool more() const { return index < end; }
  SF_DEVICE int tiles() const { return more() ? (end - index + gridDim.x - 1) / gridDim.x : 0; }
  SF_DEVICE const Known& tile() const {
    barrier_wait(shared + KNOWN_AT + turn.of * 8, turn.parity);
    return ((const Known*)(shared_memory + KNOWN_TILES_AT))[turn.of];
  }
  SF_DEVICE void used() const {  // by the whole warp
    warp_sync();
    barrier_arrive_if(lane == 0, shared + USED_AT + turn.of * 8);
  }
  SF_DEVICE void advance() {
    index += gridDim.x;
    turn.advance();
  }
};

SF_DEVICE void look_up(const Routing& routing, const float* router_weights, int top_k, u32 x_stride, Walk walk) {
#pragma unroll 1
  for (; walk.more(); walk.advance()) {
    const ExpertTile<TOKENS, COLUMN_TILES, TOGETHER> tile(routing, walk.index);
    const int rows = tile.rows();
    barrier_wait(walk.shared + USED_AT + walk.turn.of * 8, walk.turn.parity ^ 1);
    Known& to = ((Known*)(shared_memory + KNOWN_TILES_AT))[walk.turn.of];
    if (walk.lane == 0) to.of_expert = tile.group.expert, to.first = tile.start(), to.count = rows, to.column = tile.column;
#pragma unroll 2
    for (int row = walk.lane; row < TOKENS && (SF_ROUTER || !SF_GATED || !SF_SORTED); row += 32) {
      const int pair = routing.pair(tile.start() + min(row, rows - 1));  // beyond the block its last row, whose products are not stored
      to.row[row] = {pair, SF_ROUTER ? router_weights[pair] : 1.0f};
      if (!SF_SORTED) to.source[row] = pair / top_k * x_stride;
    }
    barrier_arrive_if(true, walk.shared + KNOWN_AT + walk.turn.of * 8);
  }
}
