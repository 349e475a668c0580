// Stream-K: sums of an output tile that several CTAs have worked on. Slice x = n8 tile * TILES + tile is 16 bytes a lane.
//
// The CTA that begins a column tile ends it, too: it adds the pieces of the CTAs that went on where its own range ended. A range has at most
// one piece that does not begin a tile, its first, so that the pieces and their flags are indexed by range; a warp needs only what the same
// warp of another CTA has left. Flags are zero before and after the launch.
#pragma once
#include "wide_copy.cuh"
#include "wide_fragment.cuh"

SF_DEVICE Floats4 slice_of(const float (&total)[TILES][TOKENS / 2], int slice) {
  const float(&t)[TOKENS / 2] = total[slice % TILES];
  const int e = slice / TILES * 4;
  return {t[e], t[e + 1], t[e + 2], t[e + 3]};
}

#if SF_CTAS
struct Pieces {
  float* lane_at;  // of the piece of range 0
  u32* flag;       // of this warp in range 0

  SF_DEVICE Pieces(const Place& p, float* partials, u32* flags) {
    lane_at = partials + (p.warp * SLICES * 32 + p.lane) * 4;
    flag = flags + p.warp;
  }

  SF_DEVICE float* piece(int range) const { return lane_at + (i64)range * SIZE; }

  SF_DEVICE void leave(const float (&total)[TILES][TOKENS / 2], int range, int m, int lane) const {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      if (slice / BATCH * BATCH / TILES * 8 < m) store_global(piece(range) + slice * 128, slice_of(total, slice));  // what collect() loads
    }
    warp_sync();
    if (lane == 0) store_release(flag + range * WARPS, 1);
  }

  // Adds the pieces of ranges `first` to `last`, in order.
  SF_DEVICE void collect(float (&total)[TILES][TOKENS / 2], int first, int last, int m, int lane) const {
    // Lane i waits for piece i, 32 at a time: one trip to L2 for all. No lane leaves before the others: after a divergent loop the
    // compiler would keep the ring's position out of uniform registers, and every product of the main loop would pay two instructions.
#pragma unroll 1
    for (int range = first; range <= last; range += 32)
      while (!all_lanes(load_acquire(flag + min(range + lane, last) * WARPS) != 0)) {}
#pragma unroll 1
    for (int range = first; range <= last; range += PIECES) {
      const float* const from = piece(range);
#pragma unroll
      for (int begin = 0; begin < SLICES; begin += BATCH) {
        if (begin / TILES * 8 >= m) break;  // of a batch only: sums of rows that do not exist are never stored
        Floats4 v[PIECES][BATCH];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
          for (int s = 0; s < BATCH; s++)
            if (begin + s < SLICES && (PIECES == 1 || range + i <= last)) v[i][s] = load_global(from + i * SIZE + (begin + s) * 128);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
          for (int s = 0; s < BATCH; s++)
            if (begin + s < SLICES && (PIECES == 1 || range + i <= last)) {
              const int slice = begin + s;
#pragma unroll
              for (int e = 0; e < 4; e++) total[slice % TILES][slice / TILES * 4 + e] += v[i][s].v[e];
            }
      }
      warp_sync();
    }
#pragma unroll 1
    for (int range = first; range <= last; range += 32) {
      if (range + lane <= last) store_global_word(flag + (range + lane) * WARPS, 0);
    }
  }

 private:
  static constexpr int SIZE = COLUMNS * TOKENS;
  // Loads in flight, as many as registers allow: slices of a piece, or several pieces.
  static constexpr int ROOM = (SF_REGISTERS - TILES * TOKENS / 2 - 100) / 4;
  static constexpr int IN_FLIGHT = ROOM < 2 ? 2 : ROOM > 8 ? 8 : ROOM;
  static constexpr int BATCH = SLICES < IN_FLIGHT ? SLICES : IN_FLIGHT;
  static constexpr int PIECES = IN_FLIGHT / BATCH;
};
#endif
