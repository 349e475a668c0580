"""Which decode configuration serves a call: a pure function of shape, scheme and device properties."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swordfish.decode.ring import MAX_ROWS, RingConfig
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["ROW_BUCKETS", "Choice", "choose"]

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Rows for which kernels are compiled; a call uses the smallest bucket that holds its rows (16 if none does)."""

_BYTES_IN_FLIGHT = 96 * 1024
"""Weight bytes requested per SM. Latency times bandwidth is 27 KB; two to four times that keeps DRAM busy over a unit."""


@dataclass(frozen=True)
class Choice:
    """A configuration and why it was chosen."""

    config: RingConfig
    reason: str


def choose(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> Choice:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows)."""
    rows = next((r for r in ROW_BUCKETS if r >= m), MAX_ROWS)
    tiles = -(-n // 64)
    unit = 1 if scheme.bits == 8 or k <= 64 else 2
    units = -(-(-(-k // 64)) // unit)
    split = 1
    # Fill the machine: a tile that leaves SMs idle is split over a cluster, as long as every warp keeps a unit.
    while split < 8 and tiles * split * 2 <= props.sm_count and units >= split * 2 * 8:
        split *= 2
    warps = max(1, min(8, units // split))
    config = RingConfig(rows, 1, unit, warps, 8, split)
    while config.slots > 2 and (
        config.shared_bytes(scheme, k) > props.smem_per_cta
        or warps * config.slots * unit * scheme.bits * 512 > _BYTES_IN_FLIGHT
    ):
        config = replace(config, slots=config.slots - 1)
    while config.warps > 1 and config.shared_bytes(scheme, k) > props.smem_per_cta:
        config = replace(config, warps=config.warps - 1)
    return Choice(config, f"{rows} rows per tile, {tiles} tiles, K split over {split} CTAs and {config.warps} warps")
