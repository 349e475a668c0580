// Staging: what a slot of the ring needs is dealt out to the warps as a few large copies.
#pragma once
#include "wide_copy.cuh"
#include "wide_shape.cuh"

struct Staging {
  static constexpr int BLOCKS = COLUMNS / 64;
  // One copy for each n64 block and for each row of scales and zero points: the copy engine takes tens of cycles for each.
  static constexpr int COPIES = BLOCKS + ROW_KINDS * SCALE_ROWS;
  static constexpr int TURNS = (COPIES + WARPS - 1) / WARPS;
  static constexpr int TOKEN_TURNS = (STAGE_BLOCKS + WARPS - 1) / WARPS;

  const TensorMap* tokens;
  const u8* words;
  const u16* scales;  // first column of the CTA
  const u16* zeros;
  u32 shared;
  u64 policy;
  int first_block, first_stage, warp;
  u32 row_bytes;  // of the columns that exist
  bool leader;

  SF_DEVICE Staging(const Place& p, const TensorMap* x, const u8* w, const u16* s, const u16* z, u32 shared_base, int block0, int stage0) {
    tokens = x;
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

  SF_DEVICE u32 full_barrier(int slot) const { return shared + FULL_AT + slot * 8; }
  SF_DEVICE u32 free_barrier(int slot) const { return shared + FREE_AT + slot * 8; }

  // Columns past the last block get scale 0: nothing copies there, and nothing they yield is stored. Before the first CTA barrier.
  SF_DEVICE void clear_missing_columns() const {
    if (N_BLOCKS % BLOCKS == 0) return;
    for (int slot = 0; slot < (CHANNELWISE ? 1 : SLOTS); slot++) {
      const u32 rows_at = shared + (CHANNELWISE ? CHANNEL_ROWS_AT : slot * SLOT_BYTES + ROWS_AT);
      for (int row = 0; row < ROW_KINDS * (CHANNELWISE ? 1 : SCALE_ROWS); row++) {
        for (int byte = row_bytes + threadIdx.x * 4; byte < ROW_BYTES; byte += THREADS * 4) store_float(rows_at + row * ROW_BYTES + byte, 0.0f);
      }
    }
  }

  // Announces what this warp copies for stage `index` of the CTA, tokens included, and copies weights, scales and zero points.
  SF_DEVICE void fill_weights(bool go, int index, int slot) const {
    const int stage = first_stage + index;
    const u32 to = shared + slot * SLOT_BYTES, bar = full_barrier(slot);
    const bool mine = go && leader;
    int depth = STAGE_BLOCKS;  // k64 blocks of this stage
    if (K_BLOCKS % STAGE_BLOCKS) depth = min(STAGE_BLOCKS, K_BLOCKS - stage * STAGE_BLOCKS);
    u32 announced = CHANNELWISE && index == 0 && warp == 0 ? ROW_KINDS * row_bytes : 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int copy = warp + turn * WARPS;
      announced += copy < BLOCKS ? depth * BLOCK_BYTES : copy < COPIES ? row_bytes : 0;
    }
#pragma unroll
    for (int turn = 0; turn < TOKEN_TURNS; turn++) announced += panel(turn) < STAGE_BLOCKS ? PANEL_BYTES : 0;
    barrier_expect_if(mine, bar, announced);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int copy = warp + turn * WARPS;
      // Past the last column: a valid block again, never stored.
      const int block = min(first_block + copy, N_BLOCKS - 1);
      const u8* src = words + ((size_t)block * K_BLOCKS + stage * STAGE_BLOCKS) * BLOCK_BYTES;
      u32 dst = to + WEIGHTS_AT + copy * (STAGE_BLOCKS * BLOCK_BYTES);
      u32 bytes = depth * BLOCK_BYTES;
      if (copy >= BLOCKS) {
        const int row = copy - BLOCKS;  // scales, then zero points
        const int segment = SF_ZEROS && row >= SCALE_ROWS ? row - SCALE_ROWS : row;
        const int group = min((stage * STAGE_K + segment * SEGMENT) / (CHANNELWISE ? 1 : SF_GROUP), GROUPS - 1);
        src = (const u8*)((SF_ZEROS && row >= SCALE_ROWS ? zeros : scales) + (size_t)group * (N_BLOCKS * 64));
        dst = to + ROWS_AT + row * ROW_BYTES;
        bytes = row_bytes;
      }
      bulk_load_if(mine && copy < COPIES, dst, src, bytes, bar, policy);
    }
  }

  // Not before the previous kernel has ended.
  SF_DEVICE void fill_tokens(bool go, int index, int slot) const {
#pragma unroll
    for (int turn = 0; turn < TOKEN_TURNS; turn++) {
      const int box = panel(turn);
      tensor_load_if(go && leader && box < STAGE_BLOCKS, shared + slot * SLOT_BYTES + box * PANEL_BYTES, tokens,
                     (first_stage + index) * STAGE_K + box * 64, 0, full_barrier(slot));
    }
  }

  // The single row of a channelwise weight travels with the first stage.
  SF_DEVICE void fill_channel_rows() const {
    if (!CHANNELWISE || warp != 0) return;
    bulk_load_if(leader, shared + CHANNEL_ROWS_AT, scales, row_bytes, full_barrier(0), policy);
    if (SF_ZEROS) bulk_load_if(leader, shared + CHANNEL_ROWS_AT + ROW_BYTES, zeros, row_bytes, full_barrier(0), policy);
  }

 private:
  // Panels of tokens go to the last warps, which have the fewest other copies.
  SF_DEVICE int panel(int turn) const { return WARPS - 1 - warp + turn * WARPS; }
};
