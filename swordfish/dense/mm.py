"""The product with the dequantised weight, by cuBLAS."""

from __future__ import annotations

import torch

from swordfish.dense.dequant import dequantize_into
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
    step = n if 2 * k * n <= limit else max(1, limit // (2 * k * BLOCK)) * BLOCK
    for start in range(0, n, step):
        stop = min(n, start + step)
        # Rows of whole 16 bytes whatever N is, for the kernel and for cuBLAS.
        dense = torch.empty((k, -(-(stop - start) // BLOCK) * BLOCK), dtype=w.dtype, device=w.device)[
            :, : stop - start
        ]
        dequantize_into(w, dense, columns=(start, stop))
        part = out[:, start:stop]
        if bias is None:
            torch.mm(x, dense, out=part)
        else:
            torch.addmm(bias[start:stop], x, dense, out=part)
    return out
