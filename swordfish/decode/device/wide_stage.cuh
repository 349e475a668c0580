// Staging: every warp copies the share of the weights that it names, every thread its 16-byte pieces of the tokens.
#pragma once
#include "wide_copy.cuh"
#include "wide_shape.cuh"

// Copies of a stage: one for each n64 block of the CTA, one for each row of scales and of zero points. Few and large, because the copy
// engine takes tens of cycles for each; dealt out to the warps, and every warp announces its own bytes.
struct WeightCopy {
  static constexpr int BLOCKS = COLUMNS / 64;
  static constexpr int COPIES = BLOCKS + PARAMETER_ROWS * SCALE_ROWS;
  static constexpr int TURNS = (COPIES + WARPS - 1) / WARPS;

  const u8* words;
  const u16* scales;  // first column of the CTA
  const u16* zeros;
  u32 shared;
  u64 policy;
  int first_block, first_stage, warp;
  u32 row_bytes;  // of the columns that exist
  bool leader;

  SF_DEVICE WeightCopy(const Place& p, const u8* w, const u16* s, const u16* z, u32 shared_base, int block0, int stage0) {
    words = w;
    scales = s + block0 * 64;
    zeros = z + block0 * 64;
    shared = shared_base;
    policy = evict_first_policy();
    first_block = block0;
    first_stage = stage0;
    warp = p.warp;
    row_bytes = min(BLOCKS, N_BLOCKS - block0) * 128;
    leader = p.lane == 0;
  }

  // Columns past the last block get scale 0: nothing copies there, and nothing they yield is stored. Before the first CTA barrier.
  SF_DEVICE void clear_missing_columns() const {
    if (N_BLOCKS % BLOCKS == 0) return;
    for (int slot = 0; slot < (CHANNELWISE ? 1 : WEIGHT_SLOTS); slot++) {
      const u32 rows_at = CHANNELWISE ? shared + ROW_AT : shared + WEIGHTS_AT + slot * WEIGHT_SLOT_BYTES + WEIGHT_BYTES;
      for (int row = 0; row < PARAMETER_ROWS * (CHANNELWISE ? 1 : SCALE_ROWS); row++) {
        for (int byte = row_bytes + threadIdx.x * 4; byte < SCALE_ROW_BYTES; byte += THREADS * 4) {
          store_float(rows_at + row * SCALE_ROW_BYTES + byte, 0.0f);
        }
      }
    }
  }

  // Fills slot with stage `index` of this CTA. `extra` bytes are copied by the caller on the same barrier.
  SF_DEVICE void fill(bool go, int index, int slot, u32 extra = 0) const {
    const int stage = first_stage + index;
    const u32 to = shared + WEIGHTS_AT + slot * WEIGHT_SLOT_BYTES, bar = shared + BARRIERS_AT + slot * 8;
    int depth = STAGE_BLOCKS;  // k64 blocks of this stage
    if (K_BLOCKS % STAGE_BLOCKS) depth = min(STAGE_BLOCKS, K_BLOCKS - stage * STAGE_BLOCKS);
    u32 total = extra;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int copy = warp + turn * WARPS;
      total += copy < BLOCKS ? depth * BLOCK_BYTES : copy < COPIES ? row_bytes : 0;
    }
    barrier_expect_if(go && leader, bar, total);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int copy = warp + turn * WARPS;
      // Past the last column: a valid block again, never stored.
      const int block = min(first_block + copy, N_BLOCKS - 1);
      const u8* src = words + ((size_t)block * K_BLOCKS + stage * STAGE_BLOCKS) * BLOCK_BYTES;
      u32 dst = to + copy * (STAGE_BLOCKS * BLOCK_BYTES);
      u32 bytes = depth * BLOCK_BYTES;
      if (copy >= BLOCKS) {
        const int row = copy - BLOCKS;  // scales, then zero points
        const int segment = SF_ZEROS && row >= SCALE_ROWS ? row - SCALE_ROWS : row;
        const int group = min((stage * STAGE_K + segment * SEGMENT) / (CHANNELWISE ? 1 : SF_GROUP), GROUPS - 1);
        src = (const u8*)((SF_ZEROS && row >= SCALE_ROWS ? zeros : scales) + (size_t)group * (N_BLOCKS * 64));
        dst = to + WEIGHT_BYTES + row * SCALE_ROW_BYTES;
        bytes = row_bytes;
      }
      bulk_load_if(go && leader && copy < COPIES, dst, src, bytes, bar, policy);
    }
  }

  // The single row of a channelwise weight travels with the first stage: warp 0 copies it and announces it as `extra` bytes.
  SF_DEVICE u32 fill_row() const {
    if (!CHANNELWISE || warp != 0) return 0;
    const u32 bar = shared + BARRIERS_AT;
    bulk_load_if(leader, shared + ROW_AT, scales, row_bytes, bar, policy);
    if (SF_ZEROS) bulk_load_if(leader, shared + ROW_AT + SCALE_ROW_BYTES, zeros, row_bytes, bar, policy);
    return PARAMETER_ROWS * row_bytes;
  }
};

struct TokenCopy {
  static constexpr int ROWS = THREADS / 8;  // rows per pass: 8 lanes copy the 128 bytes of a row
  const u16* x;
  i64 stride;
  u32 at;
  int rows;  // valid rows at and below this thread's first
  int first_k;

  SF_DEVICE TokenCopy(const u16* tokens, i64 row_stride, int m, u32 shared, int stage0) {
    const int row = threadIdx.x >> 3, chunk = threadIdx.x & 7;
    stride = row_stride;
    first_k = stage0 * STAGE_K;
    x = tokens + row * stride + first_k + chunk * 8;
    at = shared + row * 128 + ((chunk ^ (row & 7)) << 4);
    rows = m - row;
  }

  // One commit group per call, empty or not. Rows past M and k past K are zeros.
  SF_DEVICE void fill(bool go, int index, int slot) const {
#pragma unroll
    for (int panel = 0; panel < STAGE_BLOCKS; panel++) {
      int valid = rows;
      if (K_BLOCKS % STAGE_BLOCKS && first_k + index * STAGE_K + panel * 64 >= SF_K) valid = 0;
#pragma unroll
      for (int row = 0; row < TOKENS; row += ROWS) {
        const bool inside = TOKENS % ROWS == 0 || row + (int)(threadIdx.x >> 3) < TOKENS;
        copy_async_if(go && inside, at + slot * TOKEN_SLOT_BYTES + panel * PANEL_BYTES + row * 128,
                      x + (i64)index * STAGE_K + panel * 64 + row * stride, row < valid ? 16 : 0);
      }
    }
    copy_async_commit();
  }
};
