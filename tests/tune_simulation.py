"""A simulated device for the tuner's tests: a configuration costs, fails, hangs or dies as a table says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swordfish.runtime import KernelSource
from swordfish.scheme import Scheme
from swordfish.tune.measure import Problem


class SimulatedBackend:
    """Graphs are lists of calls that run at replay; the clock advances by what :meth:`spend` was told."""

    def __init__(self) -> None:
        self.now = 0.0

    def spend(self, microseconds: float) -> None:
        self.now += microseconds

    def capture(self, calls: Sequence[Callable[[], object]], repeats: int) -> Any:
        return [*calls] * repeats

    def replay(self, graph: Any) -> None:
        for call in graph:
            call()

    def mark(self) -> float:
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


@dataclass(frozen=True)
class TinyConfig:
    """A configuration whose kernel compiles in milliseconds, or not at all."""

    slots: int
    broken: bool = False

    def source(self, scheme: Scheme, k: int, n: int, *, bias: bool) -> KernelSource:
        value = "undefined" if self.broken else str(self.slots)
        return KernelSource(f'extern "C" __global__ void tiny(int *out) {{ *out = {value}; }}', "tiny")


@dataclass
class SimulatedTrial:
    """Behaviour by the number of slots of a configuration: microseconds, or ``"wrong"``, ``"raises"``,
    ``"lost"``, ``"hangs"``, ``"dies"``; ``again`` are the times of the second timing."""

    behaviour: dict[int, Any]
    again: dict[int, float] = field(default_factory=dict)
    working: bool = True

    def check(self, config: Any) -> tuple[str, float]:
        what = self.behaviour[config.slots]
        if what == "hangs":
            time.sleep(600)
        if what == "dies":
            os._exit(3)
        if what == "lost":
            self.working = False
        if what in ("raises", "lost"):
            raise RuntimeError(f"simulated: {what}")
        return ("column 3 is wrong", 9.0) if what == "wrong" else ("", 1.0)

    def time(self, configs: Sequence[Any]) -> list[float]:
        times = self.behaviour if len(configs) == 1 else {**self.behaviour, **self.again}
        return [times[c.slots] for c in configs]

    def alive(self) -> bool:
        return self.working


@dataclass
class SimulatedTrials:
    """Makes :class:`SimulatedTrial` objects; ``setup`` raises for problems of so many rows."""

    behaviour: dict[int, Any]
    again: dict[int, float] = field(default_factory=dict)
    setup: int = -1

    def __call__(self, problem: Problem) -> SimulatedTrial:
        if problem.m == self.setup:
            raise RuntimeError("simulated: out of memory")
        return SimulatedTrial(self.behaviour, self.again)
