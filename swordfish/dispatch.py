"""What runs for a call, and why."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import torch

from swordfish.decode import DecodeConfig, choose
from swordfish.errors import ArgumentError
from swordfish.packed import PackedWeight
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.runtime.launch import PreparedLaunch
from swordfish.runtime.registry import get_kernel
from swordfish.scheme import Scheme
from swordfish.tune.table import device_table

__all__ = ["TUNED_VARIABLE", "Plan", "explain", "forget_plans", "plan", "prepared_decode"]

TUNED_VARIABLE = "SWORDFISH_TUNED"
"""``0`` in the environment: calls use the rules of ``choose`` whatever ``swordfish tune`` has measured."""


@dataclass(frozen=True)
class Plan:
    """``path`` is ``"decode"``, ``"reference"`` (CPU tensors, nothing emulated) or ``"empty"`` (no rows)."""

    path: str
    config: DecodeConfig | None
    reason: str

    def __str__(self) -> str:
        what = self.path if self.config is None else f"{self.path} {self.config}"
        return f"{what}: {self.reason}"


def plan(
    m: int,
    n: int,
    k: int,
    scheme: Scheme,
    props: DeviceProps | None,
    *,
    padded_rows: bool = False,
    tuned: bool = True,
) -> Plan:
    """The path and configuration for ``x[m, k] @ W[k, n]``; ``props`` is ``None`` for the CPU reference.

    ``k`` counts packed rows (``PackedWeight.packed_k``); ``padded_rows`` says that some of them are padding
    between groups. A configuration that ``swordfish tune`` found faster on this device goes before the rules
    of :func:`~swordfish.decode.choose.choose`, unless :data:`TUNED_VARIABLE` is ``0`` or
    ``tuned`` is false.
    """
    tuned = tuned and os.environ.get(TUNED_VARIABLE) != "0"
    return _plan(m, n, k, scheme, props, padded_rows, tuned)


@functools.lru_cache(maxsize=4096)
def _plan(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps | None, padded_rows: bool, tuned: bool
) -> Plan:
    if m < 0:
        raise ArgumentError("m", m, "0 or more")
    if m == 0:
        return Plan("empty", None, "no rows: nothing is launched")
    if props is None:
        return Plan(
            "reference", None, "tensors on the CPU and no GPU emulated: fp64 product of the exact weights"
        )
    if tuned:
        entry = device_table(props).find(scheme, m, k, n, padded_rows=padded_rows)
        if entry is not None:
            reason = f"tuned on this device, {entry.us:.2f} us against {entry.default_us:.2f} us by rule"
            return Plan("decode", entry.config, reason)
    choice = choose(m, n, k, scheme, props, padded_rows=padded_rows)
    return Plan("decode", choice.config, choice.reason)


def forget_plans() -> None:
    """Forget plans and the tables that they came from: calls see what was tuned since."""
    _plan.cache_clear()
    device_table.cache_clear()


def explain(w: PackedWeight, m: int) -> Plan:
    """Which kernel ``sf.mm`` would run for ``m`` rows of this weight, on its device, and why; print it."""
    if not isinstance(w, PackedWeight):
        raise ArgumentError("w", type(w).__name__, "a PackedWeight")
    padded = w.packed_k != w.shape[0]
    return plan(m, w.shape[1], w.packed_k, w.scheme, props_of(w.device), padded_rows=padded)


def props_of(device: torch.device) -> DeviceProps | None:
    """Properties of a device that runs kernels; ``None`` for a CPU on which nothing is emulated."""
    if device.type == "cpu":
        from swordfish.runtime.backend import active_emulation

        emulation = active_emulation()
        return None if emulation is None else DeviceProps.for_target(emulation.arch)
    return device_props(device)


@functools.lru_cache(maxsize=4096)
def prepared_decode(
    config: DecodeConfig, scheme: Scheme, m: int, k: int, n: int, bias: bool, arch: str
) -> PreparedLaunch:
    """The decode kernel of a plan, compiled or read from the cache, with its launch shape."""
    kernel = get_kernel(config.source(scheme, k, n, bias=bias), arch)
    return kernel.prepare(config.launch_config(scheme, m, k, n))
