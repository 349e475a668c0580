"""Timing: CUDA graphs over rotating cold weights, contenders interleaved, median of replays.

One graph holds many launches of one contender, walking round buffers that together are several times the L2,
so every launch finds its weight cold. The contenders' graphs are replayed in turn, round after round, between
events; a drift of clocks or temperature then touches all of them alike.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from swordfish.tune import timing
from swordfish.tune.timing import rotation_count

__all__ = [
    "Backend",
    "Contender",
    "CudaBackend",
    "Timing",
    "clone_state",
    "estimate_us",
    "launches_per_graph",
    "measure",
    "rotation_count",
    "state_bytes",
]

WARM_UP_US = 100_000.0
"""Replays before the first sample: clocks take tens of milliseconds to rise from idle."""

GRAPH_US = 2000.0
MAX_LAUNCHES = 512
"""Length of one graph, and its largest number of launches (before rounding up to whole rotations)."""

Call = Callable[[], torch.Tensor]


def launches_per_graph(buffers: int, estimate_us: float, graph_us: float | None = None) -> int:
    """Launches in one graph: whole rotations lasting about ``graph_us``, by default 2 ms, which makes the
    graph's own launch negligible."""
    graph_us = GRAPH_US if graph_us is None else graph_us
    wanted = min(MAX_LAUNCHES, math.ceil(graph_us / max(estimate_us, 1e-3)))
    return buffers * max(1, math.ceil(wanted / buffers))


def estimate_us(read_bytes: int, flops: float) -> float:
    """A rough time for sizing graphs: 3 TB/s, 600 TFLOP/s and 2 us of launch."""
    return 2.0 + max(read_bytes / 3e6, flops / 6e8)


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return [t for value in state.values() for t in _tensors(value)]
    if isinstance(state, (list, tuple)):
        return [t for value in state for t in _tensors(value)]
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return [t for f in dataclasses.fields(state) for t in _tensors(getattr(state, f.name))]
    return []


def state_bytes(state: Any) -> int:
    """Bytes of the distinct storages that a state's tensors live in.

    Raises ``TypeError`` on a state without tensors, which could neither be counted nor copied.
    """
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(state)}
    if not storages:
        raise TypeError(
            f"state={type(state).__name__} is not allowed: expected tensors in dicts, lists or dataclasses"
        )
    return sum(storages.values())


def _clone_tensor(tensor: torch.Tensor) -> torch.Tensor:
    # Tensor.clone() would drop the row pitch of a padded view.
    storage: Any = tensor.untyped_storage()
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(storage.clone(), tensor.storage_offset(), tensor.size(), tensor.stride())


def clone_state(state: Any) -> Any:
    """A copy of an implementation's weight with its own memory: tensors inside dicts, lists, tuples and
    dataclasses."""
    if isinstance(state, torch.Tensor):
        return _clone_tensor(state)
    if isinstance(state, dict):
        return {key: clone_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(clone_state(value) for value in state)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        fresh = copy.copy(state)
        for field in dataclasses.fields(state):
            object.__setattr__(fresh, field.name, clone_state(getattr(state, field.name)))
        return fresh
    return state


class Backend(timing.Backend, Protocol):
    """What timing needs from the device; tests put a simulated one in its place."""

    def capture(self, calls: Sequence[Callable[[], Any]], repeats: int) -> tuple[Any, list[torch.Tensor]]:
        """A graph of ``repeats`` walks over ``calls``, and the results that the last walk returned."""
        ...


class CudaBackend(timing.CudaBackend):
    """The graphs and events that ``swordfish tune`` uses, keeping the results of the last walk."""

    def capture(self, calls: Sequence[Callable[[], Any]], repeats: int) -> tuple[Any, list[torch.Tensor]]:
        results: list[torch.Tensor] = []

        # One call to the tuner's eyes: every implementation also runs once before the capture, where modules
        # load, autotuners run and workspaces appear.
        def walk() -> None:
            results[:] = [call() for call in calls]

        return super().capture([walk], repeats), results


@dataclass(frozen=True)
class Contender:
    """A captured graph and the number of units (launches, or layers of a chain) that one replay runs."""

    name: str
    graph: Any
    units: int


@dataclass(frozen=True)
class Timing:
    """Microseconds per unit over the replays of one contender."""

    median_us: float
    min_us: float
    p10_us: float
    p90_us: float
    replays: int

    @staticmethod
    def from_samples(samples: Sequence[float]) -> Timing:
        """Statistics of one sample per replay."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        return Timing(
            median_us=statistics.median(ordered),
            min_us=ordered[0],
            p10_us=ordered[round(0.1 * last)],
            p90_us=ordered[round(0.9 * last)],
            replays=len(ordered),
        )


def measure(
    contenders: Sequence[Contender],
    backend: Backend,
    *,
    rounds: int = 20,
    warm_up_us: float | None = None,
    sample: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Replay every contender once a round, starting each round with another one; time per unit of each.

    Rounds are first run and dropped until ``warm_up_us`` (default :data:`WARM_UP_US`) have passed on the
    device, two at least. ``sample`` is then called once a round with the round's work queued and not waited
    for: the moment to read clocks. Names must be distinct.
    """
    names = [contender.name for contender in contenders]
    if len(set(names)) != len(names):
        raise ValueError(f"contenders={names} is not allowed: expected distinct names")
    if not contenders:
        return {}
    warm_up_us = WARM_UP_US if warm_up_us is None else warm_up_us
    samples: dict[str, list[float]] = {name: [] for name in names}
    number, spent = 0, 0.0
    while number < 2 or spent < warm_up_us:
        stamps = _round(contenders, backend, number)
        backend.synchronize()
        spent += max(backend.elapsed_us(stamps[0][1], stamps[-1][2]), 1.0)
        number += 1
    for _ in range(rounds):
        stamps = _round(contenders, backend, number)
        if sample is not None:
            sample()
        backend.synchronize()
        for contender, start, end in stamps:
            samples[contender.name].append(backend.elapsed_us(start, end) / contender.units)
        number += 1
    return {name: Timing.from_samples(values) for name, values in samples.items()}


def _round(
    contenders: Sequence[Contender], backend: Backend, number: int
) -> list[tuple[Contender, Any, Any]]:
    """Queue one replay of each, beginning with contender ``number`` modulo their count; contender, start,
    end."""
    first = number % len(contenders)
    stamps = []
    for contender in [*contenders[first:], *contenders[:first]]:
        start = backend.mark()
        backend.replay(contender.graph)
        stamps.append((contender, start, backend.mark()))
    return stamps
