"""The packed weight format, written once as layouts.

A weight of K rows (input features) by N columns (output features) is cut into blocks of 64 x 64 codes. The
*bit layout* of a block maps a coordinate ``(k, n)`` to the offset of the code's least significant bit. It
is a plain shape : stride layout of the CuTe algebra (package ``tensor_layouts``); the coordinate modes are

====  ======  =====================  ====================================================
mode  extent  of                     meaning for ``mma.sync.m16n8k16``
====  ======  =====================  ====================================================
o     2       ``k % 2``              which half of a 32-bit fragment register
t     4       ``k % 8 // 2``         lane ``% 4``
h     2       ``k % 16 // 8``        which fragment register
s     4       ``k % 64 // 16``       k16 step (one *sub-tile* of the block)
c     8       ``n % 8``              lane ``// 4``
b     2       ``n % 16 // 8``        which n8 tile of a pair
j     4       ``n % 64 // 16``       which pair of n8 tiles
====  ======  =====================  ====================================================

Everything else in this package (packer, unpacker, byte, word and lane views) is computed from
:func:`block_layout` with the algebra; no other place knows a stride of the format. Importing this module
imports ``tensor_layouts``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tensor_layouts import Layout, coalesce, compose, cosize, flatten, size, upcast

from swordfish.errors import ArgumentError

__all__ = [
    "BLOCK",
    "Mode",
    "block_bytes",
    "block_layout",
    "byte_layout",
    "lane_group_layout",
    "lane_word_layout",
    "modes",
    "tensor_layout",
    "tma_layout",
    "word_layout",
]

BLOCK = 64
"""Rows and columns of a block."""

LANES = 32
TMA_ROW_BYTES = 256
"""Extent of a TMA box dimension is at most 256 elements, so a block travels as rows of 256 bytes."""

_K_MODES = ("o", "t", "h", "s")
_N_MODES = ("c", "b", "j")
_K_SHAPE = (2, 4, 2, 4)
_N_SHAPE = (8, 2, 4)

_BIT_STRIDES = {
    #    o    t    h   s       c    b   j
    4: ((16, 128, 4, 4096), (512, 8, 32)),
    8: ((16, 256, 8, 8192), (1024, 32, 64)),
}


class Mode(NamedTuple):
    """One mode of the block layout: its name, the axis it decomposes, its extent and its stride in bits."""

    name: str
    axis: str
    extent: int
    stride: int


def block_layout(bits: int) -> Layout:
    """The definition: ``(k, n)`` of a 64 x 64 block -> bit offset of the code inside the block.

    Raises ``ArgumentError`` unless ``bits`` is 4 or 8.
    """
    if bits not in _BIT_STRIDES:
        raise ArgumentError("bits", bits, "4 or 8")
    return Layout((_K_SHAPE, _N_SHAPE), _BIT_STRIDES[bits])


def tensor_layout(k: int, n: int, bits: int) -> Layout:
    """``(k, n)`` of a whole weight (``k`` and ``n`` multiples of 64) -> bit offset in the packed tensor.

    Blocks are contiguous; those that follow each other along K are neighbours in memory.
    """
    for name, value in (("k", k), ("n", n)):
        if value <= 0 or value % BLOCK:
            raise ArgumentError(name, value, "a positive multiple of 64")
    block = block_layout(bits)
    (k_shape, n_shape), (k_stride, n_stride) = block.shape, block.stride
    step = 8 * block_bytes(bits)
    return Layout(
        ((*k_shape, k // BLOCK), (*n_shape, n // BLOCK)),
        ((*k_stride, step), (*n_stride, step * (k // BLOCK))),
    )


@cache
def modes(bits: int) -> tuple[Mode, ...]:
    """The named modes of :func:`block_layout`, K modes first, fastest-varying first."""
    block = block_layout(bits)
    flat = flatten(block)
    axes = "k" * len(_K_MODES) + "n" * len(_N_MODES)
    return tuple(
        Mode(name, axis, extent, stride)
        for name, axis, extent, stride in zip(_K_MODES + _N_MODES, axes, flat.shape, flat.stride, strict=True)
    )


def block_bytes(bits: int) -> int:
    """Bytes of one block: 2,048 for int4, 4,096 for int8."""
    block = block_layout(bits)
    return int(cosize(upcast(block, 8)))


def byte_layout(bits: int) -> Layout:
    """``(k, n)`` -> byte of the block that holds the code (two int4 codes share one)."""
    return upcast(block_layout(bits), 8)


def word_layout(bits: int) -> Layout:
    """``(k, n)``, without the modes that stay inside a word, -> 32-bit word of the block."""
    return coalesce(upcast(block_layout(bits), 32), (None, None))


def _word_modes(bits: int, names: str) -> Layout:
    """The named modes as a layout that counts 32-bit words; modes inside a word are left out."""
    picked = [m for name in names for m in modes(bits) if m.name == name and m.stride >= 32]
    return Layout(tuple(m.extent for m in picked), tuple(m.stride // 32 for m in picked))


def lane_word_layout(bits: int) -> Layout:
    """``(lane, word, sub-tile)`` -> 32-bit word of the block.

    Lane ``4c + t`` of a warp owns 4 (int4) or 8 (int8) consecutive words of each of the four k16 sub-tiles.
    """
    lane = coalesce(_word_modes(bits, "tc"))
    value = coalesce(_word_modes(bits, "bj"))
    sub_tile = _word_modes(bits, "s")
    return Layout(
        (lane.shape, value.shape, sub_tile.shape[0]),
        (lane.stride, value.stride, sub_tile.stride[0]),
    )


def lane_group_layout(bits: int) -> Layout:
    """``(lane, word of the group, group)`` -> 32-bit word of the block; a group is 8 words (256 bits).

    For int8 a group is one lane's share of a sub-tile, 32 consecutive bytes. For int4 it is one lane's
    share of two sub-tiles: two 16-byte vectors, 512 bytes apart.
    """
    by_word = lane_word_layout(bits)
    lane_shape, value_shape, sub_tiles = by_word.shape
    lane_stride, value_stride, sub_tile_stride = by_word.stride
    values = Layout((value_shape, sub_tiles), (value_stride, sub_tile_stride))
    groups = compose(values, Layout((8, size(values) // 8)))
    return Layout((lane_shape, *groups.shape), (lane_stride, *groups.stride))


def tma_layout(bits: int) -> Layout:
    """``(byte of a row, row)`` -> byte of the block, dense: the view a TMA box copies."""
    return Layout((TMA_ROW_BYTES, block_bytes(bits) // TMA_ROW_BYTES))
