"""Shared-memory swizzles in the byte and the element domain, and the recast between the two.

Hardware swizzles bytes: the 128-byte mode of TMA, ``wgmma`` and ``tcgen05`` descriptors is
``Swizzle(3, 4, 3)`` of the byte address, its 16-byte chunk index XOR the row modulo 8. Kernels count
elements. ``tensor_layouts`` recasts plain layouts; :func:`recast` adds swizzles and checks that the result
is exact.
"""

from __future__ import annotations

from typing import Any

from tensor_layouts import ComposedLayout, Layout, Swizzle, downcast, flatten, upcast

from swordfish.errors import ArgumentError

__all__ = ["SWIZZLE_128B", "k_major_128b", "recast", "recast_swizzle"]

SWIZZLE_128B = Swizzle(3, 4, 3)
"""The 128-byte swizzle, a map of byte offsets."""

ROW_BYTES = 128
ATOM_ROWS = 8


def recast_swizzle(swizzle: Swizzle, old_bits: int, new_bits: int) -> Swizzle:
    """A swizzle of offsets counted in units of ``old_bits``, as one of offsets counted in ``new_bits``.

    Units are powers of two. Raises ``ArgumentError`` when the new unit is larger than what the swizzle
    moves as a whole: parts of an element would move, which no map of elements can express.
    """
    base = swizzle.base + _log2("old_bits", old_bits) - _log2("new_bits", new_bits)
    if base < 0:
        largest = old_bits << swizzle.base
        raise ArgumentError("new_bits", new_bits, f"at most {largest} for {swizzle} of {old_bits}-bit units")
    return Swizzle(swizzle.bits, base, swizzle.shift)


def recast(layout: Layout | ComposedLayout, old_bits: int, new_bits: int) -> Any:
    """A layout of ``old_bits``-bit elements as the layout of the same memory in ``new_bits``-bit elements.

    Accepts plain layouts with strides of 0 or more and ``Swizzle o offset + Layout``. To larger elements,
    modes with smaller strides must fill whole new elements, and the other strides and the offset must be
    multiples of one; anything else raises ``ArgumentError``, where ``tensor_layouts.upcast`` rounds.
    """
    if isinstance(layout, ComposedLayout):
        if not isinstance(layout.outer, Swizzle):
            raise ArgumentError("layout", layout, "a plain layout or one behind a swizzle")
        offset = layout.offset * old_bits
        if offset % new_bits:
            raise ArgumentError("layout", layout, f"an offset that is a multiple of {new_bits} bits")
        return ComposedLayout(
            recast_swizzle(layout.outer, old_bits, new_bits),
            recast(layout.inner, old_bits, new_bits),
            offset=offset // new_bits,
        )
    _log2("old_bits", old_bits), _log2("new_bits", new_bits)
    flat = flatten(layout)
    leaves = list(zip(_leaves(flat.shape), _leaves(flat.stride), strict=True))
    if any(stride < 0 for _, stride in leaves):
        raise ArgumentError("layout", layout, "strides of 0 or more")
    if new_bits <= old_bits:
        return downcast(layout, old_bits // new_bits)
    ratio = new_bits // old_bits
    for extent, stride in leaves:
        if stride % ratio and (ratio % stride or extent * stride % ratio):
            raise ArgumentError("layout", layout, f"whole {new_bits}-bit elements in every mode")
    return upcast(layout, ratio)


def k_major_128b(rows: int, k: int, *, bits: int = 16, stages: int = 1) -> ComposedLayout:
    """``(row, k, stage)`` -> element offset of a K-major operand tile under the 128-byte swizzle.

    Rows of 128 bytes (64 elements of 16 bits), 8 rows to a swizzle atom, atoms down the rows, then the next
    128 bytes of K, then the next stage: the canonical K-major layout of ``wgmma`` and ``tcgen05``
    descriptors with a stride byte offset of 1,024. ``rows`` is a multiple of 8, ``k`` of ``1024 / bits``.
    """
    row_elements = ROW_BYTES * 8 // bits
    if rows < ATOM_ROWS or rows % ATOM_ROWS:
        raise ArgumentError("rows", rows, f"a positive multiple of {ATOM_ROWS}")
    if k < row_elements or k % row_elements:
        raise ArgumentError("k", k, f"a positive multiple of {row_elements} for bits={bits}")
    inner = Layout(
        ((ATOM_ROWS, rows // ATOM_ROWS), (row_elements, k // row_elements), stages),
        ((row_elements, ATOM_ROWS * row_elements), (1, rows * row_elements), rows * k),
    )
    return ComposedLayout(recast_swizzle(SWIZZLE_128B, 8, bits), inner)


def _log2(name: str, bits: int) -> int:
    if bits < 1 or bits & (bits - 1):
        raise ArgumentError(name, bits, "a power of two")
    return bits.bit_length() - 1


def _leaves(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
