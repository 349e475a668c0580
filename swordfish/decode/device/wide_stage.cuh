// Staging: a slot of the ring is filled by three or four tensor copies, each issued by a warp of its own: 0 tokens, 1 weights, 2 scales,
// 3 zero points. Boxes reach past the last row, column or k: zeros arrive there.
#pragma once
#include "wide_copy.cuh"
#include "wide_shape.cuh"

template <class Tile> struct Staging {
  static constexpr int COPIES = CHANNELWISE ? 2 : 2 + ROW_KINDS;
  static_assert(SCALE_ROWS % SF_SCALE_ROWS == 0 || CHANNELWISE, "copies of SF_SCALE_ROWS rows make up a stage");

  const TensorMap* map;
  u32 shared, offset, bytes;  // of the box, in the slot
  u64 policy;
  int warp;
  bool leader;
  // Of the next fill: its stage, and box coordinates by what they are made of.
  Tile tile;
  int stage;

  SF_DEVICE Staging(const Place& p, const TensorMap* tokens, const TensorMap* weights, const TensorMap* scales, const TensorMap* zeros, u32 shared_base,
                    Tile first_tile, int first_stage)
      : tile(first_tile), stage(first_stage) {
    shared = shared_base;
    warp = p.warp;
    leader = p.lane == 0 && warp < COPIES;
    // Weights that no other CTA reads should leave L2 first.
    policy = warp == 0 ? evict_last_policy() : tile.shares_weights() ? evict_normal_policy() : evict_first_policy();
    if (warp == 0) {
      map = tokens;
      offset = 0, bytes = WEIGHTS_AT;
    } else if (warp == 1) {
      map = weights;
      offset = WEIGHTS_AT, bytes = ROWS_AT - WEIGHTS_AT;
    } else {
      map = warp == 2 ? scales : zeros;
      offset = ROWS_AT + (warp == 2 ? 0 : SCALE_ROWS * ROW_BYTES), bytes = SCALE_ROWS * ROW_BYTES;
    }
  }

  SF_DEVICE u32 full_barrier(int slot) const { return shared + FULL_AT + slot * 8; }
  SF_DEVICE u32 free_barrier(int slot) const { return shared + FREE_AT + slot * 8; }

  // This warp's copy of the next unit.
  SF_DEVICE void fill(bool go, int slot, u32 extra = 0) {
    const u32 dst = shared + slot * SLOT_BYTES + offset, bar = full_barrier(slot);
    const int c1 = warp == 0 ? tile.token_row() : warp == 1 ? stage * (STAGE_BLOCKS * BLOCK_BYTES / 2048) : tile.scale_block();
    const int c2 = warp == 0 ? stage * STAGE_BLOCKS : warp == 1 ? tile.word_block() : tile.scale_row() + group_of(stage, 0);
    barrier_expect_if(go && leader, bar, bytes + extra);
    tensor_load_if(go && leader, dst, map, c1, c2, bar, policy);
#pragma unroll
    for (int r = SF_SCALE_ROWS; r < SCALE_ROWS; r += SF_SCALE_ROWS)
      tensor_load_if(go && leader && warp >= 2, dst + r * ROW_BYTES, map, c1, tile.scale_row() + group_of(stage, r), bar, policy);
    if (go && ++stage == STAGES && STREAM) {
      stage = 0;
      tile.advance();
    }
  }

  // The single row of a channelwise weight travels with the first stage of warp 1. Returns its bytes.
  SF_DEVICE u32 fill_channel_rows(const TensorMap* scales, const TensorMap* zeros) const {
    if (!CHANNELWISE || warp != 1) return 0;
    tensor_load_if(leader, shared + CHANNEL_ROWS_AT, scales, tile.scale_block(), tile.scale_row(), full_barrier(0), policy);
    if (SF_ZEROS) tensor_load_if(leader, shared + CHANNEL_ROWS_AT + ROW_BYTES, zeros, tile.scale_block(), tile.scale_row(), full_barrier(0), policy);
    return ROW_KINDS * ROW_BYTES;
  }

 private:
  SF_DEVICE static int group_of(int stage, int segment) { return (stage * STAGE_K + segment * SEGMENT) / (CHANNELWISE ? 1 : SF_GROUP); }
};
