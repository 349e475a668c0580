// Staging: a slot of the ring is filled by three or four tensor copies, each issued by a warp of its own: 0 tokens, 1 weights, 2 scales,
// 3 zero points. Boxes reach past the last column, row or k: zeros arrive there.
#pragma once
#include "wide_copy.cuh"
#include "wide_shape.cuh"

struct Staging {
  static constexpr int COPIES = CHANNELWISE ? 2 : 2 + ROW_KINDS;
  static_assert(SCALE_ROWS % SF_SCALE_ROWS == 0 || CHANNELWISE, "copies of SF_SCALE_ROWS rows make up a stage");

  const TensorMap* map;
  u32 shared, offset, bytes;  // of the box, in the slot
  u64 policy;
  int warp;
  int stage1, block1, stage2, block2;  // what a stage and a block of columns add to the box coordinates
  bool leader;

  SF_DEVICE Staging(const Place& p, const TensorMap* tokens, const TensorMap* weights, const TensorMap* scales, const TensorMap* zeros, u32 shared_base) {
    shared = shared_base;
    warp = p.warp;
    leader = p.lane == 0 && warp < COPIES;
    if (warp == 0) {
      map = tokens;
      policy = evict_last_policy();
      offset = 0, bytes = WEIGHTS_AT;
      stage1 = 0, block1 = 0, stage2 = STAGE_BLOCKS, block2 = 0;
    } else if (warp == 1) {
      map = weights;
      policy = evict_first_policy();
      offset = WEIGHTS_AT, bytes = ROWS_AT - WEIGHTS_AT;
      stage1 = STAGE_BLOCKS * BLOCK_BYTES / 2048, block1 = 0, stage2 = 0, block2 = 1;
    } else {
      map = warp == 2 ? scales : zeros;
      policy = evict_first_policy();
      offset = ROWS_AT + (warp == 2 ? 0 : SCALE_ROWS * ROW_BYTES), bytes = SCALE_ROWS * ROW_BYTES;
      stage1 = 0, block1 = 1, stage2 = 0, block2 = 0;
    }
  }

  SF_DEVICE u32 full_barrier(int slot) const { return shared + FULL_AT + slot * 8; }
  SF_DEVICE u32 free_barrier(int slot) const { return shared + FREE_AT + slot * 8; }

  // This warp's copy of a unit.
  SF_DEVICE void fill(bool go, int unit, int slot, u32 extra = 0) const {
    const int tile = STREAM ? unit / STAGES : blockIdx.y, stage = unit - tile * STAGES, block = tile * (COLUMNS / 64);
    const u32 dst = shared + slot * SLOT_BYTES + offset, bar = full_barrier(slot);
    const int c1 = stage * stage1 + block * block1;
    const int c2 = warp < 2 ? stage * stage2 + block * block2 : group_of(stage, 0);
    barrier_expect_if(go && leader, bar, bytes + extra);
    tensor_load_if(go && leader, dst, map, c1, c2, bar, policy);
#pragma unroll
    for (int r = SF_SCALE_ROWS; r < SCALE_ROWS; r += SF_SCALE_ROWS)
      tensor_load_if(go && leader && warp >= 2, dst + r * ROW_BYTES, map, c1, group_of(stage, r), bar, policy);
  }

  // The single row of a channelwise weight travels with the first stage of warp 1. Returns its bytes.
  SF_DEVICE u32 fill_channel_rows(const TensorMap* scales, const TensorMap* zeros) const {
    if (!CHANNELWISE || warp != 1) return 0;
    const int block = blockIdx.y * (COLUMNS / 64);
    tensor_load_if(leader, shared + CHANNEL_ROWS_AT, scales, block, 0, full_barrier(0), policy);
    if (SF_ZEROS) tensor_load_if(leader, shared + CHANNEL_ROWS_AT + ROW_BYTES, zeros, block, 0, full_barrier(0), policy);
    return ROW_KINDS * ROW_BYTES;
  }

 private:
  SF_DEVICE static int group_of(int stage, int segment) { return (stage * STAGE_K + segment * SEGMENT) / (CHANNELWISE ? 1 : SF_GROUP); }
};
