"""Times of launches with every weight cold: CUDA graphs over copies of the weight, medians of replays."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = ["Backend", "CudaBackend", "Graph", "launches_per_graph", "medians", "rotation_count", "warm_up"]

ROTATION_BYTES = 192 << 20
L2_MULTIPLE = 6
"""The copies of a weight are together at least this large, in bytes and in units of the L2: all cold."""

SMALL_LAYER_COPIES = 30
SMALL_LAYER_BYTES = 1 << 30
"""So many copies at least, where they fit in that many bytes: an average over placements in memory."""

GRAPH_US = 2000.0
MAX_LAUNCHES = 512
"""Length of a graph, long against its own launch; and its most launches, rounded up to whole rotations."""

WARM_UP_US = 100_000.0
"""Replays before the first sample: clocks take tens of milliseconds to rise from idle."""

BYTES_PER_US = 3.5e6
"""Bandwidth in bytes a microsecond with which the length of a graph is guessed."""


def rotation_count(weight_bytes: int, l2_bytes: int) -> int:
    """Copies of a weight of ``weight_bytes`` to walk over, two at least."""
    cold = math.ceil(max(ROTATION_BYTES, L2_MULTIPLE * l2_bytes) / weight_bytes)
    return max(cold, min(SMALL_LAYER_COPIES, SMALL_LAYER_BYTES // weight_bytes), 2)


def launches_per_graph(copies: int, weight_bytes: int) -> int:
    """Launches of one graph, a multiple of ``copies``."""
    guess = 2.0 + weight_bytes / BYTES_PER_US
    wanted = min(MAX_LAUNCHES, math.ceil(GRAPH_US / guess))
    return copies * math.ceil(wanted / copies)


class Backend(Protocol):
    """What timing needs from the device; tests put a simulated one in its place."""

    def capture(self, calls: Sequence[Callable[[], object]], repeats: int) -> Any:
        """A graph of ``repeats`` walks over ``calls``."""
        ...

    def replay(self, graph: Any) -> None:
        """Queue one run of the graph."""
        ...

    def mark(self) -> Any:
        """Queue a time stamp."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two stamps that have passed."""
        ...

    def synchronize(self) -> None:
        """Wait for everything queued."""
        ...


class CudaBackend:
    """CUDA graphs and events of torch's current device."""

    def __init__(self) -> None:
        stream: Any = torch.cuda.Stream
        self._stream = stream()

    def capture(self, calls: Sequence[Callable[[], object]], repeats: int) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            calls[0]()  # the kernel loads at its first call, not inside the capture
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph(): it empties the allocator's cache, and tuning makes hundreds of graphs.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(repeats):
                    for call in calls:
                        call()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.synchronize()
        return graph

    def replay(self, graph: Any) -> None:
        graph.replay()

    def mark(self) -> Any:
        event: Any = torch.cuda.Event
        stamp = event(enable_timing=True)
        stamp.record()
        return stamp

    def elapsed_us(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1000

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class Graph:
    """A captured graph and how many launches one replay makes."""

    def __init__(self, backend: Backend, calls: Sequence[Callable[[], object]], launches: int) -> None:
        self.handle = backend.capture(calls, launches // len(calls))
        self.launches = launches


def warm_up(backend: Backend, graph: Graph) -> None:
    """Replay until clocks have risen."""
    spent = 0.0
    while spent < WARM_UP_US:
        start = backend.mark()
        backend.replay(graph.handle)
        end = backend.mark()
        backend.synchronize()
        spent += max(backend.elapsed_us(start, end), 1.0)


def medians(backend: Backend, graphs: Sequence[Graph], rounds: int) -> list[float]:
    """Microseconds a launch of each graph, the median of ``rounds`` replays after one that is dropped.

    The graphs take turns and each round begins with another one, so that a drift of clocks touches all alike.
    """
    samples: list[list[float]] = [[] for _ in graphs]
    for number in range(rounds + 1):
        order = [(number + i) % len(graphs) for i in range(len(graphs))]
        stamps = []
        for index in order:
            start = backend.mark()
            backend.replay(graphs[index].handle)
            stamps.append((index, start, backend.mark()))
        backend.synchronize()
        if number:
            for index, start, end in stamps:
                samples[index].append(backend.elapsed_us(start, end) / graphs[index].launches)
    return [statistics.median(values) for values in samples]
