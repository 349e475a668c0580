// The main loop of the wide kernels.
#pragma once
#include "wide_stage.cuh"
#include "wide_sums.cuh"  // outside the condition: every file is pasted once
#if SF_USE_WGMMA
#include "wide_wgmma.cuh"
#else
#include "wide_mma.cuh"
#endif

SF_DEVICE void multipliers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory"); }

// The next slot to read and the parity of its filling.
struct Position { int slot = 0, parity = 0; };

// Units `unit` to `end` of one tile; `products` has begun with the first. Afterwards `unit` is `end`.
SF_DEVICE void multiply_units(Products& products, const Slots& slots, int lane, Position& at, Range range, int& unit, int end) {
#pragma unroll 1
  for (; unit < end; unit++) {
    const int next_slot = at.slot + 1 == SLOTS ? 0 : at.slot + 1;
    if (next_slot == 0) at.parity ^= 1;
    products.stage(
        at.slot, next_slot, slots.slot(at.slot), STREAM && unit + 1 == end,
        [&] {
          if (unit + 1 < range.end) barrier_wait(slots.full(next_slot), at.parity);
          return unit + 1 < range.end;
        },
        [&] { barrier_arrive_if(lane == 0, slots.free(at.slot)); });
    at.slot = next_slot;
  }
}
