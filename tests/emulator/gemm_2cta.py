"""The 2-CTA warp-specialised test GEMM: compiled with or without one of its defects, and run on the
emulator.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from swordfish.emulator import Report, TensorMap, run
from swordfish.runtime import KernelSource, get_artifact

ENTRY = "gemm_2cta"
STAGES, TILE_M, DEPTH, OUT_COLS = 3, 256, 64, 32
POLICIES, WARP_POLICIES = ("late", "eager", "mixed", "heavy"), ("random", "greedy", "round_robin")


@functools.cache
def ptx(*defects: str, tile_n: int = 128) -> str:
    """PTX text for sm_100a with the given defect macros defined."""
    macros = [f"#define {d}" for d in defects] + [f"#define TILE_N {tile_n}"]
    text = "\n".join([*macros, (Path(__file__).parent / "kernels" / "gemm_2cta.cu").read_text()])
    return get_artifact(KernelSource(text, ENTRY), "sm_100a").ptx


def problem(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``A[m, k]`` and ``B[n, k]`` in bf16 with small integers, and the exact product ``[m, n]`` in fp32."""
    g = torch.Generator().manual_seed(7)
    a = torch.randint(-3, 4, (m, k), generator=g).to(torch.bfloat16)
    b = torch.randint(-3, 4, (n, k), generator=g).to(torch.bfloat16)
    return a, b, a.float() @ b.float().T


def gemm(
    text: str,
    *,
    m: int = 768,
    n: int = 128,
    k: int = 256,
    tile_n: int = 128,
    clusters: int = 1,
    seed: int = 0,
    **options: Any,
) -> tuple[Report, torch.Tensor, torch.Tensor]:
    """Run the kernel on ``clusters`` clusters under schedule ``seed``: the report, the result, the exact
    product.
    """
    a, b, exact = problem(m, n, k)
    d = torch.full((m, n), float("nan"))
    maps = [
        TensorMap(a, "bfloat16", (k, m), (2 * k,), (DEPTH, TILE_M // 2), swizzle="128"),
        TensorMap(b, "bfloat16", (k, n), (2 * k,), (DEPTH, tile_n // 2), swizzle="128"),
        TensorMap(d, "float32", (n, m), (4 * n,), (OUT_COLS, TILE_M // 2), swizzle="128"),
    ]
    shared = STAGES * DEPTH * 2 * (TILE_M // 2 + tile_n // 2) + TILE_M // 2 * OUT_COLS * 4 + 256
    shape = SimpleNamespace(
        grid=(2 * clusters, 1, 1), block=(192, 1, 1), cluster=(2, 1, 1), shared_bytes=shared
    )
    sizes = [np.int32(n // tile_n), np.int32(m // TILE_M * (n // tile_n)), np.int32(k // DEPTH)]
    options = {"policy": POLICIES[seed % 4], "warp_policy": WARP_POLICIES[seed % 3], **options}
    return run(text, ENTRY, [*maps, *sizes], shape, arch="sm_100a", seed=seed, **options), d, exact


def trial(text: str, seed: int) -> str:
    """Why a run is wrong: the kinds of findings or ``wrong result``; empty for a right one. Used by
    mutation tests.

    Two clusters take three tiles each, of two columns of tiles: every ring wraps and every index has a use.
    """
    report, d, exact = gemm(text, n=256, clusters=2, seed=seed, tcgen05_fences=True)
    if report.findings:
        return ", ".join(sorted(report.kinds()))
    return "" if torch.equal(d, exact) else "wrong result"
