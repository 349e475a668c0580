"""One run of the harness: prepare every implementation, check it, time it against the floor, collect rows."""

from __future__ import annotations

import functools
import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from bench.adapters.base import Adapter
from bench.data import Check, Weight, activations, check, random_weight, reference
from bench.floor import Floor, choose
from bench.harness import (
    GRAPH_US,
    Backend,
    Contender,
    clone_state,
    estimate_us,
    launches_per_graph,
    measure,
    rotation_count,
    state_bytes,
)
from bench.shapes import Problem

__all__ = ["Loaded", "Session", "failure", "rounds_for", "verify_and_capture"]

MAX_ROUNDS = 20
MIN_ROUNDS = 7


def rounds_for(graph_us: float, limit: int = MAX_ROUNDS) -> int:
    """Replays per contender: fewer where one replay is long, so that a large M does not eat the budget."""
    return max(min(MIN_ROUNDS, limit), min(limit, int(limit * GRAPH_US / max(graph_us, GRAPH_US))))


def failure(error: BaseException) -> str:
    """One line for a table, with the place it came from."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({frame[0].filename.rsplit('/', 1)[-1]}:{frame[0].lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{where}"


@dataclass
class Loaded:
    """An implementation with its rotating copies of one weight, or the reason why it has none."""

    adapter: Adapter
    states: list[Any] = field(default_factory=list)
    size: int = 0
    error: str = ""


def calls_of(loaded: Loaded, x: torch.Tensor, out: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """One call for each copy of the weight."""
    return [functools.partial(loaded.adapter.run, state, x, out) for state in loaded.states]


def verify_and_capture(
    loaded: Loaded, x: torch.Tensor, out: torch.Tensor, exact: torch.Tensor, backend: Backend, repeats: int
) -> tuple[Check, Any]:
    """Check the first and the last copy, capture all, and check what the graph itself computes.

    Outputs are filled with NaN before each check. Returns the check (of the graph, if it got that far) and
    the graph, or ``None`` in its place when a result was wrong.
    """
    dtype = str(x.dtype).removeprefix("torch.")
    calls = calls_of(loaded, x, out)
    for one in (calls[0], calls[-1]):
        out.fill_(float("nan"))
        verdict = check(one(), exact, dtype)
        if not verdict.ok:
            return verdict, None
    graph, results = backend.capture(calls, repeats)
    results[-1].fill_(float("nan"))
    backend.replay(graph)
    backend.synchronize()
    verdict = check(results[-1], exact, dtype)
    return verdict, graph if verdict.ok else None


class Session:
    """Times problems and appends a row (a flat dict, ready for JSON) for each implementation and M.

    An implementation that raises or computes a wrong result gets a row with ``error`` and no time, one that
    does not support a problem a row with ``skipped``; the others go on.
    """

    def __init__(
        self,
        adapters: Sequence[Adapter],
        floors: Sequence[Floor],
        backend: Backend,
        *,
        l2_bytes: int,
        device: torch.device | str = "cuda",
        rounds: int = MAX_ROUNDS,
        graph_us: float = GRAPH_US,
        read_clocks: Callable[[], dict[str, float | None]] = dict,
        log: Callable[[str], None] = print,
    ) -> None:
        self.adapters, self.floors, self.backend = list(adapters), list(floors), backend
        self.l2_bytes, self.device, self.rounds, self.graph_us = l2_bytes, device, rounds, graph_us
        self.read_clocks, self.log = read_clocks, log
        self.rows: list[dict[str, Any]] = []
        self.readers: list[dict[str, Any]] = []

    def load(self, adapter: Adapter, prepare: Callable[[], Any]) -> Loaded:
        """One state from ``prepare`` and copies of it in memory of their own, enough to stay cold."""
        try:
            first = prepare()
            size = state_bytes(first)
            copies = rotation_count(size, self.l2_bytes) - 1
            return Loaded(adapter, [first, *(clone_state(first) for _ in range(copies))], size)
        except Exception as error:  # whatever another library raises becomes its row
            return Loaded(adapter, error=failure(error))

    def tune_floors(self, packed_bytes: int, shape: str) -> None:
        """Pick the fastest way to read this many bytes, for each floor."""
        for floor in self.floors:
            clocks = _Clocks(self.read_clocks)
            times = choose(
                floor, packed_bytes, self.backend, self.l2_bytes, device=self.device, sample=clocks.sample
            )
            self.readers.append(
                {
                    "shape": shape,
                    "floor": floor.name,
                    "bytes": packed_bytes,
                    "us": times,
                    "clocks": clocks.summary(),
                }
            )

    def time(
        self,
        contenders: Sequence[Contender],
        rows: dict[str, dict[str, Any]],
        rounds: int | None = None,
        *,
        warm_up_us: float | None = None,
    ) -> None:
        """Measure, and put times and clocks into the rows of the same names."""
        clocks = _Clocks(self.read_clocks)
        timings = measure(
            contenders,
            self.backend,
            rounds=rounds or self.rounds,
            warm_up_us=warm_up_us,
            sample=clocks.sample,
        )
        for name, timing in timings.items():
            values = asdict(timing)
            rows[name] |= {"us": values.pop("median_us"), **values, "clocks": clocks.summary()}

    def run(self, problem: Problem, ms: Sequence[int]) -> None:
        """Time every implementation and floor on one weight for each M."""
        self.tune_floors(problem.packed_bytes, problem.shape.name)
        weight = random_weight(problem, self.device)
        floors = [self.load(floor, functools.partial(floor.prepare, weight)) for floor in self.floors]
        loaded = [
            self.load(adapter, functools.partial(adapter.prepare, weight))
            if any(adapter.supports(problem, m) is None for m in ms)
            else Loaded(adapter)
            for adapter in self.adapters
        ]
        readers = [(entry, self._floor(entry)) for entry in floors]
        for m in ms:
            self.point(weight, m, loaded, readers)

    def point(
        self,
        weight: Weight,
        m: int,
        loaded: Sequence[Loaded],
        readers: Sequence[tuple[Loaded, Contender]] = (),
        *,
        warm_up_us: float | None = None,
    ) -> None:
        """Check and time implementations, and floors already captured, on one weight and M."""
        problem = weight.problem
        x = activations(m, problem, self.device)
        out = torch.empty(m, problem.shape.n, dtype=x.dtype, device=self.device)
        exact = reference(weight, x)
        entries = [*(entry for entry, _ in readers), *loaded]
        rows = {entry.adapter.name: self._row(problem, m, entry) for entry in entries}
        contenders = []
        for entry, reader in readers:
            rows[reader.name] |= {"launches": reader.units, "config": entry.adapter.describe(problem, m)}
            contenders.append(reader)
        for entry in loaded:
            contender = self._contender(entry, problem, x, out, exact, rows[entry.adapter.name])
            if contender is not None:
                contenders.append(contender)
        del exact
        rounds = rounds_for(self._replay_us(contenders), self.rounds)
        self.time(contenders, rows, rounds, warm_up_us=warm_up_us)
        self.rows += rows.values()
        self.log(_summary(problem, m, rows))

    def _row(self, problem: Problem, m: int, entry: Loaded) -> dict[str, Any]:
        settings = asdict(problem)
        shape = settings.pop("shape")
        row = {"kind": "linear", "shape": shape["name"], "k": shape["k"], "n": shape["n"], "m": m, **settings}
        return row | {
            "impl": entry.adapter.name,
            "config": "",
            "us": None,
            "bytes": entry.size,
            "packed_bytes": problem.packed_bytes,
            "buffers": len(entry.states),
            "skipped": entry.adapter.supports(problem, m) or "",
            "error": entry.error,
        }

    def _floor(self, entry: Loaded) -> Contender:
        if entry.error:
            raise RuntimeError(f"the floor failed: {entry.error}")
        nothing = torch.empty(0, device=self.device)
        launches = launches_per_graph(len(entry.states), estimate_us(entry.size, 0))
        calls = calls_of(entry, nothing, nothing)
        graph, _ = self.backend.capture(calls, launches // len(calls))
        return Contender(entry.adapter.name, graph, launches)

    def _contender(
        self,
        entry: Loaded,
        problem: Problem,
        x: torch.Tensor,
        out: torch.Tensor,
        exact: torch.Tensor,
        row: dict[str, Any],
    ) -> Contender | None:
        if row["skipped"] or row["error"]:
            return None
        flops = 2.0 * x.shape[0] * problem.shape.k * problem.shape.n
        row["launches"] = launches_per_graph(len(entry.states), estimate_us(entry.size, flops), self.graph_us)
        try:
            repeats = row["launches"] // len(entry.states)
            verdict, graph = verify_and_capture(entry, x, out, exact, self.backend, repeats)
            row["config"] = entry.adapter.describe(problem, x.shape[0])
        except Exception as error:  # see load()
            row["error"] = failure(error)
            return None
        row["check"] = verdict.to_dict()
        if graph is None:
            row["error"] = f"wrong result: {verdict.message}"
            return None
        return Contender(entry.adapter.name, graph, row["launches"])

    def _replay_us(self, contenders: Sequence[Contender]) -> float:
        """The longest replay."""
        longest = 0.0
        for contender in contenders:
            start = self.backend.mark()
            self.backend.replay(contender.graph)
            end = self.backend.mark()
            self.backend.synchronize()
            longest = max(longest, self.backend.elapsed_us(start, end))
        return longest


class _Clocks:
    """Samples of the clocks and their summary."""

    def __init__(self, read: Callable[[], dict[str, float | None]]) -> None:
        self._read = read
        self._samples: list[dict[str, float | None]] = []

    def sample(self) -> None:
        self._samples.append(self._read())

    def summary(self) -> dict[str, float]:
        return summarize_clocks(self._samples)


def summarize_clocks(samples: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """Median of each reading and the range of the SM clock."""
    result: dict[str, float] = {}
    for key in sorted({key for sample in samples for key in sample}):
        values = [value for sample in samples if (value := sample.get(key)) is not None]
        if values:
            result[key] = statistics.median(values)
            if key == "sm_mhz":
                result |= {"sm_mhz_min": min(values), "sm_mhz_max": max(values)}
    return result


def _summary(problem: Problem, m: int, rows: dict[str, dict[str, Any]]) -> str:
    parts = []
    for name, row in rows.items():
        parts.append(
            f"{name} {row['us']:.2f}"
            if row["us"] is not None
            else f"{name} - ({row['error'] or row['skipped']})"
        )
    return f"{problem.shape.name:12} M={m:<5} {'  '.join(parts)}"
