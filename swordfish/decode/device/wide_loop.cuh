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
  const Producer<Tile> producer(from, slots, p.lane, tile.shares_weights());
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

// Spans of COUNT units.
template <int COUNT>
SF_DEVICE void multiply_spans(Products& products, const Slots& slots, int lane, Position& at, Range range, int& unit, int end) {
#pragma unroll 1
  for (; unit + COUNT <= end; unit += COUNT)
    products.span<COUNT>(
        slots, at, unit + COUNT < range.end, STREAM && unit + COUNT == end, [&](const Position& next) { slots.wait(next); },
        [&](int slot) { barrier_arrive_if(lane == 0, slots.free(slot)); });
}

// Units `unit` to `end` of one tile; `products` has begun with the first. Afterwards `unit` is `end`.
SF_DEVICE void multiply_units(Products& products, const Slots& slots, int lane, Position& at, Range range, int& unit, int end) {
  if (SF_SPAN > 1) multiply_spans<SF_SPAN>(products, slots, lane, at, range, unit, end);
  multiply_spans<1>(products, slots, lane, at, range, unit, end);
}
