"""Configurations of the ring kernel (:mod:`swordfish.decode.ring`) that are worth timing."""

from __future__ import annotations

import itertools
from dataclasses import replace

from swordfish.decode.choose import ROW_BUCKETS
from swordfish.decode.ring import MAX_ROWS, MAX_SPLIT, RingConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["candidates", "check"]

MOST_ROWS = 48
"""Every 16 rows read the weights again: beyond so many the wide kernel is faster."""

IN_FLIGHT = 40 * 1024
"""Bytes of weights that the rings of an SM hold at least; with less, latency of memory shows (H200, M=1)."""

UNIT_BYTES = (2048, 16384)
"""Bytes of weights in a ring slot: smaller ones cost instructions, larger ones leave no room for several."""

RESIDENT_WARPS = 20
"""Warps of an SM that the registers of a decode kernel allow, roughly: some 100 registers a thread."""

GATHER_ROWS = 4
"""Act-order: beyond so many rows, permuting x in every CTA has always lost to one launch that gathers."""


def candidates(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps) -> list[RingConfig]:
    """Configurations that fit, give every warp work and keep enough bytes in flight."""
    if m > MOST_ROWS:
        return []
    rows = next((r for r in ROW_BUCKETS if r >= m), MAX_ROWS)
    row_tiles, blocks, columns = _ceil_div(m, rows), _ceil_div(k, 64), _ceil_div(n, 64)
    # A weight too small to fill every ring: half of it in flight will do.
    wanted = min(props.sm_count * IN_FLIGHT, blocks * columns * scheme.bits * 512 // 2)
    found: dict[RingConfig, None] = {}
    for gather, cols, unit, warps, slots, split in itertools.product(
        (False, True) if scheme.act_order and rows <= GATHER_ROWS else (False,),
        (1, 2),
        (1, 2, 4),
        (1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16),
        (1, 2, 3, 4, 6),
        range(1, MAX_SPLIT + 1),
    ):
        unit_bytes = cols * unit * scheme.bits * 512
        # One slot is for weights that are in flight as a whole.
        if slots == 1 and _ceil_div(blocks, unit) > split * warps:
            continue
        if _ceil_div(blocks, unit) < split * warps or not UNIT_BYTES[0] <= unit_bytes <= UNIT_BYTES[1]:
            continue
        config = RingConfig(rows, cols, unit, warps, slots, split, gather=gather)
        try:
            check(config, scheme, m, k, n, props, False)
        except ArgumentError:
            continue
        room = props.smem_per_sm // (config.shared_bytes(scheme, k) + props.smem_reserved)
        resident = min(room, max(1, RESIDENT_WARPS // warps), 8)
        config = replace(config, min_ctas=resident)
        tiles = _ceil_div(columns, cols)
        total = tiles * row_tiles * split
        grids = [0]
        if total > props.sm_count * resident:
            if split > 1:
                continue
            # Persistent CTAs that all take the same number of tiles, or as many CTAs as tiles.
            grids += [_ceil_div(tiles, _ceil_div(total, props.sm_count * r)) for r in range(1, resident + 1)]
        for grid in grids:
            ctas = min(grid * row_tiles or total, props.sm_count * resident)
            if ctas * warps * slots * unit_bytes >= wanted:
                found[replace(config, ctas=grid)] = None
    return list(found)


def check(
    config: RingConfig, scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, padded_rows: bool
) -> None:
    """Raises ``ArgumentError`` for a configuration that does not fit the problem or the device;
    ``padded_rows`` as for :func:`swordfish.dispatch.plan`."""
    config.check(scheme, k, props)
    if config.gather and (not scheme.act_order or padded_rows or k % 64):
        raise ArgumentError("RingConfig.gather", True, "True for act-order with K a multiple of 64, unpadded")


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
