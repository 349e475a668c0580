"""Kernels that overlap by programmatic dependent launch: what comes before ``griddepcontrol.wait`` is held
against what the kernels touch beside which it may run."""

from __future__ import annotations

import pytest
import torch

import swordfish as sf
from swordfish.emulator import Report
from swordfish.runtime import KernelSource
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.registry import get_kernel

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
RELEASE = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
COPY = "to[threadIdx.x] = from[threadIdx.x];"


def launch(*steps: str, source: torch.Tensor, target: torch.Tensor, programmatic: bool = True) -> None:
    """One CTA of two warps that takes these steps."""
    text = 'extern "C" __global__ void step(const int* from, int* to) {{ {} }}'.format(" ".join(steps))
    config = LaunchConfig((1, 1, 1), (64, 1, 1), programmatic=programmatic)
    get_kernel(KernelSource(text, "step"), "sm_90a").prepare(config)((source, target))


def early(reports: list[Report]) -> list[list[str]]:
    return [[f.text.split(",")[0] for f in report.findings if f.kind == "early"] for report in reports]


@pytest.fixture
def ints() -> list[torch.Tensor]:
    return [torch.arange(64, dtype=torch.int32) for _ in range(5)]


@pytest.mark.parametrize(
    ("second", "programmatic", "found"),
    [
        ((COPY, WAIT), True, ["args[0] is read before griddepcontrol.wait"]),
        ((WAIT, COPY), True, []),
        ((COPY, WAIT), False, []),  # begins when the first has ended
        ((RELEASE, WAIT, COPY), True, []),
    ],
)
def test_what_the_kernel_before_writes(
    ints: list[torch.Tensor], second: tuple[str, ...], programmatic: bool, found: list[str]
) -> None:
    a, b, c, *_ = ints
    with sf.emulate("sm_90a") as emulation:
        launch(WAIT, RELEASE, COPY, source=a, target=b)
        launch(*second, source=b, target=c, programmatic=programmatic)
    assert early(list(emulation.reports)) == [[], found]


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ((WAIT, RELEASE, COPY), []),  # lets others start when the first is complete
        ((RELEASE, WAIT, COPY), ["args[0] is read before griddepcontrol.wait"]),
        ((COPY,), ["args[0] is read before griddepcontrol.wait"]),  # ends without having waited
    ],
)
def test_the_kernel_before_that(ints: list[torch.Tensor], between: tuple[str, ...], found: list[str]) -> None:
    a, b, c, d, e = ints
    with sf.emulate("sm_90a") as emulation:
        launch(WAIT, COPY, source=a, target=b)
        launch(*between, source=c, target=d)
        launch(COPY, WAIT, source=b, target=e)
    assert early(list(emulation.reports)) == [[], [], found]


def test_what_the_kernel_before_reads(ints: list[torch.Tensor]) -> None:
    a, b, c, d, _ = ints
    with sf.emulate("sm_90a") as emulation:
        launch(WAIT, COPY, source=a, target=b)
        launch(COPY, WAIT, source=c, target=a)
        launch(COPY, WAIT, source=c, target=d)
    writes = ["args[1] is written before griddepcontrol.wait"]
    assert early(list(emulation.reports)) == [[], writes, []]


def test_a_warp_waits_for_all(ints: list[torch.Tensor]) -> None:
    """One warp waits, the others meet it at a barrier."""
    a, b, c, *_ = ints
    with sf.emulate("sm_90a") as emulation:
        launch(WAIT, COPY, source=a, target=b)
        launch(f"if (threadIdx.x < 32) {{ {WAIT} }} __syncthreads();", COPY, source=b, target=c)
    assert early(list(emulation.reports)) == [[], []]
    assert torch.equal(c, a)
