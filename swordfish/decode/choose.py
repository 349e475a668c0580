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

GATHER_ROWS = 2
"""Act-order: up to this many rows the kernel reads x through the permutation itself; a launch that gathers first costs 1 to 2 us, but
beyond it every CTA would gather the same rows again at 32 sectors a load."""


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

    unit = 4096 // (scheme.bits * 512)  # 4 KB of one column; 2 KB costs 10 to 60 % in every shape
    tiles = columns * row_tiles
    units = _units(k, unit)

    if tiles > props.sm_count:
        if rows <= 4:
            # Small CTAs, four to an SM: 14.3 us on 4096 x 28672 against 15.0 for two of 8 warps and 16.6 for one of 16.
            config = RingConfig(rows, 1, unit, min(4, units), 3, min_ctas=4)
            reason = f"{tiles} tiles of 64 columns"
        else:
            # 128 columns share one copy of the tokens, which are as many bytes as the weights by now: 10 to 15 %.
            config = RingConfig(rows, 2, unit if rows <= 8 else 1, min(4, units), 2, min_ctas=2)
            reason = f"{-(-columns // 2) * row_tiles} tiles of 128 columns"
    elif rows <= 4 and tiles * 2 > props.sm_count:
        # One CTA per SM at most, so split in two and let two share an SM. Two slots rather than three: what this launch leaves
        # free is where the next one prefetches (9.6 us against 10.9 on 8192 x 8192).
        config = RingConfig(rows, 1, unit, min(8, units), 2, min(2, units), min_ctas=2)
        reason = f"{tiles} tiles of 64 columns, K split over {config.split} CTAs, two on an SM"
    else:
        # K is split over a cluster until every SM has one CTA; more is slower, since clusters of 4 and 8 do not pack two to an SM
        # (4096 x 4096, one row: 5.1 us split in 4, 4.2 split in 2).
        split = max(1, min(MAX_SPLIT, props.sm_count // tiles, units))
        warps = 16 if rows <= 4 else 12
        config = RingConfig(rows, 1, unit, max(1, min(warps, -(-units // split))), 2, split)
        reason = f"{tiles} tiles of 64 columns, K split over {split} CTAs to fill {props.sm_count} SMs"
        if rows == 1 and 2 * split <= MAX_SPLIT and k <= 4096 and units >= 8 * split:
            # All of a short K in flight at once, 8 KB units, twice the CTAs: 3.8 us on 4096 x 4096.
            config = RingConfig(rows, 1, 2 * unit, 4, 2, 2 * split, min_ctas=3)
            reason = f"{tiles} tiles of 64 columns, K={k} split over {2 * split} CTAs that request all of it at once"
    config = replace(config, gather=scheme.act_order and rows <= GATHER_ROWS and k % 64 == 0)
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
