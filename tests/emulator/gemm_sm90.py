"""CUDA C++ of a warp-specialised Hopper GEMM: TMA with multicast over a cluster of two, wgmma, mbarrier ring.

``C[M, N] = A[M, K] @ B[N, K].T`` in bf16 with fp32 sums; a cluster computes 256 x 256, each CTA 128 x 256
with two consumer warpgroups; each CTA loads its half of B for both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swordfish import emulator
from tests.emulator.conftest import Launch, nvrtc

ACC = ", ".join(f"%{k}" for k in range(128))
OPERANDS = ", ".join(f'"+f"(d[{k}])' for k in range(128))

SOURCE = (
    (Path(__file__).parent / "kernels" / "gemm_sm90.cu")
    .read_text()
    .replace("ACCUMULATOR_OPERANDS", OPERANDS)
    .replace("ACCUMULATORS", ACC)
)


@dataclass(frozen=True)
class Problem:
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor

    @staticmethod
    def random(m: int, n: int, k: int, seed: int = 0) -> Problem:
        g = torch.Generator().manual_seed(seed)
        a, b = (torch.randn(r, k, generator=g).bfloat16() for r in (m, n))
        return Problem(a, b, torch.full((m, n), float("nan"), dtype=torch.bfloat16))

    def relative_error(self) -> float:
        exact = self.a.double() @ self.b.double().T
        return float((self.c.double() - exact).abs().max() / exact.abs().max())


def ptx() -> str:
    """The kernel as NVRTC compiles it for Hopper."""
    return nvrtc(SOURCE)


def run(p: Problem, text: str, **options: Any) -> emulator.Report:
    (m, k), n = p.a.shape, p.b.shape[0]
    maps = [
        emulator.TensorMap(t, "bfloat16", (k, t.shape[0]), (2 * k,), (64, 128), swizzle="128")
        for t in (p.a, p.b)
    ]
    launch = Launch((m // 128, n // 256, 1), (384, 1, 1), (2, 1, 1), 3 * (128 + 256) * 128 + 64)
    return emulator.run(text, "k", [*maps, p.c, np.int32(n), np.int32(k)], launch, arch="sm_90a", **options)
