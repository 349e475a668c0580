"""The launcher's second backend: kernels on CPU tensors run on the emulator while a target is being emulated.

The tensors' device decides. CUDA tensors always launch on their GPU; CPU tensors run on the emulator if one
is active.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from swordfish.runtime.device import check_arch

__all__ = ["EMULATE_VARIABLE", "Emulation", "active_emulation", "emulate"]

EMULATE_VARIABLE = "SWORDFISH_EMULATE"
_REPORTS_KEPT = 64
"""With the variable, whose emulation lasts as long as the process; those of :func:`emulate` are all kept."""


@dataclass(frozen=True)
class Emulation:
    """A target being emulated: its architecture, the scheduler's seed, further keywords of
    ``swordfish.emulator.run``, the reports of its launches, and what kernels touch beside which the next one
    may begin (see :mod:`swordfish.emulator.order`)."""

    arch: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    reports: deque[Any] = field(default_factory=deque)
    running: list[Any] = field(default_factory=list)


_active: ContextVar[Emulation | None] = ContextVar("swordfish_emulation", default=None)
_from_environment: dict[str, Emulation] = {}


def active_emulation() -> Emulation | None:
    """The innermost :func:`emulate` of this context, else the one that ``SWORDFISH_EMULATE=sm_100a`` asks
    for.

    Raises:
        UnsupportedDeviceError: the variable names an unknown architecture.
    """
    emulation = _active.get()
    if emulation is not None:
        return emulation
    arch = os.environ.get(EMULATE_VARIABLE)
    if not arch:
        return None
    if arch not in _from_environment:
        _from_environment[arch] = Emulation(check_arch(arch), reports=deque(maxlen=_REPORTS_KEPT))
    return _from_environment[arch]


@contextmanager
def emulate(arch: str, *, seed: int = 0, **options: Any) -> Iterator[Emulation]:
    """Run kernels on CPU tensors by emulating a GPU of architecture ``arch``.

    ::

        with swordfish.emulate("sm_100a", seed=3) as emulation:
            y = swordfish.mm(x, w)          # x and w on the CPU
        print(emulation.reports[-1])

    Args:
        arch: ``"sm_90a"``, ``"sm_100a"``, ``"sm_103a"`` or ``"sm_110a"``.
        seed: chooses the schedule: the order of warps and of asynchronous completions.
        options: passed to ``swordfish.emulator.run`` (``policy``, ``checks``).

    Raises:
        UnsupportedDeviceError: an unknown ``arch``.
    """
    emulation = Emulation(check_arch(arch), seed, options)
    token = _active.set(emulation)
    try:
        yield emulation
    finally:
        _active.reset(token)
