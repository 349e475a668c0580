"""Counters that kernels find zero and leave zero: whose are whose."""

from __future__ import annotations

import pytest
import torch

from swordfish.errors import ArgumentError
from swordfish.runtime.counters import COUNTERS, counters

gpu = pytest.mark.gpu


def test_on_the_cpu_they_are_new() -> None:
    device = torch.device("cpu")
    first = counters(device, 7)
    first.fill_(1)
    assert counters(device, 7).tolist() == [0] * 7


@pytest.mark.parametrize("count", [0, COUNTERS + 1])
def test_count_out_of_range(count: int) -> None:
    with pytest.raises(ArgumentError, match=f"count={count}"):
        counters(torch.device("cpu"), count)


@gpu
def test_one_set_for_each_stream() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    here = counters(device, COUNTERS)
    assert here.device == device and not here.any()
    assert counters(device, 1).data_ptr() == here.data_ptr()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert counters(device, 1).data_ptr() != here.data_ptr()


@gpu
def test_one_set_for_each_stream_of_each_capture() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    seen = [counters(device, 1).data_ptr()]
    side = torch.cuda.Stream()
    for _ in range(2):
        graph, x = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
        with torch.cuda.graph(graph):
            inside = counters(device, 1)
            assert counters(device, 1).data_ptr() == inside.data_ptr()
            x.add_(1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                beside = counters(device, 1)
                x.add_(1)
            torch.cuda.current_stream().wait_stream(side)
        seen += [inside.data_ptr(), beside.data_ptr()]
        assert not inside.any() and not beside.any()
    assert len(set(seen)) == len(seen)
