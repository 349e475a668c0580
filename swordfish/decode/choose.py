"""Which decode configuration serves a call: a pure function of shape, scheme and device properties.

The rules are read off a sweep of some 40 configurations per shape and M on an H200 (bench/sweep_decode.py; int4, group size
128, bf16, the seven Llama shapes of docs/decode.md); each states what it is worth there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swordfish.decode.ring import MAX_ROWS, MAX_SPLIT, RingConfig
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["ROW_BUCKETS", "Choice", "choose"]

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Rows for which kernels are compiled; a call uses the smallest bucket that holds its rows (16 if none does)."""


@dataclass(frozen=True)
class Choice:
    """A configuration and why it was chosen."""

    config: RingConfig
    reason: str


def choose(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> Choice:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows)."""
    rows = next((r for r in ROW_BUCKETS if r >= m), MAX_ROWS)
    row_tiles = -(-m // rows)
    columns = -(-n // 64)

    # 4 KB units: half of that costs 20 to 60 % (twice the barriers, copies and scale loads per byte).
    unit = 4096 // (scheme.bits * 512)
    # Two CTAs of 8 warps hide each other's prologue and reduction while a slot is small; from 8 rows on the tokens
    # fill shared memory and one CTA with more in flight is 5 to 10 % faster.
    resident = 2 if rows <= 4 else 1
    capacity = props.sm_count * resident
    tiles = columns * row_tiles

    if tiles <= capacity:
        # Leave no SM idle: splitting K over a cluster until the machine is full is worth 2 to 4 times the unsplit kernel.
        warps = min(8, _units(k, unit))
        split = max(1, min(MAX_SPLIT, capacity // tiles, _units(k, unit) // warps))
        config = RingConfig(rows, 1, unit, warps, 4, split, min_ctas=resident)
        reason = f"{tiles} tiles of 64 columns, K split over {split} CTAs to fill {props.sm_count} SMs"
    elif rows <= 4:
        # Persistent CTAs that all take the same number of tiles: 5 to 10 % over one CTA per tile.
        waves = -(-tiles // capacity)
        ctas = -(-columns // waves)
        config = RingConfig(rows, 1, unit, min(8, _units(k, unit)), 4, ctas=ctas, min_ctas=resident)
        reason = f"{tiles} tiles of 64 columns over {ctas} CTAs, {waves} each"
    else:
        # 128 columns share one copy of the tokens, which are as many bytes as the weights by now: 10 to 15 %.
        config = RingConfig(rows, 2, unit if rows <= 8 else 1, min(4, _units(k, unit)), 4, min_ctas=2)
        reason = f"{-(-columns // 2) * row_tiles} tiles of 128 columns"
    return Choice(_fit(config, scheme, k, props), f"{rows} rows per tile; {reason}")


def _units(k: int, unit: int) -> int:
    return -(-k // (64 * unit))


def _fit(config: RingConfig, scheme: Scheme, k: int, props: DeviceProps) -> RingConfig:
    """Fewer slots, then fewer CTAs per SM, then fewer warps, until shared memory holds it."""

    def fits() -> bool:
        limit = min(props.smem_per_cta, props.smem_per_sm // config.min_ctas - props.smem_reserved)
        return config.shared_bytes(scheme, k) <= limit

    while not fits() and config.slots > 2:
        config = replace(config, slots=config.slots - 1)
    while not fits() and config.min_ctas > 1:
        config = replace(config, min_ctas=config.min_ctas - 1)
    while not fits() and config.warps > 1:
        config = replace(config, warps=config.warps - 1)
    config.check(scheme, k, props)
    return config
