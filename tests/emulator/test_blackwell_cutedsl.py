"""Programs of the CuTe DSL on the emulator: both forms of a tensor map, host functions that are not
ours, findings.
"""

from __future__ import annotations

import cutlass.cute as cute
import pytest
import torch
from cutlass.cute import runtime

from swordfish.emulator import EmulatorError
from swordfish.emulator.cutedsl import Session
from tests.emulator.kernels import tma_copy


def tensors(rows: int = 64, cols: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Random fp16 input and an output full of NaN."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(rows, cols, generator=g).half(), torch.full(
        (rows, cols), float("nan"), dtype=torch.float16
    )


def test_hardware_tensor_map() -> None:
    """`make_tiled_tma_atom` writes the 64-byte form itself; four tiles with a 128-byte swizzle arrive in
    place.
    """
    src, out = tensors()
    with Session("sm_100a") as session:
        args = [runtime.from_dlpack(t, assumed_align=16) for t in (src, out)]
        cute.compile(tma_copy.by_atom, *args)(*args)
    assert torch.equal(out, src)
    (launch,), (report,) = session.launches, session.reports
    assert launch.shape.grid == (2, 2, 1)
    assert report.tma_load_bytes == src.numel() * 2


def test_encoded_tensor_map_and_other_schedules() -> None:
    """`create_tensor_map_tiled` goes through the driver's encoder; a recorded launch runs again under
    other seeds.
    """
    src, out = tensors()
    with Session("sm_100a") as session:
        args = [runtime.from_dlpack(t, assumed_align=16) for t in (src, out)]
        compiled = cute.compile(tma_copy.by_map, *args, 64, 128)
        compiled(*args, 64, 128)
    assert torch.equal(out, src)
    for seed in range(4):
        out.fill_(float("nan"))
        session.launches[0].run(seed=seed, policy="late").raise_on_findings()
        assert torch.equal(out, src)


def test_findings_of_a_launch_raise() -> None:
    """A mutant of the recorded PTX is reported; inside a session, a finding raises through the DSL's call."""
    src, out = tensors()
    with Session("sm_100a") as session:
        args = [runtime.from_dlpack(t, assumed_align=16) for t in (src, out)]
        compiled = cute.compile(tma_copy.by_map, *args, 64, 128)
        compiled(*args, 64, 128)
        with pytest.raises(EmulatorError, match="out of bounds"):
            compiled(*args, 64 + 32, 128)  # one row of tiles too many: the output ends
    launch = session.launches[0]
    lost = launch.run(
        ptx=launch.ptx.replace("mbarrier.arrive.expect_tx", "mbarrier.expect_tx.relaxed.cta", 1)
    )
    assert not lost.ok
