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

_CTAS = 64
_CTAS_OF_A_ROW = 4
_THREADS = (128, 1024)
"""CTAs of a launch with few rows, and of a row at least; the least and most threads of each. Every CTA copies
a whole row. With the product behind it 16 rows take 6.3, 13.5, 13.3 and 36.3 us on 4096 x 4096, 8192 x 8192,
14336 x 4096 and 28672 x 8192 with about 4 CTAs a row; with 128 threads for every K the last takes 39.2, with
512 the first 6.5. One row of 28672 takes 29.9 with 128 threads and 30.4 with 1024."""

_STAGED_BYTES = 64 * 1024
"""Rows of x up to here are permuted in shared memory. K of a layer is hardly ever longer."""

_ROW_AT = 128
"""Where a row begins in the kernel's shared memory."""

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
    if perm is None and k % 64 == 0 and _aligned(x):
        return x
    m, columns = x.shape
    padded = _round_up(k, 64)
    out = torch.empty((m, padded), dtype=x.dtype, device=x.device)
    whole = columns % _ROW_ALIGNMENT == 0 and _aligned(x)
    staged = perm is not None and whole and 2 * columns <= _STAGED_BYTES
    threads = _threads(m, padded // 8)
    config = LaunchConfig(
        (m * -(-padded // (8 * threads)), 1, 1),
        (threads, 1, 1),
        shared_bytes=_ROW_AT + 2 * columns * staged,
        programmatic=True,
    )
    sizes = map(np.int32, (staged, columns, k, padded))
    _kernel(arch).launch(config, (x, perm, out, *sizes, *map(np.int64, x.stride())))
    return out


def _threads(m: int, pieces: int) -> int:
    """Threads of a CTA for rows of ``pieces`` times 8 values, one piece a thread."""
    ctas = max(_CTAS // m, _CTAS_OF_A_ROW)
    fewest, most = _THREADS
    return min(most, max(fewest, _round_up(-(-pieces // ctas), 32)))


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _aligned(x: torch.Tensor) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 bytes; 0 (expanded rows) is no stride for a
    tensor map. Most x are contiguous, which is the quickest to ask."""
    rows = x.is_contiguous() or (x.stride(1) == 1 and x.stride(0) > 0 and x.stride(0) % _ROW_ALIGNMENT == 0)
    return rows and x.data_ptr() % 16 == 0
