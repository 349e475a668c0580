"""Prefill kernels for tcgen05: many rows, bound by the tensor core. See ``docs/prefill.md``."""

from __future__ import annotations

from swordfish.prefill.choose import PrefillChoice, choose_prefill, unsupported
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.launch import source
from swordfish.prefill.run import launch_prefill, reduce_source

__all__ = [
    "PrefillChoice",
    "PrefillConfig",
    "choose_prefill",
    "launch_prefill",
    "reduce_source",
    "source",
    "unsupported",
]
