// Staging: one warp fills the ring, a stage of tokens, weights, scales and zero points to a slot, by tensor copies. Boxes reach past the last row,
// column or k: zeros arrive there.
#pragma once
#include "wide_copy.cuh"
#include "wide_shape.cuh"

struct Range { int first, end; };  // of units

// A slot to read and the parity of its filling.
struct Position {
  int slot = 0, parity = 0;

  SF_DEVICE void advance() {
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    if (slot == 0) parity ^= 1;
  }
};

// The slots of a CTA and their barriers.
struct Slots {
  u32 shared;

  SF_DEVICE u32 slot(int i) const { return shared + i * SLOT_BYTES; }
  SF_DEVICE u32 full(int i) const { return shared + FULL_AT + i * 8; }
  SF_DEVICE u32 free(int i) const { return shared + FREE_AT + i * 8; }

  // `arrivals` fill a slot, that of the producer and those of others who bring tokens.
  SF_DEVICE void init(int arrivals = 1) const {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(full(i), arrivals);
      barrier_init(free(i), WARPS);
    }
  }

  // Until a slot is filled.
  SF_DEVICE void wait(const Position& at) const {
    barrier_wait(full(at.slot), at.parity);
#if SF_TOKENS_BY_LANES  // otherwise tensor copies
    fence_proxy_async();
#endif
  }
};

struct Operands { const TensorMap &words, &scales, &zeros, &x; };

// Where a stage lies in the operands; goes on from tile to tile.
template <class Tile> struct Cursor {
  Tile tile;
  int stage;

  SF_DEVICE void advance() {
    if (++stage == STAGES && STREAM) stage = tile.advance();
  }
};

template <class Tile> struct Producer {
  static_assert(SCALE_ROWS % SF_SCALE_ROWS == 0 || CHANNELWISE, "copies of SF_SCALE_ROWS rows make up a stage");

  Operands from;
  Slots slots;
  bool leader;  // the lane that issues copies
  u64 token_policy, weight_policy;

  SF_DEVICE Producer(const Operands& operands, Slots to, int lane, bool shares_weights) : from(operands), slots(to), leader(lane == 0) {
    token_policy = evict_last_policy();
    // Weights that no other CTA reads should leave L2 first.
    weight_policy = shares_weights ? evict_normal_policy() : evict_first_policy();
  }

  SF_DEVICE void prefetch_maps() const {
    if (!leader) return;
    prefetch_tensor_map(from.words);
    prefetch_tensor_map(from.scales);
    prefetch_tensor_map(from.x);
    if (SF_ZEROS) prefetch_tensor_map(from.zeros);
  }

  // Fills the ring with the units of a range, which begins at stage `stage` of `tile`. `ready` returns when tokens may be read; weights are
  // requested before.
  template <class Ready> SF_DEVICE void fill(const Tile& tile, int stage, Range range, Ready ready) const {
    const int filled = min(SLOTS, range.end - range.first);
    Cursor<Tile> at = {tile, stage}, late = at;
#pragma unroll 1
    for (int slot = 0; slot < filled; slot++, at.advance()) request_weights(at, slot, slot == 0);
    ready();
#pragma unroll 1
    for (int slot = 0; slot < filled; slot++, late.advance()) request_tokens(late, slot);
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int unit = range.first + filled; unit < range.end; unit++, at.advance()) {
      barrier_wait(slots.free(slot), parity);
      request_weights(at, slot, false);
      request_tokens(at, slot);
      if (++slot == SLOTS) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

  // Announces all bytes of the stage, its tokens included if they are requested here, too. The single row of a channelwise weight travels with the
  // first stage.
  SF_DEVICE void request_weights(const Cursor<Tile>& at, int slot, bool first, bool tokens = true) const {
    if (!leader) return;
    const u32 dst = slots.slot(slot), bar = slots.full(slot);
    const bool channel_row = CHANNELWISE && first;
    barrier_expect(bar, ROWS_AT - (tokens ? 0 : WEIGHTS_AT) + ROW_KINDS * (SCALE_ROWS + channel_row) * ROW_BYTES);
    tensor_load(dst + WEIGHTS_AT, from.words, at.stage * (STAGE_BLOCKS * BLOCK_BYTES / 2048), at.tile.word_block(), bar, weight_policy);
#pragma unroll
    for (int r = 0; r < SCALE_ROWS; r += SF_SCALE_ROWS) {
      const int group = (at.stage * STAGE_K + r * SEGMENT) / (CHANNELWISE ? 1 : SF_GROUP);
      request_rows(at.tile, group, dst + ROWS_AT + r * ROW_BYTES, SCALE_ROWS, bar);
    }
    if (channel_row) request_rows(at.tile, 0, slots.shared + CHANNEL_ROWS_AT, 1, bar);
  }

  SF_DEVICE void request_tokens(const Cursor<Tile>& at, int slot) const {
    if (leader) tensor_load(slots.slot(slot), from.x, at.tile.token_row(), at.stage * STAGE_BLOCKS, slots.full(slot), token_policy);
  }

 private:
  // Of scales, and of zero points behind all `rows` of them.
  SF_DEVICE void request_rows(const Tile& tile, int group, u32 dst, int rows, u32 bar) const {
    tensor_load(dst, from.scales, tile.scale_block(), tile.scale_row() + group, bar, weight_policy);
    if (SF_ZEROS) tensor_load(dst + rows * ROW_BYTES, from.zeros, tile.scale_block(), tile.scale_row() + group, bar, weight_policy);
  }
};
