"""Decode kernels: few rows, memory-bound. ``ring`` for a handful of rows, ``wide`` up to 128 and beyond."""

from swordfish.decode.choose import (
    ROW_BUCKETS,
    TOKEN_BUCKETS,
    Choice,
    DecodeConfig,
    choose,
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
    """Every kernel that decode may launch for a weight of ``k`` packed rows and ``n`` columns and up to 1024
    rows, for ahead-of-time builds."""
    counts = {*ROW_BUCKETS, *(tiles * t for tiles in range(1, 9) for t in TOKEN_BUCKETS)}
    configs = [choose(m, n, k, scheme, props, padded_rows=padded_rows).config for m in sorted(counts)]
    kernels = dict.fromkeys(config.source(scheme, k, n, bias=bias) for config in dict.fromkeys(configs))
    return [*kernels, gather_source()]
