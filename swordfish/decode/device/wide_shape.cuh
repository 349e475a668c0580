// Sizes of the wide kernel, all known when it is compiled, and where a lane's rows lie.
//
// Weight columns are the rows of operand A: a warpgroup owns SF_TILES m64 tiles, a warp one m16 row block of each. A lane's 16 bytes
// (int4) or 32 bytes (int8) of a k16 slice hold four such row blocks, j = 0..3; with fewer than four tiles a warp reads only a part of
// them, and lanes of different row pairs read different parts (first_word), so that a load never meets a bank conflict (int4).
#pragma once
#include "ptx.cuh"

constexpr int TOKENS = SF_TOKENS;
constexpr int TILES = SF_TILES;
constexpr int WARPS = 4 * SF_WARPGROUPS;  // that multiply
constexpr int THREADS = 32 * WARPS + 128;  // and a warpgroup whose first warp fills the ring
constexpr int COLUMNS = 64 * TILES * SF_WARPGROUPS;
constexpr int N_BLOCKS = (SF_N + 63) / 64;
constexpr int K_BLOCKS = (SF_K + 63) / 64;

constexpr int STAGE_K = SF_STAGE_K;
constexpr int STAGE_BLOCKS = STAGE_K / 64;
constexpr int STAGES = (K_BLOCKS + STAGE_BLOCKS - 1) / STAGE_BLOCKS;
constexpr int SLOTS = SF_SLOTS;

// Work is counted in units: stage s of output tile t is unit t * STAGES + s. Tiles of the same columns follow each other, so that CTAs side
// by side share their weights in L2. A CTA owns a range of units.
constexpr bool STREAM = SF_CTAS > 0;  // Stream-K: as much for every CTA, in ranges that may cross tiles. Otherwise a range lies in one tile.

constexpr int COLUMN_TILES = (N_BLOCKS + COLUMNS / 64 - 1) / (COLUMNS / 64);

// `total` units dealt out to `parts` as evenly as possible.
template <int parts> struct Deal {
  int length, longer;  // the first `longer` parts have one unit more than `length`

  SF_DEVICE Deal(int total) : length(total / parts), longer(total % parts) {}
  SF_DEVICE int first(int part) const { return part * length + min(part, longer); }
  SF_DEVICE int part_of(int unit) const {
    const int in_longer = longer * (length + 1);
    return unit < in_longer ? unit / (length + 1) : longer + (unit - in_longer) / length;
  }
};

#if SF_CTAS
// In reverse: a CTA waits only for parts behind its own, whose CTAs have started before it. So it cannot wait for ever.
SF_DEVICE int part_of_cta() { return SF_CTAS - 1 - blockIdx.x; }

// What a CTA of Stream-K does: first whole tiles, which neighbours multiply side by side so that what they read is in L2, then its part of the
// tiles that are left, dealt out evenly. Those are the rest of the last wave, with the wave before it if the rest alone would be cut into
// pieces that are not worth merging. Units are counted from the first dealt tile on, those of whole tiles before it.
constexpr int WORTH_MERGING = 1280;  // k of a part

struct Shares {
  int waves;           // of whole tiles: tile SF_CTAS * w + part in wave w
  Deal<SF_CTAS> deal;  // of the units of the other tiles
  int part, first, end;

  SF_DEVICE Shares(int row_tiles, int cta) : waves(whole_waves(row_tiles)), deal((row_tiles * COLUMN_TILES - waves * SF_CTAS) * STAGES), part(cta) {
    first = deal.first(part);
    end = deal.first(part + 1);
  }

 private:
  SF_DEVICE static int whole_waves(int row_tiles) {
    if (TOKENS <= 64 || row_tiles == 1) return 0;  // CTAs with one tile of rows share no weights
    const int tiles = row_tiles * COLUMN_TILES, waves = tiles / SF_CTAS, rest = tiles - waves * SF_CTAS;
    return max(rest * STAGES * STAGE_K < WORTH_MERGING * SF_CTAS ? waves - 1 : waves, 0);
  }
};
#endif

// An output tile: TOKENS rows of x by COLUMNS columns of W. Any tile tells where its operands begin (rows of tokens and of scales, blocks of
// 64 columns in the words and in a row of scales), whether others read its weights, too, and at which stage of which tile a CTA goes on.
struct Tile {
  int row, column, row_tiles;  // tile coordinates
#if SF_CTAS
  int waves;  // whole tiles to come, this one included

  SF_DEVICE Tile(const Shares& s, int tiles_of_rows) : row_tiles(tiles_of_rows), waves(s.waves) { place(waves > 0 ? s.part : s.first / STAGES); }

  // The stage at which the next tile is begun.
  SF_DEVICE int advance() {
    if (waves == 0) {
      if (++row == row_tiles) {
        row = 0;
        column++;
      }
    } else if (--waves > 0) {
      place(column * row_tiles + row + SF_CTAS);
    } else {
      const Shares shares(row_tiles, part_of_cta());
      place(shares.waves * SF_CTAS + shares.first / STAGES);
      return shares.first % STAGES;
    }
    return 0;
  }
#else
  SF_DEVICE Tile(int index, int tiles_of_rows) : row_tiles(tiles_of_rows) { place(index); }
  SF_DEVICE int advance() { return 0; }  // there is no other
#endif
  SF_DEVICE int tokens(int m) const { return min(TOKENS, m - row * TOKENS); }  // rows that exist

  SF_DEVICE int token_row() const { return row * TOKENS; }
  SF_DEVICE int word_block() const { return column * (COLUMNS / 64); }
  SF_DEVICE int scale_block() const { return column * (COLUMNS / 64); }
  SF_DEVICE int scale_row() const { return 0; }
  SF_DEVICE bool shares_weights() const { return row_tiles > 1; }

 private:
  SF_DEVICE void place(int index) {
    row = 0, column = index;
    if (row_tiles > 1) {  // a division costs a small launch a tenth of a microsecond
      column = index / row_tiles;
      row = index - column * row_tiles;
    }
  }
};

constexpr int BLOCK_BYTES = 512 * SF_BITS;  // k64 x n64
constexpr int SLICE_BYTES = BLOCK_BYTES / 4;  // k16 x n64
constexpr int LANE_WORDS = SF_BITS / 4;  // of one m16k16 fragment

// A segment is the longest run of k with one scale that divides both the stage and the group: sums are folded once per segment.
SF_DEVICE constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }
constexpr bool CHANNELWISE = SF_GROUP == 0;
constexpr int SEGMENT = CHANNELWISE ? STAGE_K : common_divisor(SF_GROUP, STAGE_K);
constexpr int SEGMENTS = STAGE_K / SEGMENT;
constexpr int GROUPS = CHANNELWISE ? 1 : (SF_K + SF_GROUP - 1) / SF_GROUP;
constexpr int SCALE_ROWS = CHANNELWISE ? 0 : SEGMENTS;  // staged with the weights; a single row is staged once

// Shared memory: the ring, partial sums of the cluster, one row of scales, barriers. A slot of the ring holds one stage of the
// tokens (panels of 64 k, 128-byte rows, swizzled) and of the weights, then the rows of scales and zero points.
constexpr int PANEL_BYTES = TOKENS * 128;
constexpr int WEIGHTS_AT = STAGE_BLOCKS * PANEL_BYTES;
constexpr int ROWS_AT = WEIGHTS_AT + COLUMNS / 64 * STAGE_BLOCKS * BLOCK_BYTES;
constexpr int ROW_BYTES = COLUMNS * 2;
constexpr int ROW_KINDS = SF_ZEROS == 0 ? 1 : 2;  // scales, zero points
constexpr int SLOT_BYTES = (ROWS_AT + ROW_KINDS * SCALE_ROWS * ROW_BYTES + 1023) / 1024 * 1024;
constexpr int RING_BYTES = SLOTS * SLOT_BYTES;

constexpr int SLICES = TILES * TOKENS / 8;  // 16-byte fragments of sums a lane holds
constexpr int SLICES_OWNED = (SLICES + SF_SPLIT - 1) / SF_SPLIT;
constexpr int EXCHANGE_BYTES = SF_SPLIT == 1 ? 0 : SF_WARPGROUPS * SF_SPLIT * SLICES_OWNED * 2048;
constexpr int EXCHANGE_AT = SF_OVERLAY ? 0 : RING_BYTES;
constexpr int CHANNEL_ROWS_AT = EXCHANGE_AT + EXCHANGE_BYTES > RING_BYTES ? EXCHANGE_AT + EXCHANGE_BYTES : RING_BYTES;
constexpr int FULL_AT = CHANNEL_ROWS_AT + (CHANNELWISE ? ROW_KINDS * ROW_BYTES : 0);  // barriers: a slot is filled,
constexpr int FREE_AT = FULL_AT + SLOTS * 8;  // every warp has read it,
constexpr int INBOX_AT = FREE_AT + SLOTS * 8;  // a warpgroup's partial sums are there
static_assert(INBOX_AT + SF_WARPGROUPS * 8 == SF_SHARED_BYTES, "the host and the kernel disagree about shared memory");

struct Place {
  int lane, warp, c, t;  // c = row, t = column pair of the lane in an 8x8 matrix
  int group;             // warpgroup
  int block;             // n64 block inside the CTA
  int part;              // first of the warp's row blocks inside it
};

SF_DEVICE Place place() {
  Place p;
  p.lane = threadIdx.x & 31;
  p.warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  p.c = p.lane >> 2;
  p.t = p.lane & 3;
  p.group = p.warp >> 2;
  const int first = (p.warp & 3) * TILES;
  p.block = p.group * TILES + first / 4;
  p.part = first % 4;
  return p;
}

// Row block j of tile 0 for the lanes whose rows are 2 pair and 2 pair + 1.
SF_DEVICE int first_row_block(const Place& p, int pair) { return p.part ^ (pair * TILES & 3); }
