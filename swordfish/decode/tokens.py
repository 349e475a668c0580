"""Activations as the decode kernels read them: packed row order, rows 16-byte aligned, K filled up with zeros
to blocks of 64."""

from __future__ import annotations

import functools

import numpy as np
import torch

from swordfish.runtime.launch import Kernel, LaunchConfig
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble

__all__ = ["gather_source", "packed_tokens"]

_THREADS = 128
_PER_THREAD = 8
_ROW_ALIGNMENT = 8  # elements, 16 bytes


@functools.cache
def gather_source() -> KernelSource:
    """The kernel of ``device/gather.cu``; it serves every scheme and shape."""
    return assemble("swordfish/decode/device/gather.cu", "gather_tokens", {"SF_BF16": 1})


@functools.cache
def _kernel(arch: str) -> Kernel:
    return get_kernel(gather_source(), arch)


def packed_tokens(x: torch.Tensor, perm: torch.Tensor | None, k: int, arch: str) -> torch.Tensor:
    """``x`` ``[M, K]`` in packed order, ``[M, ceil(k / 64) * 64]``; ``x`` itself when it already is as the
    kernels need it.

    ``perm`` is int32 ``[k]`` (-1: a padded row) or ``None`` for natural order. One launch on the current
    stream otherwise.
    """
    if perm is None and k % 64 == 0 and x.data_ptr() % 16 == 0 and _aligned_rows(x):
        return x
    m, pitch, inner = x.shape[0], *x.stride()
    padded = -(-k // 64) * 64
    out = torch.empty((m, padded), dtype=x.dtype, device=x.device)
    ctas = -(-m * (padded // _PER_THREAD) // _THREADS)
    config = LaunchConfig((ctas, 1, 1), (_THREADS, 1, 1), programmatic=True)
    arguments = (np.int32(m), np.int32(k), np.int32(padded), np.int64(pitch), np.int64(inner))
    _kernel(arch).launch(config, (x, perm, out, *arguments))
    return out


def _aligned_rows(x: torch.Tensor) -> bool:
    """Whether rows of whole 16 bytes, the first of them aligned, all are; 0 (expanded rows) is no stride for
    a tensor map. Most are contiguous, which is the quickest to ask."""
    return x.is_contiguous() or (x.stride(1) == 1 and x.stride(0) > 0 and x.stride(0) % _ROW_ALIGNMENT == 0)
