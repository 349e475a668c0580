"""A simulated device for the harness's tests: graphs are lists of calls, and time is what each call says it
costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.adapters.base import Adapter
from bench.data import Weight, dequantize
from bench.floor import Floor, Reader
from bench.shapes import Problem


class SimulatedBackend:
    """Calls run at replay; the clock advances by whatever :meth:`spend` was told during them, plus ``drift``
    a replay."""

    def __init__(self, drift_us: float = 0.0) -> None:
        self.now = 0.0
        self.drift = drift_us
        self.replayed: list[Any] = []

    def spend(self, microseconds: float) -> None:
        self.now += microseconds

    def capture(
        self, calls: Sequence[Callable[[], torch.Tensor]], repeats: int
    ) -> tuple[Any, list[torch.Tensor]]:
        results: list[torch.Tensor] = []
        for _ in range(repeats):
            results = [call() for call in calls]
        return (list(calls), repeats), results

    def replay(self, graph: Any) -> None:
        calls, repeats = graph
        self.replayed.append(graph)
        for _ in range(repeats):
            for call in calls:
                call()
        self.now += self.drift

    def mark(self) -> float:
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


class SimulatedFloor(Floor):
    """A floor whose readers cost what a table says."""

    def __init__(self, backend: SimulatedBackend, costs: dict[str, float]) -> None:
        super().__init__()
        self.backend, self.costs = backend, costs

    def read(self, reader: Reader, state: dict[str, torch.Tensor]) -> torch.Tensor:
        self.backend.spend(self.costs.get(reader.label, 100.0))
        return state["sink"]


class SimulatedAdapter(Adapter):
    """Multiplies with the dequantised weight; ``spoil`` may change the result; ``limit`` is the largest M."""

    def __init__(
        self,
        name: str,
        backend: SimulatedBackend,
        cost_us: float,
        spoil: Callable[[torch.Tensor], object] = lambda out: None,
        limit: int = 1 << 30,
    ) -> None:
        self.name, self.backend, self.cost, self.spoil, self.limit = name, backend, cost_us, spoil, limit

    def available(self) -> str | None:
        return None

    def supports(self, problem: Problem, m: int) -> str | None:
        return None if m <= self.limit else f"M above {self.limit}"

    def prepare(self, weight: Weight) -> dict[str, torch.Tensor]:
        return {"dense": dequantize(weight, slice(None), torch.float32)}

    def run(self, state: dict[str, torch.Tensor], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.backend.spend(self.cost)
        out.copy_(x.float() @ state["dense"])
        self.spoil(out)
        return out
