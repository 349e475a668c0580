// Products by wgmma (sm_90a). A stage is cut into batches: up to four k16 steps of one tile. While the tensor cores work on a batch, the
// next one is dequantised into the other fragment buffer. Products in flight cannot go round a loop, so several stages make a span.
#pragma once
#include "wgmma.cuh"
#include "wide_sums.cuh"

constexpr int STEPS = (SEGMENT < 64 ? SEGMENT : 64) / 16;  // k16 steps of a batch
constexpr int DEPTHS = STAGE_K / (16 * STEPS);
constexpr int BATCHES = DEPTHS * TILES * HALVES;  // batch = (depth * TILES + tile) * HALVES + half
static_assert(DEPTHS * TILES % 2 == 0, "fragment buffers alternate");

// Sums of a tile may be touched while other tiles multiply, a part while another is summed, one half of the tokens while the other is. With one
// of each, or with the token sums of offset weights, there are no others.
constexpr bool DRAIN = TILES * PARTS * HALVES == 1 || OFFSETS;

SF_DEVICE constexpr bool begins(int depth) { return !CHANNELWISE && depth * STEPS * 16 % SEGMENT == 0; }
SF_DEVICE constexpr bool ends(int depth) { return !CHANNELWISE && (depth + 1) * STEPS * 16 % SEGMENT == 0; }
SF_DEVICE constexpr int segment_of(int depth) { return depth * STEPS * 16 / SEGMENT; }

// Of batch i of a span.
SF_DEVICE constexpr int half_of(int i) { return i % HALVES; }
SF_DEVICE constexpr int tile_of(int i) { return i / HALVES % TILES; }
SF_DEVICE constexpr int depth_of(int i) { return i % BATCHES / (HALVES * TILES); }
SF_DEVICE constexpr int part_of(int i) { return (i / BATCHES * SEGMENTS + segment_of(depth_of(i))) % PARTS; }
SF_DEVICE constexpr int buffer_of(int i) { return i / HALVES % 2; }  // of fragments

struct Products {
  Sums sums;
  u32 fragment[2][STEPS][4];
  u32 words[2][STEPS][TILES * LANE_WORDS];
  RowBias bias[TILES];
  RowPair scale[PARTS * HALVES][TILES], zero[TILES], unit[TILES];
  u32 words_at, row_at;  // of the lane, in slot 0: words, first row of scales

  SF_DEVICE Products(const Place& p, u32 shared) {
    const int j = first_row_block(p, p.lane >> 3);
    words_at = shared + WEIGHTS_AT + p.block * (STAGE_BLOCKS * BLOCK_BYTES) + (p.lane * 4 + j) * LANE_WORDS * 4;
    row_at = shared + ROWS_AT + (p.block * 64 + j * 16 + p.c) * 2;
#pragma unroll
    for (int i = 0; i < TILES; i++) bias[i] = default_bias();
  }

  // Before a column tile, whose first stage is in `slot`; channel_row is the address of the scales of a channelwise weight.
  SF_DEVICE void begin_tile(int slot, u32 channel_row) {
    sums.clear();
    if (CHANNELWISE && SF_ZEROS == SF_ZEROS_INTEGER) {
#pragma unroll
      for (int i = 0; i < TILES; i++) bias[i] = zero_bias(load_row_pair(channel_row + ROW_BYTES, i));
    }
    load_words(0, slot);
    dequantise(0, slot);
    load_units(slot);
    next_units();  // all totals are zero: nothing to rescale
  }

  // A span: COUNT stages without a pause of the tensor cores. On entry its first batch is dequantised and nothing is in flight; on exit the same
  // holds for the next stage. `ready` waits for a slot, `release` says that one has been read. Whether there are `more` stages to come in the
  // range, or these are the `last` ones of a tile: then begin_tile() prepares the next one.
  template <int COUNT, class Ready, class Release>
  SF_DEVICE void span(const Slots& slots, Position& at, bool more, bool last, Ready ready, Release release) {
    constexpr int ALL = COUNT * BATCHES;
    int slot = at.slot, before = slot;
#pragma unroll
    for (int i = 0; i < ALL; i++) {
      const int batch = i % BATCHES, depth = depth_of(i), tile = tile_of(i);
      if (i > 0 && batch == 0) {
        before = slot;
        slot = at.slot;
      }
      if (i >= 2) wgmma_wait<1>();
      if (i > 1 && batch == 1) release(before);
      if (!DRAIN && i >= 2) end_segment(i - 2);
      if (i > 0 && half_of(i) == 0) dequantise(i, slot);
      if (DRAIN && i > 0 && tile == 0 && begins(depth)) {
        wgmma_wait<0>();
        end_segments(i);
      }
      if (IN_PLACE && i >= TILES && begins(depth)) {
        sums.next_unit(tile, load_row_pair(row_of(depth, slot), tile));
        sums.rescale(tile);
      }
      if (batch == BATCHES - 1) {
        at.advance();
        const bool ends = i == ALL - 1;
        if (!ends || more) {
          ready(at);
          load_words(0, at.slot);
          if (ends) load_units(at.slot);
        }
      }
      multiply(i, wgmma_descriptor(slots.slot(slot)));
      // Nothing that prepares the next batch may come between the products of this one: with many tokens and one tile the compiler puts
      // it behind the first of four, where the tensor cores run dry.
      if (TILES == 1 && TOKENS > 96) warp_sync();
      load_scale(i, slot);
      if (tile == 0 && half_of(i) == 0 && depth + 1 < DEPTHS) load_words(depth + 1, slot);
    }
    wgmma_wait<1>();
    if (!DRAIN) end_segment(ALL - 2);
    dequantise(0, more ? at.slot : slot);  // a branch here would make the compiler serialise the products
    if (more && !last) next_units();
    wgmma_fence();  // keeps the compiler from moving this work behind the wait
    wgmma_wait<0>();
    release(slot);
    if (DRAIN) end_segments(ALL);
    if (!DRAIN) end_segment(ALL - 1);
    // Totals that no product of a span has touched yet cannot change once one is in flight: all tiles change here.
    if (more && !last) {
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) sums.rescale(tile);
    }
  }

 private:
  SF_DEVICE u32 row_of(int depth, int slot) const { return row_at + slot * SLOT_BYTES + segment_of(depth) * ROW_BYTES; }

  SF_DEVICE void load_words(int depth, int slot) {
#pragma unroll
    for (int k = 0; k < STEPS; k++) load_lane_words(words[depth & 1][k], words_at + slot * SLOT_BYTES + (depth * STEPS + k) * SLICE_BYTES);
  }

  SF_DEVICE void dequantise(int i, int slot) {
    const int depth = depth_of(i), tile = tile_of(i);
    if (SF_ZEROS == SF_ZEROS_INTEGER && begins(depth)) bias[tile] = zero_bias(load_row_pair(row_of(depth, slot) + SCALE_ROWS * ROW_BYTES, tile));
#pragma unroll
    for (int k = 0; k < STEPS; k++) dequantise_fragment(words[depth & 1][k], tile, bias[tile], fragment[buffer_of(i)][k]);
  }

  SF_DEVICE void multiply(int i, u64 tokens) {
    const int depth = depth_of(i), tile = tile_of(i);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      const int step = depth * STEPS + k;
      const u64 b = tokens + (step / 4 * PANEL_BYTES + half_of(i) * (PANEL_BYTES / 2) + step % 4 * 32) / 16;
      const bool first = begins(depth) && k == 0;
      wgmma(sums.running(tile, part_of(i), half_of(i)), fragment[buffer_of(i)][k], b, ONE_SET || !first);
      if constexpr (OFFSETS) {
        const u32 ones[4] = {UNIT_PAIR, UNIT_PAIR, UNIT_PAIR, UNIT_PAIR};
        if (tile == 0) wgmma(Sums::share(sums.tokens, half_of(i)), ones, b, !first);
      }
    }
    wgmma_commit();
  }

  SF_DEVICE void load_units(int slot) {
    if (!IN_PLACE) return;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) unit[tile] = load_row_pair(row_of(0, slot), tile);
  }

  SF_DEVICE void next_units() {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) sums.next_unit(tile, unit[tile]);
  }

  // Scales are loaded long before they are needed, while products run.
  SF_DEVICE void load_scale(int i, int slot) {
    const int depth = depth_of(i), tile = tile_of(i);
    if (ONE_SET || !ends(depth)) return;
    scale[part_of(i) * HALVES + half_of(i)][tile] = load_row_pair(row_of(depth, slot), tile);
    if (OFFSETS) zero[tile] = load_row_pair(row_of(depth, slot) + SCALE_ROWS * ROW_BYTES, tile);
  }

  SF_DEVICE void end_segment(int i) {
    constexpr int SLICE = TOKENS / 8 / HALVES;
    const int tile = tile_of(i), half = half_of(i);
    if (ends(depth_of(i))) sums.end_segment(tile, scale[part_of(i) * HALVES + half][tile], zero[tile], part_of(i), half * SLICE, (half + 1) * SLICE);
  }

  // Of all tiles, in the batches before batch i.
  SF_DEVICE void end_segments(int i) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) end_segment(i - TILES + tile);
  }
};
