"""Prefill kernels for tcgen05: many rows, bound by the tensor core. See ``docs/prefill.md``."""

from __future__ import annotations

from swordfish.decode.tokens import gather_source
from swordfish.prefill.choose import PrefillChoice, choose_prefill, unsupported
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.launch import source
from swordfish.prefill.run import launch_prefill, reduce_source
from swordfish.runtime.cute import CuteSource
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.source import KernelSource
from swordfish.scheme import Scheme

__all__ = [
    "PrefillChoice",
    "PrefillConfig",
    "choose_prefill",
    "launch_prefill",
    "reduce_source",
    "source",
    "sources_for",
    "unsupported",
]

_FINE, _MOST = 32, 8192


def sources_for(
    scheme: Scheme, k: int, n: int, props: DeviceProps, *, least: int = 1
) -> list[CuteSource | KernelSource]:
    """Every kernel that prefill may launch for a weight of ``k`` packed rows and ``n`` columns with ``least``
    to 16,384 rows, with or without a bias, for ahead-of-time builds; none if :func:`unsupported` refuses it.

    A choice changes with ``ceil(m / 32)`` at the most, and with few steps at large M.
    """
    if unsupported(n, k, scheme, props) is not None:
        return []
    rows = [m for m in range(_FINE, _MOST + 1, _FINE) if m >= least] + [_MOST * 3 // 2, _MOST * 2]
    configs = dict.fromkeys(choose_prefill(m, n, k, scheme, props).config for m in rows)
    kernels: dict[CuteSource | KernelSource, None] = {}
    for config in configs:
        kernels[source(config)] = None
        if config.partial:
            kernels[reduce_source(config)] = None
    return [*kernels, gather_source()]
