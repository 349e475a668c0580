"""Register fragments of mma.sync and wgmma for 16-bit operands (PTX ISA, sections on matrix fragments).

All functions take matrices of 16- or 32-bit patterns, shaped ``[..., rows, columns]``, and return uint32 registers shaped
``[..., threads, registers]``; ``unpack_*`` go the other way.
"""

from __future__ import annotations

import numpy as np

from .case import Array

__all__ = ["pack_a", "pack_b", "pack_c16", "pack_c32", "unpack_c16", "unpack_c32"]


def _pairs(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def pack_a(a: Array) -> Array:
    """A ``[..., 16 w, K]`` for ``w`` warps, K 8 or 16 -> ``[..., 32 w, K / 4]``."""
    rows, k = a.shape[-2:]
    lane = np.arange(rows * 2)
    row = lane // 32 * 16 + lane % 32 // 4
    col = lane % 4 * 2
    regs = [
        _pairs(a[..., row + dr, col + dk], a[..., row + dr, col + dk + 1])
        for dk in range(0, k, 8)
        for dr in (0, 8)
    ]
    return np.stack(regs, axis=-1)


def pack_b(b: Array) -> Array:
    """B ``[..., K, 8]`` -> ``[..., 32, K / 8]``."""
    lane = np.arange(32)
    row, col = lane % 4 * 2, lane // 4
    return np.stack(
        [_pairs(b[..., row + d, col], b[..., row + d + 1, col]) for d in range(0, b.shape[-2], 8)], axis=-1
    )


def _c_index(rows: int, columns: int) -> tuple[Array, Array]:
    """Row and column of accumulator ``[thread, element]``, elements in register order."""
    lane = np.arange(rows * 2)[:, None]
    e = np.arange(columns // 2)[None, :]
    return lane // 32 * 16 + lane % 32 // 4 + e // 2 % 2 * 8, e // 4 * 8 + lane % 4 * 2 + e % 2


def pack_c32(c: Array) -> Array:
    """C ``[..., 16 w, N]`` of float32 patterns -> ``[..., 32 w, N / 2]``."""
    row, col = _c_index(*c.shape[-2:])
    return c[..., row, col].astype(np.uint32)


def pack_c16(c: Array) -> Array:
    """C ``[..., 16 w, N]`` of float16 patterns -> ``[..., 32 w, N / 4]``."""
    row, col = _c_index(*c.shape[-2:])
    flat = c[..., row, col]
    return _pairs(flat[..., 0::2], flat[..., 1::2])


def unpack_c32(regs: Array, columns: int) -> Array:
    rows = regs.shape[-2] // 2
    row, col = _c_index(rows, columns)
    out = np.zeros((*regs.shape[:-2], rows, columns), dtype=np.uint32)
    out[..., row, col] = regs
    return out


def unpack_c16(regs: Array, columns: int) -> Array:
    rows = regs.shape[-2] // 2
    row, col = _c_index(rows, columns)
    flat = np.stack([regs & 0xFFFF, regs >> 16], axis=-1).reshape(*regs.shape[:-1], -1)
    out = np.zeros((*regs.shape[:-2], rows, columns), dtype=np.uint16)
    out[..., row, col] = flat
    return out
