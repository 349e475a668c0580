"""Activations in packed order: every kind of strides, padding, rows longer than a window."""

from __future__ import annotations

import pytest
import torch

from swordfish.decode.tokens import packed_tokens
from swordfish.runtime.device import device_props
from tests.backends import BACKENDS, Backend

K = [64, 333, 4100, 16392, 20000]


def _views(m: int, k: int, device: str) -> dict[str, torch.Tensor]:
    """The same shape in memory of other kinds; values that tell rows and columns apart."""
    values = torch.arange(2 * m * k, device=device).to(torch.int16).view(torch.bfloat16).view(m, 2 * k)
    return {
        "rows": values[:, :k],
        "unaligned": values[:, 3 : 3 + k],
        "columns": values[:, ::2],
        "transposed": values[:, :k].T.contiguous().T,
        "one row": values[:1, :k].expand(m, k),
    }


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("order", ["natural", "permuted", "padded"])
def test_packed_tokens(backend: Backend, k: int, order: str) -> None:
    """Bit for bit; rows of padding and values beyond K are zero."""
    generator = torch.Generator().manual_seed(k)
    perm = None if order == "natural" else torch.randperm(k, generator=generator).int()
    if perm is not None and order == "padded":
        hole = torch.full((21,), -1, dtype=torch.int32)
        perm = torch.cat([perm[:40], hole, perm[40:], hole])
    rows = k if perm is None else perm.numel()
    for name, x in _views(3, k, backend.device).items():
        assert _packed_right(backend, x, perm, rows), name


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_more_rows_have_larger_ctas(backend: Backend) -> None:
    perm = torch.randperm(8200, generator=torch.Generator().manual_seed(1)).int()
    assert _packed_right(backend, _views(16, 8200, backend.device)["rows"], perm, 8200)


def _packed_right(backend: Backend, x: torch.Tensor, perm: torch.Tensor | None, rows: int) -> bool:
    perm = None if perm is None else perm.to(x.device)
    expected = torch.zeros(x.shape[0], -(-rows // 64) * 64, dtype=x.dtype, device=x.device)
    expected[:, :rows] = x if perm is None else x[:, perm.long()].where(perm >= 0, 0)
    arch = backend.name if backend.device == "cpu" else device_props(0).arch
    with backend.active():
        out = packed_tokens(x, perm, rows, arch)
    return torch.equal(out.view(torch.int16), expected.view(torch.int16))
