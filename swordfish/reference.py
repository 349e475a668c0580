"""The product on the CPU without kernels: exact weights, fp64 sums, one rounding. Slow, for checks and
machines with no GPU."""

from __future__ import annotations

import torch

from swordfish.layouts.packing import BLOCK, unpack_words
from swordfish.packed import PackedWeight

__all__ = ["exact_columns", "reference_mm"]

_COLUMNS = 16 * BLOCK


def exact_columns(w: PackedWeight, start: int, stop: int) -> torch.Tensor:
    """fp64 ``[packed_k, stop - start]``: ``(q - z) * s`` without any rounding, rows in packed order;
    ``start`` a multiple of 64."""
    rows, s = w.packed_k, w.scheme
    words = w.words[start // BLOCK : -(-stop // BLOCK)]
    codes = unpack_words(words, s.bits, (rows, stop - start)).double()
    group = torch.arange(rows, device=w.device) // (rows if s.group_size == -1 else s.group_size)
    scales = w.scales[:, start:stop].double()[group]
    zeros = None if w.zeros is None else w.zeros[:, start:stop].double()[group]
    if s.zeros == "offset" and zeros is not None:
        return codes * scales + zeros
    return (codes - (s.symmetric_zero if zeros is None else zeros)) * scales


def reference_mm(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """``out[M, N] = x[M, K] @ W (+ bias)``, fp64 inside, rounded once to ``out.dtype``."""
    gathered = w.gather(x).double()
    n = w.shape[1]
    for start in range(0, n, _COLUMNS):
        stop = min(n, start + _COLUMNS)
        part = gathered @ exact_columns(w, start, stop)
        if bias is not None:
            part += bias[start:stop].double()
        out[:, start:stop] = part.to(out.dtype)
