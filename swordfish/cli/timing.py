"""Times of the demo on a GPU with every byte cold: copies of the weight are used in turn, together past L2.

A figure to look at, not a benchmark: see ``bench`` for one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from swordfish.matmul import mm
from swordfish.packed import PackedWeight
from swordfish.runtime import DeviceProps, LaunchConfig, assemble, get_kernel

__all__ = ["cold_read_floor", "cold_time"]

_BLOCKS_PER_SM = (1, 2, 4, 8)
_MEASUREMENTS = 10


def cold_time(x: torch.Tensor, weight: PackedWeight, props: DeviceProps) -> float:
    """Seconds of one ``mm(x, weight)``, weights read from memory."""
    size = weight.words.nbytes + weight.scale_rows.nbytes
    copies = [weight, *(copy.deepcopy(weight) for _ in range(_rotation(size, props) - 1))]
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype, device=x.device)

    def call(w: PackedWeight) -> Callable[[], object]:
        return lambda: mm(x, w, out=out)

    return _seconds([call(w) for w in copies])


def cold_read_floor(size: int, props: DeviceProps) -> float:
    """Seconds of the fastest of a few shapes of a kernel that reads ``size`` bytes from memory and does no
    more."""
    kernel = get_kernel(assemble("swordfish/cli/device/read.cu", "read_once", {}), props.arch)
    buffers = [torch.ones(size // 4, dtype=torch.int32, device="cuda") for _ in range(_rotation(size, props))]
    vectors = np.uint64(size // 16)
    best = float("inf")
    for blocks in _BLOCKS_PER_SM:
        launch = kernel.prepare(LaunchConfig((props.sm_count * blocks, 1, 1), (256, 1, 1)))

        def call(buffer: torch.Tensor, launch: Callable[..., None] = launch) -> Callable[[], object]:
            return lambda: launch((buffer, vectors, None))

        best = min(best, _seconds([call(buffer) for buffer in buffers]))
    return best


def _rotation(size: int, props: DeviceProps) -> int:
    """How many copies of ``size`` bytes pass L2 twice over."""
    return max(2, -(-2 * props.l2_bytes // size))


def _seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds a call, best of a few replays of a graph that makes each call once."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    best = float("inf")
    for _ in range(_MEASUREMENTS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e-3 / len(calls))
    return best
