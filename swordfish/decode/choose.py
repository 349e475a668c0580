"""Which decode kernel and configuration serve a call: a pure function of shape, scheme and device
properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from swordfish.decode.choose_ring import ROW_BUCKETS, choose_ring
from swordfish.decode.choose_wide import TOKEN_BUCKETS, choose_wide
from swordfish.decode.ring import RingConfig
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["ROW_BUCKETS", "TOKEN_BUCKETS", "Choice", "DecodeConfig", "choose"]

DecodeConfig: TypeAlias = "RingConfig | WideConfig"


@dataclass(frozen=True)
class Choice:
    """A configuration and why it was chosen."""

    config: DecodeConfig
    reason: str


def choose(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps, *, padded_rows: bool = False
) -> Choice:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows).

    ``padded_rows``: packed rows include padding between groups (unequal groups of an act-order shard).
    """
    if m >= _first_wide_rows(n, k, scheme, props):
        try:
            return Choice(*choose_wide(m, n, k, scheme, props))
        except ArgumentError as refused:
            config, reason = choose_ring(m, n, k, scheme, props, padded_rows=padded_rows)
            return Choice(config, f"{reason} (the wide kernel does not fit: {refused})")
    return Choice(*choose_ring(m, n, k, scheme, props, padded_rows=padded_rows))


def _first_wide_rows(n: int, k: int, scheme: Scheme, props: DeviceProps) -> int:
    """Fewest rows that the wide kernel serves; times are microseconds on an H200 by it | by the ring kernel.

    With wgmma 5 rows cost it as much as 8. With mma.sync both kernels issue the same products, and up to 16
    rows the warps of the ring kernel need not wait for each other (by design; not timed on such a device).
    """
    if props.arch != "sm_90a":
        return 17
    weights = n * k
    if 1 << 23 <= weights <= 1 << 24:
        # 2 and 4 rows of 4096 x 4096: 4.4 | 4.6 and 4.4 | 4.9, int8 5.6 | 6.2 and 5.6 | 6.4; smaller weights
        # were not timed. Two rows in act-order the ring kernel permutes itself.
        return 3 if scheme.act_order else 2
    if n >= 128 * props.sm_count:
        # 3 and 4 rows of 4096 x 28672 and 8192 x 57344: 16.0 | 16.9, 16.1 | 18.1; 60.1 | 61.9, 59.4 | 63.7.
        return 3
    if scheme.bits == 8 and weights >= 1 << 25:
        # 8 rows of 14336 x 4096 and 8192 x 8192: 16.0 | 15.3, 17.5 | 16.9; 9 rows 16.4 | 15.9, 18.0 | 18.3.
        return 9
    # 4 rows of 4096 x 6144, 14336 x 4096, 8192 x 8192 and 28672 x 8192: 5.6 | 5.3, 10.0 | 9.8, 10.5 | 10.5,
    # 30.8 | 28.9; 5 rows 5.6 | 6.0, 10.1 | 10.1, 10.6 | 10.9, 31.0 | 29.9; 8 rows 5.7 | 6.3, 9.9 | 10.3, 10.6
    # | 11.2, 30.9 | 30.3.
    return 5
