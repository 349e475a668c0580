"""Both backends take the same launch: the kernels of ``test_runtime_gpu.py``, unchanged, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swordfish.runtime import LaunchConfig, TensorMap, emulate, get_kernel
from tests.test_runtime_gpu import AFFINE, TMA


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_kind_of_argument_reaches_the_emulated_kernel(arch: str) -> None:
    x, y = torch.arange(300.0), torch.zeros(300)
    pair, ten = np.array([0, 3], np.int16).tobytes(), torch.full((1,), 10.0)
    launch = get_kernel(AFFINE, arch).prepare(
        LaunchConfig((4, 1, 1), (128, 1, 1), cluster=(2, 1, 1), shared_bytes=512)
    )
    ranks = (torch.arange(300) // 128 % 2).float()
    with emulate(arch) as emulation:
        launch([x, y, np.int32(300), np.float32(2), pair, ten])
        assert torch.equal(y, x * 2 + 13 + ranks)
        launch([x, y, np.int32(300), np.float32(-1), pair, None])
        assert torch.equal(y, 3 - x + ranks)
    assert [report.findings for report in emulation.reports] == [(), ()]


def test_a_tensor_map_reaches_the_emulated_kernel() -> None:
    matrix = torch.arange(40 * 64, dtype=torch.float32).view(40, 64)[:, :48]
    tensor_map, out = TensorMap(matrix, "float32", (48, 40), (256,), (16, 4)), torch.empty(64)
    with emulate("sm_100a", seed=5):
        for column, row in ((16, 8), (40, 38)):
            args = [tensor_map, out, np.int32(column), np.int32(row)]
            get_kernel(TMA, "sm_100a").launch(LaunchConfig((1, 1, 1), (64, 1, 1)), args)
            padded = torch.nn.functional.pad(matrix, (0, 16, 0, 4))
            assert torch.equal(out.view(4, 16), padded[row : row + 4, column : column + 16])
