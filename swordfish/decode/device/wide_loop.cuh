// The loops of the wide kernels: of the warps that fill the ring, and of those that multiply.
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

// What the warps of the producer warpgroup do: the first one sets up barriers, those of the slots and by `init` what else the kernel has, and
// fills the ring with the units of a range, which begins at stage `stage` of `tile`; three have nothing to do. `ready` as for fill(): all
// warps of the CTA have met before it is called.
template <class Tile, class Init, class Ready>
SF_DEVICE void produce(const Operands& from, const Slots& slots, const Place& p, const Tile& tile, int stage, Range range, Init init, Ready ready) {
  give_registers<SF_PRODUCER_REGISTERS>();
  if (p.warp > WARPS) {
    cta_sync();
    return;
  }
  const Producer<Tile> producer(from, slots, p.lane, tile);
  producer.prefetch_maps();
  if (p.lane == 0) {
    slots.init();
    init();
    fence_barrier_init();
  }
  warp_sync();
  producer.fill(tile, stage, range, [&] {
    cta_sync();
    ready();
  });
}

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
