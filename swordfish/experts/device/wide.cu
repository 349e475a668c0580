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
#include "activation.cuh"
#include "routing.cuh"

static_assert(!STREAM && SF_SPLIT == 1, "one CTA makes a tile");
static_assert(!SF_GATED || TILES % 2 == 0, "a warp owns gate and up");

constexpr int N_PITCH = N_BLOCKS * 64;
constexpr int ROWS_AT_END = (SF_SHARED_BYTES + 15) / 16 * 16;  // of shared memory: a Row for each row of the block

extern __shared__ __align__(1024) u8 shared_memory[];

// Known long before the output: loads on the way there would wait for each other.
struct alignas(8) Row { int pair; float weight; };

SF_DEVICE Row& row_at(int row) { return ((Row*)(shared_memory + ROWS_AT_END))[row]; }

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

// From sums to output; a lane has rows (weight columns) c and 8 + c, tokens 2t and 2t + 1 of each 8x8 matrix.
struct Output {
  void* out;
  int start, rows;    // of the block
  int c, t;
  int column;         // in its expert, of row c of the lane's first tile
  int stored_column;  // 16 bits: output column of the lane's pair of columns after the transposition
  float bias[TILES][2];  // of rows c and 8 + c

  SF_DEVICE Output(const Place& p, void* to, const BlockTile& tile, const u16* biases) {
    out = to;
    start = tile.at.start(), rows = tile.at.rows();
    c = p.c, t = p.t;
    const int block = tile.scale_block() + p.block;
    column = block * 64 + first_row_block(p, p.lane >> 3) * 16 + p.c;
    stored_column = (SF_GATED ? block * 32 + first_row_block(p, p.t) / 2 * 16 : block * 64 + first_row_block(p, p.t) * 16) + p.t * 2;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      const int n = column + i * 8;
      bias[i / 2][i % 2] = SF_BIAS && n < N_PITCH ? low_to_float(load_global_u16(biases + (i64)tile.at.group.expert * N_PITCH + n)) : 0.0f;
    }
  }

  // Of tokens 8 n + 2t and the next.
  SF_DEVICE void load_weights(float (&weight)[2], int n) const {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = n * 8 + 2 * t + e;
      weight[e] = SF_ROUTER && row < rows ? row_at(row).weight : 1.0f;
    }
  }

  // Tokens 8 n to 8 n + 7 of tile i and tile i + 1.
  SF_DEVICE void store_gated(const float (&total)[TILES][TOKENS / 2], int i, int n) const {
    float weight[2];
    load_weights(weight, n);
    u32 half[2];
#pragma unroll
    for (int lower = 0; lower < 2; lower++) {
      float h[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int at = n * 4 + lower * 2 + e;
        const float scale = SF_UNIT_INVERSE * weight[e];
        h[e] = activate(fmaf(total[i][at], scale, bias[i][lower]), fmaf(total[i + 1][at], scale, bias[i + 1][lower]));
      }
      half[lower] = transpose_matrix(round_pair(h[0], h[1]));  // now columns 2t and 2t + 1 of token c
    }
    const int row = n * 8 + c, to = stored_column + i / 2 * 16;
    if (row >= rows || to >= N_PITCH / 2) return;
    u16* at = (u16*)out + (i64)(start + row) * (N_PITCH / 2) + to;
    *(u32*)at = half[0];
    *(u32*)(at + 8) = half[1];
  }

  // Tokens 8 n to 8 n + 7 of all tiles.
  SF_DEVICE void store_sums(const float (&total)[TILES][TOKENS / 2], int n) const {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = n * 8 + 2 * t + e;
      if (row >= rows) continue;
      const Row kept = row_at(row);
      float* at = (float*)out + (i64)kept.pair * N_PITCH + column;
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
          if (column + i * 16 + lower * 8 < N_PITCH) at[i * 16 + lower * 8] = fmaf(total[i][n * 4 + lower * 2 + e], SF_UNIT_INVERSE, bias[i][lower]) * kept.weight;
        }
    }
  }

  // The same, rounded.
  SF_DEVICE void store_narrow(const float (&total)[TILES][TOKENS / 2], int n) const {
    float weight[2];
    load_weights(weight, n);
    const int row = n * 8 + c, pair = row < rows ? row_at(row).pair : 0;  // after the transposition
    u16* at = (u16*)out + (i64)pair * N_PITCH + stored_column;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int lower = 0; lower < 2; lower++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) v[e] = fmaf(total[i][n * 4 + lower * 2 + e], SF_UNIT_INVERSE, bias[i][lower]) * weight[e];
        const u32 half = transpose_matrix(round_pair(v[0], v[1]));
        if (row < rows && stored_column + i * 16 + lower * 8 < N_PITCH) *(u32*)(at + i * 16 + lower * 8) = half;
      }
  }

  SF_DEVICE void store_all(const float (&total)[TILES][TOKENS / 2]) const {
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
      if (n * 8 >= rows) continue;
      if constexpr (SF_GATED) {
#pragma unroll
        for (int i = 0; i < TILES; i += 2) store_gated(total, i, n);
      } else if constexpr (SF_NARROW) {
        store_narrow(total, n);
      } else {
        store_sums(total, n);
      }
    }
  }
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
    row_at(row) = {pair, SF_ROUTER ? router_weights[pair] : 1.0f};
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
  Output(p, out, tile, bias).store_all(products.sums.total);
}
