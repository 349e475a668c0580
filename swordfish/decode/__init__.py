"""Decode kernels: few rows, memory-bound. ``ring`` for a handful of rows, ``wide`` up to 128 and beyond."""

from swordfish.decode.choose import (
    ROW_BUCKETS,
    TOKEN_BUCKETS,
    Choice,
    DecodeConfig,
    choose,
    first_wide_rows,
)
from swordfish.decode.ring import MAX_ROWS, RingConfig
from swordfish.decode.tokens import gather_source
from swordfish.decode.wide import WideConfig
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.source import KernelSource
from swordfish.scheme import Scheme

__all__ = [
    "MAX_ROWS",
    "ROW_BUCKETS",
    "TOKEN_BUCKETS",
    "Choice",
    "DecodeConfig",
    "RingConfig",
    "WideConfig",
    "choose",
    "gather_source",
    "sources_for",
]


def sources_for(
    scheme: Scheme,
    k: int,
    n: int,
    props: DeviceProps,
    *,
    bias: bool = False,
    padded_rows: bool = False,
) -> list[KernelSource]:
    """Every kernel that decode may launch for a weight of ``k`` packed rows and ``n`` columns, whatever the
    number of rows, for ahead-of-time builds."""
    wide_from = first_wide_rows(props)
    counts = [
        *(rows for rows in ROW_BUCKETS if rows < wide_from),
        *(t for t in TOKEN_BUCKETS if t >= wide_from),
    ]
    configs = [choose(m, n, k, scheme, props, padded_rows=padded_rows).config for m in counts]
    kernels = dict.fromkeys(config.source(scheme, k, n, bias=bias) for config in dict.fromkeys(configs))
    return [*kernels, gather_source()]
