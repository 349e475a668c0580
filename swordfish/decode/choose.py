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

__all__ = ["ROW_BUCKETS", "TOKEN_BUCKETS", "Choice", "DecodeConfig", "choose", "first_wide_rows"]

DecodeConfig: TypeAlias = "RingConfig | WideConfig"


@dataclass(frozen=True)
class Choice:
    """A configuration and why it was chosen."""

    config: DecodeConfig
    reason: str


def first_wide_rows(props: DeviceProps) -> int:
    """Fewest rows that the wide kernel serves.

    With wgmma the wide kernel wins from its smallest tile on (8 rows on an H200: 4.6 us against 4.7 on 4096 x
    4096, 16.3 against 17.9 on 4096 x 28672, 58.7 against 62.6 on 8192 x 57344), and 5 rows cost it as much as
    8. With mma.sync both kernels issue the same products, and up to 16 rows the warps of the ring kernel need
    not wait for each other (by design; not timed on such a device).
    """
    return 5 if props.arch == "sm_90a" else 17


def choose(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps, *, padded_rows: bool = False
) -> Choice:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows).

    ``padded_rows``: packed rows include padding between groups (unequal groups of an act-order shard).
    """
    # 3 and 4 rows: 4.6 us by the wide kernel and 4.8, 4.9 by the ring on 4096 x 4096, 16.2 and 16.9, 18.1 on
    # 4096 x 28672, 60.6 and 61.8, 63.6 on 8192 x 57344; but 10.6 and 9.6, 9.9 on 14336 x 4096. Smaller
    # weights were not timed.
    soon = m >= 3 and (n >= 128 * props.sm_count or 1 << 23 <= n * k <= 1 << 24)
    if m >= first_wide_rows(props) or (soon and props.arch == "sm_90a"):
        try:
            return Choice(*choose_wide(m, n, k, scheme, props))
        except ArgumentError as refused:
            config, reason = choose_ring(m, n, k, scheme, props, padded_rows=padded_rows)
            return Choice(config, f"{reason} (the wide kernel does not fit: {refused})")
    return Choice(*choose_ring(m, n, k, scheme, props, padded_rows=padded_rows))
