"""The product with the dequantised weight, by cuBLAS."""

from __future__ import annotations

import torch

from swordfish.dense.dequant import DequantConfig, fill
from swordfish.layouts.packing import BLOCK
from swordfish.packed import PackedWeight

__all__ = ["WORKSPACE_BYTES", "dense_mm"]

WORKSPACE_BYTES = 1 << 30
"""The dequantised weight takes at most this much memory at a time; a larger one is multiplied in blocks of
columns. All seven Llama 8B and 70B shapes fit whole."""


def dense_mm(
    x: torch.Tensor,
    w: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    limit: int = WORKSPACE_BYTES,
) -> torch.Tensor:
    """``out[M, N] = x[M, K] @ W (+ bias)`` on the current stream: dequantise, then ``torch.mm`` or ``addmm``.

    Each weight is rounded to ``w.dtype`` (the other paths use it exactly). Products are summed in fp32, in
    the order that cuBLAS chooses for the shape; bias is added before the one rounding of the result. Where
    cuBLAS splits K it may round partial sums to the 16-bit dtype, as PyTorch's default allows;
    ``torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction`` and its fp16 counterpart forbid it.
    Equal calls give equal bits on one GPU and stream.

    Args:
        x: any strides; rows in the checkpoint's order, also with act-order.
        w: the weight, on a GPU, or on the CPU while one is emulated.
        bias: ``[N]`` in ``w.dtype``, or ``None``.
        out: ``[M, N]`` in ``w.dtype``.
        limit: bytes of workspace, which comes from PyTorch's caching allocator and returns to it.
    """
    k, n = w.shape
    config = DequantConfig.for_product(w.scheme)
    step = n if 2 * k * n <= limit else max(1, limit // (2 * k * BLOCK)) * BLOCK
    # Whole blocks whatever N and K are: aligned rows, for the kernel and for cuBLAS.
    shape = (_whole(step), _whole(k)) if config.transposed else (k, _whole(step))
    workspace = torch.empty(shape, dtype=w.dtype, device=w.device)
    for start in range(0, n, step):
        stop = min(n, start + step)
        fill(w, workspace, config, start, _whole(stop), _whole(k) if config.transposed else w.packed_k)
        weight = (workspace[:, :k].T if config.transposed else workspace)[:, : stop - start]
        part = out[:, start:stop]
        if bias is None:
            torch.mm(x, weight, out=part)
        else:
            torch.addmm(bias[start:stop], x, weight, out=part)
    return out


def _whole(extent: int) -> int:
    """``extent`` filled up to whole blocks."""
    return -(-extent // BLOCK) * BLOCK
