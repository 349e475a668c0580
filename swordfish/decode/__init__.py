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
]
