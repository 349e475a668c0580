"""Weights of more than 2^31 elements, through every path; one-hot rows of x make a product show rows of W."""

from __future__ import annotations

import pytest
import torch

import swordfish as sf
from swordfish.dense import dense_mm, dequantize_into
from swordfish.scheme import Scheme
from swordfish.tune.operands import random_weight
from swordfish.weights import dequantize_by_torch

pytestmark = pytest.mark.gpu

K, N = 32768, 65600
"""2.0017 * 2^30 elements: N is 64 columns beyond 2^31."""

STEP = 4096


def huge(bits: int) -> sf.PackedWeight:
    assert K * N > 1 << 31
    scheme = Scheme(bits, 128, "bfloat16", "integer")
    return random_weight(scheme, K, N, torch.device("cuda"), seed=bits)


def columns_of(w: sf.PackedWeight, start: int, stop: int) -> torch.Tensor:
    return dequantize_by_torch(w._columns(start, stop))


@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
@pytest.mark.parametrize("bits", [4, 8])
def test_dequantised_whole(bits: int, transposed: bool) -> None:
    w = huge(bits)
    out = torch.empty((N, K) if transposed else (K, N), dtype=w.dtype, device="cuda")
    dequantize_into(w, out, transposed=transposed)
    for start in range(0, N, STEP):
        stop = min(N, start + STEP)
        part = out[start:stop].T if transposed else out[:, start:stop]
        assert torch.equal(part, columns_of(w, start, stop)), f"columns {start} to {stop}"


@pytest.mark.parametrize("bits", [4, 8])
def test_products(bits: int) -> None:
    """Decode for few and for many rows, and dense in blocks of columns."""
    w = huge(bits)
    rows = torch.tensor([0, 1, K // 2 - 1, K // 2, K - 65, K - 64, K - 2, K - 1], device="cuda").repeat(3)
    x = torch.zeros(len(rows), K, dtype=w.dtype, device="cuda")
    x[torch.arange(len(rows)), rows] = 1
    dense = torch.empty(len(rows), N, dtype=w.dtype, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dense_mm(x, w, None, dense)
    assert torch.cuda.max_memory_allocated() - before <= (1 << 30) + (64 << 20)
    few, many = sf.mm(x[:8], w), sf.mm(x, w)
    for start in range(0, N, STEP):
        part = slice(start, min(N, start + STEP))
        wanted = columns_of(w, part.start, part.stop)[rows]
        assert torch.equal(few[:, part], wanted[:8]), f"few rows, columns from {start}"
        assert torch.equal(many[:, part], wanted), f"many rows, columns from {start}"
        assert torch.equal(dense[:, part], wanted), f"dense, columns from {start}"
