// The main loop of the wide kernels.
#pragma once
#include "wide_stage.cuh"
#include "wide_sums.cuh"  // outside the condition: every file is pasted once
#if SF_USE_WGMMA
#include "wide_wgmma.cuh"
#else
#include "wide_mma.cuh"
#endif

struct Range { int first, end; };  // of units

// Where a CTA is in its ring.
struct Position {
  int slot = 0, parity = 0;            // of the next slot's filling
  int free_slot = 0, free_parity = 0;  // of the slot to refill
};

// Units `unit` to `end` of one tile; `products` has begun with the first. Afterwards `unit` is `end`.
template <class Tile>
SF_DEVICE void multiply_units(Products& products, Staging<Tile>& staging, const Place& p, u32 shared, Position& ring, Range range, int& unit, int end) {
#pragma unroll 1
  for (; unit < end; unit++) {
    const int next_slot = ring.slot + 1 == SLOTS ? 0 : ring.slot + 1;
    if (next_slot == 0) ring.parity ^= 1;
    products.stage(
        ring.slot, next_slot, shared + ring.slot * SLOT_BYTES, STREAM && unit + 1 == end,
        [&] {
          const bool late = unit - range.first >= SF_LAG, go = late && unit - SF_LAG + SLOTS < range.end;
          if (go && p.warp < staging.COPIES) barrier_wait(staging.free_barrier(ring.free_slot), ring.free_parity);
          staging.fill(go, ring.free_slot);
          if (late && ++ring.free_slot == SLOTS) {
            ring.free_slot = 0;
            ring.free_parity ^= 1;
          }
        },
        [&] {
          if (unit + 1 < range.end) barrier_wait(staging.full_barrier(next_slot), ring.parity);
          return unit + 1 < range.end;
        },
        [&] { barrier_arrive_if(p.lane == 0, staging.free_barrier(ring.slot)); });
    ring.slot = next_slot;
  }
}
