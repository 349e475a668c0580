"""Zeroed device memory for kernels whose CTAs count each other.

A kernel gets counters that are zero and leaves them zero, so nothing has to be cleared between launches and
no memset goes before one. Launches that may run at the same time must not share counters: each stream has its
own, and so has each stream of each graph capture, because a graph runs wherever it is launched later.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from swordfish.errors import ArgumentError
from swordfish.runtime import torch_cuda
from swordfish.runtime.driver import bindings, check

__all__ = ["COUNTERS", "counters"]

COUNTERS = 4096
"""Counters of a stream, uint32 each."""

_STREAMS_PER_BLOCK = 64

_lock = threading.Lock()
_free: dict[int, list[torch.Tensor]] = {}
_of_stream: dict[tuple[int, int, int], torch.Tensor] = {}
"""By device, stream and graph capture (0: none). A graph may outlive everything that is known here, so its
counters are never given to anyone else."""


def counters(device: torch.device, count: int) -> torch.Tensor:
    """At least ``count`` counters, int32, for launches on the current stream of ``device``.

    On the CPU (emulated kernels) they are new ones. Raises ``ArgumentError`` for more than :data:`COUNTERS`.
    """
    if not 0 < count <= COUNTERS:
        raise ArgumentError("count", count, f"1 to {COUNTERS}")
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32)
    index = torch_cuda.current_device() if device.index is None else device.index
    stream = torch_cuda.raw_stream(index)
    key = (index, stream, _capture(index, stream))
    found = _of_stream.get(key)
    if found is None:
        with _lock:
            found = _of_stream.get(key)
            if found is None:
                free = _free.setdefault(index, [])
                if not free:
                    free.extend(_zeroed(index))
                found = _of_stream[key] = free.pop()
    return found


def _capture(index: int, stream: int) -> int:
    """A number for the capture that the stream takes part in, never used twice in a process; or 0."""
    previous = torch_cuda.exchange_device(index)
    try:
        capturing = torch.cuda.is_current_stream_capturing()
    finally:
        torch_cuda.exchange_device(previous)
    if not capturing:
        return 0
    driver: Any = bindings()
    return int(check("cuStreamGetCaptureInfo", driver.cuStreamGetCaptureInfo(stream))[1])


def _zeroed(index: int) -> list[torch.Tensor]:
    """A block of counters, cleared by the time this returns; also while a graph is being captured."""
    driver: Any = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    mode = check("cuThreadExchangeStreamCaptureMode", driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        # A stream of its own is not part of the capture, nor is its memory part of a graph's pool.
        side: Any = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            block = torch.zeros(
                (_STREAMS_PER_BLOCK, COUNTERS), dtype=torch.int32, device=torch.device("cuda", index)
            )
        side.synchronize()
    finally:
        driver.cuThreadExchangeStreamCaptureMode(mode)
    return list(block.unbind())
