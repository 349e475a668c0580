"""The floor's kernels on the emulator: they end, read every byte once, and break no rule that the emulator
checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import swordfish
from bench.floor import Floor, Reader
from swordfish.runtime import get_kernel


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("size", [16, 1024, 3072, 20000])
@pytest.mark.parametrize("sms", [1, 3])
def test_bulk_reader_moves_every_byte_once_through_a_wrapping_ring(size, sms, programmatic):
    reader = Reader("read_bulk", 32, 1, 3, 1024)
    report = _run(reader, size, sms, programmatic)
    assert report.findings == ()
    assert report.tma_load_bytes == size
    assert report.async_ops == -(-size // reader.chunk)


@pytest.mark.parametrize("size", [16, 4096, 20000])
def test_register_reader_loads_every_vector(size):
    reader = Reader("read_registers", 64, 1, 2)
    report = _run(reader, size, 2, False)
    assert report.findings == ()
    # A warp's load is 512 bytes; loads past the end are predicated off, whole warps of them at no cost.
    assert report.classes["load_global"] >= -(-size // 512)


def _run(reader, size, sms, programmatic):
    state = Floor(programmatic).buffer(size, "cpu")
    before = state["data"].clone()
    with swordfish.emulate("sm_90a", seed=2) as emulation:
        kernel = get_kernel(reader.source(programmatic), "sm_90a")
        config = reader.launch_config(sms, programmatic)
        kernel.launch(config, [state["data"], np.uint64(size), state["sink"]])
    assert torch.equal(state["data"], before) and int(state["sink"]) == 0
    return emulation.reports[-1]
