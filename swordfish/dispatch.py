"""What runs for a call, and why."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch

from swordfish import ready
from swordfish.calls import Call, DecodeCall
from swordfish.decode import DecodeConfig, choose, gather_source
from swordfish.dense import DequantConfig, dense_mm
from swordfish.errors import ArgumentError
from swordfish.packed import CallKey, PackedWeight
from swordfish.paths import PATHS, choose_path
from swordfish.prefill import PrefillConfig, choose_prefill, launch_prefill, reduce_source
from swordfish.prefill import source as prefill_source
from swordfish.reference import reference_mm
from swordfish.runtime.arguments import CPU_DEVICE
from swordfish.runtime.backend import active_emulation
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.runtime.registry import Source
from swordfish.scheme import Scheme
from swordfish.tune.table import device_table

if TYPE_CHECKING:
    from swordfish.experts import ExpertPlan, MoE

__all__ = [
    "LOG_VARIABLE",
    "PATH_VARIABLE",
    "TUNED_VARIABLE",
    "Overrides",
    "Plan",
    "call_for",
    "explain",
    "forget_plans",
    "overrides",
    "plan",
    "planned",
    "props_of",
    "sources_for",
]

PATH_VARIABLE = "SWORDFISH_PATH"
"""``decode``, ``prefill`` or ``dense`` in the environment: calls that this path can take go there."""

TUNED_VARIABLE = "SWORDFISH_TUNED"
"""``0`` in the environment: calls use the rules of ``choose`` whatever ``swordfish tune`` has measured."""

LOG_VARIABLE = "SWORDFISH_LOG"
"""``dispatch`` in the environment: every call logs its plan to the logger ``swordfish.dispatch``."""

_CALLS_KEPT = 8192
_ROWS_PLANNED = (*range(1, 129), *range(144, 3073, 16), *range(3104, 4129, 32), *range(4352, 16385, 256))
"""Row counts that meet every plan: kernels of few rows come in buckets, even tiles of many in steps of 16,
those of prefill in steps of 32."""
_logger = logging.getLogger("swordfish.dispatch")


class Overrides(NamedTuple):
    """What the environment asks for: :data:`PATH_VARIABLE`, :data:`TUNED_VARIABLE`, :data:`LOG_VARIABLE`."""

    path: str | None = None
    tuned: bool = True
    log: bool = False


NO_OVERRIDES = Overrides()

# os.environ raises and catches an exception inside for every variable that is not set, 0.6 us each; the
# dictionary behind it does not. Both see later changes.
_environment: Any = getattr(os.environ, "_data", os.environ)
_encode: Any = getattr(os.environ, "encodekey", str) if _environment is not os.environ else str
_PATH, _TUNED, _LOG = (_encode(name) for name in (PATH_VARIABLE, TUNED_VARIABLE, LOG_VARIABLE))


def overrides() -> Overrides:
    """The environment's wishes at this moment.

    Raises:
        ArgumentError: :data:`PATH_VARIABLE` names no path.
    """
    if _PATH not in _environment and _TUNED not in _environment and _LOG not in _environment:
        return NO_OVERRIDES
    path = os.environ.get(PATH_VARIABLE) or None
    if path is not None and path not in PATHS:
        raise ArgumentError(PATH_VARIABLE, repr(path), f"one of {', '.join(PATHS)}")
    return Overrides(
        path, os.environ.get(TUNED_VARIABLE) != "0", "dispatch" in os.environ.get(LOG_VARIABLE, "").split(",")
    )


@dataclass(frozen=True)
class Plan:
    """What runs for a call.

    ============= =========================================== ============================
    ``path``      what                                        ``config``
    ============= =========================================== ============================
    ``decode``    few rows: mma.sync or wgmma kernels         a decode configuration
    ``prefill``   many rows: the tcgen05 collective           a ``PrefillConfig``
    ``dense``     dequantise once, then cuBLAS                ``None``
    ``reference`` CPU tensors, nothing emulated               ``None``
    ``empty``     no rows                                     ``None``
    ============= =========================================== ============================
    """

    path: str
    config: DecodeConfig | PrefillConfig | None
    reason: str

    def sources(self, scheme: Scheme, k: int, n: int, *, bias: bool = False) -> list[Source]:
        """Every kernel that a call of this plan may launch, for ahead-of-time builds; none without a GPU."""
        if self.path == "dense":
            return [DequantConfig.for_product(scheme).source(scheme)]
        if isinstance(self.config, PrefillConfig):
            kernels: list[Source] = [prefill_source(self.config), gather_source()]
            return [*kernels, reduce_source(self.config)] if self.config.partial else kernels
        if self.config is not None:
            return [self.config.source(scheme, k, n, bias=bias), gather_source()]
        return []

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
    wishes: Overrides = NO_OVERRIDES,
) -> Plan:
    """The path and configuration for ``x[m, k] @ W[k, n]``: a pure function, but for the table of ``swordfish
    tune``.

    Args:
        k: packed rows (``PackedWeight.packed_k``).
        props: the device, or ``None`` for the CPU reference.
        padded_rows: some of the packed rows are padding between groups.
        wishes: what :func:`overrides` read; a path that cannot take the call is passed over, and the reason
            says so. A configuration that ``swordfish tune`` found faster on this device goes before the
            rules of :func:`~swordfish.decode.choose.choose` unless ``wishes.tuned`` is false.

    Raises:
        ArgumentError: ``m`` is negative.
    """
    if m < 0:
        raise ArgumentError("m", m, "0 or more")
    if m == 0:
        return Plan("empty", None, "no rows: nothing is launched")
    if props is None:
        return Plan(
            "reference", None, "tensors on the CPU and no GPU emulated: fp64 product of the exact weights"
        )
    path, reason = choose_path(m, n, k, scheme, props, wishes.path)
    if path == "dense":
        return Plan("dense", None, reason)
    if path == "prefill":
        modelled = choose_prefill(m, n, k, scheme, props)
        return Plan("prefill", modelled.config, f"{modelled.reason}; {reason}")
    if wishes.tuned:
        entry = device_table(props).find(scheme, m, k, n, padded_rows=padded_rows)
        if entry is not None:
            tuned = f"tuned on this device, {entry.us:.2f} us against {entry.default_us:.2f} us by rule"
            return Plan("decode", entry.config, f"{tuned}; {reason}")
    rule = choose(m, n, k, scheme, props, padded_rows=padded_rows)
    return Plan("decode", rule.config, f"{rule.reason}; {reason}")


def sources_for(
    scheme: Scheme, k: int, n: int, props: DeviceProps, *, bias: bool = False, padded_rows: bool = False
) -> list[Source]:
    """Every kernel that a weight of ``k`` packed rows and ``n`` columns may launch by rule, whatever the
    number of rows: decode, prefill and dense, for ahead-of-time builds with no GPU."""
    found: dict[Source, None] = {}
    plans: set[tuple[str, Any]] = set()
    for m in _ROWS_PLANNED:
        chosen = plan(m, n, k, scheme, props, padded_rows=padded_rows, wishes=Overrides(tuned=False))
        if (chosen.path, chosen.config) not in plans:
            plans.add((chosen.path, chosen.config))
            found.update(dict.fromkeys(chosen.sources(scheme, k, n, bias=bias)))
    return list(found)


@overload
def explain(w: PackedWeight, m: int) -> Plan: ...
@overload
def explain(w: MoE, m: int, *, top_k: int) -> ExpertPlan: ...
def explain(w: PackedWeight | MoE, m: int, *, top_k: int | None = None) -> Plan | ExpertPlan:
    """Which kernels ``sf.mm`` would run for ``m`` rows of this weight, or ``sf.MoE`` for ``m`` tokens of
    ``top_k`` experts each, on its device, and why; print it."""
    if isinstance(w, PackedWeight):
        padded, props = w.packed_k != w.shape[0], props_of(w.device)
        return plan(m, w.shape[1], w.packed_k, w.scheme, props, padded_rows=padded, wishes=overrides())
    from swordfish.experts import MoE, plan_layer

    if not isinstance(w, MoE):
        raise ArgumentError("w", type(w).__name__, "a PackedWeight or a MoE")
    if top_k is None:
        raise ArgumentError("top_k", None, "the experts of a token, for a MoE")
    return plan_layer(w.w13, w.w2, m, top_k, w.expert_map)


def props_of(device: torch.device) -> DeviceProps | None:
    """Properties of a device that runs kernels; ``None`` for a CPU on which nothing is emulated."""
    if device.type == "cpu" and active_emulation() is None:
        return None
    return device_props(device)


def call_for(m: int, w: PackedWeight, bias: bool) -> Call:
    """The plan for ``m`` rows of ``w``, ready to call; its kernels are compiled or read from the cache at the
    first call of its kind."""
    wishes = overrides()
    if wishes.log:
        _log(m, w)
    return planned(m, w.call_key, bias, w.words.get_device(), wishes)


def planned(m: int, key: CallKey, bias: bool, device: int, wishes: Overrides) -> Call:
    """The same for what is known about a weight, on the CUDA device of this index or the CPU
    (:data:`~swordfish.runtime.arguments.CPU_DEVICE`)."""
    if device != CPU_DEVICE:
        return _call(m, key, bias, device, wishes)
    emulation = active_emulation()
    return _call(m, key, bias, None if emulation is None else emulation.arch, wishes)


@functools.lru_cache(maxsize=_CALLS_KEPT)
def _call(m: int, key: CallKey, bias: bool, device: int | str | None, wishes: Overrides) -> Call:
    """By plain values, whose hashes cost nothing, and the device's index, not its properties."""
    k, n, packed_k, bits, group_size, dtype, zeros, act_order = key
    if device is None:
        return reference_mm
    props = DeviceProps.for_target(device) if isinstance(device, str) else device_props(device)
    scheme = Scheme(bits, group_size, dtype, zeros, act_order)
    chosen = plan(m, n, packed_k, scheme, props, padded_rows=packed_k != k, wishes=wishes)
    if chosen.path == "dense":
        return dense_mm
    if isinstance(chosen.config, PrefillConfig):
        return functools.partial(launch_prefill, chosen.config)
    assert chosen.config is not None
    return DecodeCall(chosen.config, scheme, m, packed_k, n, bias=bias, arch=props.arch)


def forget_plans() -> None:
    """Forget plans and the tables that they came from: calls see what was tuned since."""
    ready.forget()
    _call.cache_clear()
    device_table.cache_clear()


def _log(m: int, w: PackedWeight) -> None:
    if not _logger.handlers and not logging.getLogger().handlers:
        _logger.addHandler(logging.StreamHandler())
    _logger.setLevel(logging.INFO)
    _logger.info("M=%d %r: %s", m, w, explain(w, m))
