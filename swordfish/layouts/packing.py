"""Packing, unpacking and the zero-copy views of the packed tensor.

All of it follows one recipe read off :func:`swordfish.layouts.format.block_layout`: modes with a stride below
8 bits are combined by shift and or, the others permute bytes. Work proceeds in slabs of columns with bounded
scratch memory, on whatever device the codes are. Bytes of a word are in little-endian order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "BLOCK",
    "ColumnSource",
    "DenseCodes",
    "byte_view",
    "lane_group_view",
    "lane_word_view",
    "pack_words",
    "packed_shape",
    "take_columns",
    "unpack_words",
]

BLOCK = 64
SLAB_BYTES = 8 << 20
"""Codes per slab of columns; scratch memory is about three times this."""


class ColumnSource(Protocol):
    """Codes that can be read a range of columns at a time, so that they never exist as a whole."""

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, N)``."""

    @property
    def device(self) -> torch.device:
        """Where the codes are."""

    def columns(self, start: int, stop: int) -> torch.Tensor:
        """Columns ``start`` to ``stop`` (``start`` a multiple of 64) as uint8 ``[K, stop - start]``."""


@dataclass(frozen=True)
class DenseCodes:
    """A uint8 ``[K, N]`` tensor as a :class:`ColumnSource`; values above ``2**bits - 1`` raise on reading."""

    tensor: torch.Tensor
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, N)``."""
        k, n = self.tensor.shape
        return int(k), int(n)

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.tensor.device

    def columns(self, start: int, stop: int) -> torch.Tensor:
        """Columns ``start`` to ``stop``, a view; raises ``ArgumentError`` on codes that exceed ``bits``
        bits."""
        part = self.tensor[:, start:stop]
        if self.bits < 8 and (top := int(part.max())) >= 1 << self.bits:
            raise ArgumentError("codes", top, f"values from 0 to {(1 << self.bits) - 1} for bits={self.bits}")
        return part


@dataclass(frozen=True)
class _Recipe:
    """The bit layout of a block as tensor operations.

    A slab of codes is viewed as ``[K/64, *k_shape, N/64, *n_shape]`` (modes slowest first). ``combine``
    lists, for every code inside a byte, its index along each of ``inner`` axes and its shift; ``order``
    lists the axes that remain by falling byte stride, ``extents`` their lengths.
    """

    k_shape: tuple[int, ...]
    n_shape: tuple[int, ...]
    inner: tuple[int, ...]
    combine: tuple[tuple[tuple[int, ...], int], ...]
    order: tuple[int, ...]
    extents: tuple[int, ...]
    block_words: int


@cache
def _recipe(bits: int) -> _Recipe:
    from swordfish.layouts import format as layout  # imports tensor_layouts

    k_modes = [m for m in reversed(layout.modes(bits)) if m.axis == "k"]
    n_modes = [m for m in reversed(layout.modes(bits)) if m.axis == "n"]
    axes = list(enumerate(k_modes, start=1)) + list(enumerate(n_modes, start=2 + len(k_modes)))
    inner = [(axis, m) for axis, m in axes if m.stride < 8]
    outer = sorted(((axis, m) for axis, m in axes if m.stride >= 8), key=lambda item: -item[1].stride)
    combine = tuple(
        (index, sum(i * m.stride for i, (_, m) in zip(index, inner, strict=True)))
        for index in itertools.product(*(range(m.extent) for _, m in inner))
    )
    return _Recipe(
        k_shape=tuple(m.extent for m in k_modes),
        n_shape=tuple(m.extent for m in n_modes),
        inner=tuple(axis for axis, _ in inner),
        combine=combine,
        order=tuple(axis for axis, _ in outer),
        extents=tuple(m.extent for _, m in outer),
        block_words=layout.block_bytes(bits) // 4,
    )


def packed_shape(k: int, n: int, bits: int) -> tuple[int, int, int]:
    """Shape of the int32 tensor that holds a ``[k, n]`` weight: ``(ceil(n/64), ceil(k/64), 512 or 1024)``."""
    for name, value in (("K", k), ("N", n)):
        if value < 1:
            raise ArgumentError(name, value, "a positive number")
    return -(-n // BLOCK), -(-k // BLOCK), BLOCK * BLOCK * bits // 32


def pack_words(
    codes: torch.Tensor | ColumnSource, bits: int, *, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Packs unsigned codes.

    ``codes`` is uint8 ``[K, N]`` or a :class:`ColumnSource` of that shape; ``rows`` (integer ``[R]``), when
    given, makes packed row ``i`` the source row ``rows[i]``, or a row of padding where ``rows[i]`` is -1.
    Returns int32 ``[ceil(N/64), ceil(R/64), 512 | 1024]`` on the device of the codes. Rows and columns of
    padding hold ``2**(bits-1)``.

    Raises ``ArgumentError`` on codes that need more than ``bits`` bits or are not 2-D, and
    ``ArgumentTypeError`` on a dtype other than uint8.
    """
    if isinstance(codes, torch.Tensor):
        if codes.dtype != torch.uint8:
            raise ArgumentTypeError("codes.dtype", codes.dtype, "torch.uint8")
        if codes.ndim != 2:
            raise ArgumentError("codes.shape", tuple(codes.shape), "two dimensions, [K, N]")
        source: ColumnSource = DenseCodes(codes, bits)
    else:
        source = codes
    k, n = source.shape
    packed_k = k if rows is None else int(rows.numel())
    rows = None if rows is None else rows.to(source.device)
    recipe = _recipe(bits)
    words = torch.empty(packed_shape(packed_k, n, bits), dtype=torch.int32, device=source.device)
    padding = 1 << (bits - 1)
    for start, stop in _slabs(words.shape[1] * BLOCK, n):
        part = _pad(_take_rows(source.columns(start, stop), rows, padding), padding)
        _pack_slab(part, words[start // BLOCK : -(-stop // BLOCK)], recipe)
    return words


def unpack_words(words: torch.Tensor, bits: int, shape: tuple[int, int]) -> torch.Tensor:
    """The inverse of :func:`pack_words`: uint8 ``[K, N]`` for ``shape = (K, N)``, without the padding."""
    k, n = shape
    expected = packed_shape(k, n, bits)
    if words.dtype != torch.int32:
        raise ArgumentTypeError("words.dtype", words.dtype, "torch.int32")
    if tuple(words.shape) != expected:
        raise ArgumentError("words.shape", tuple(words.shape), f"{expected} for K={k}, N={n}, bits={bits}")
    recipe = _recipe(bits)
    codes = torch.empty((k, n), dtype=torch.uint8, device=words.device)
    for start, stop in _slabs(words.shape[1] * BLOCK, n):
        part = _unpack_slab(words[start // BLOCK : -(-stop // BLOCK)], recipe, bits)
        codes[:, start:stop] = part[:k, : stop - start]
    return codes


def take_columns(words: torch.Tensor, bits: int, n: int, order: torch.Tensor) -> torch.Tensor:
    """Packed words whose column ``i`` is column ``order[i]`` of ``words``, which have ``n`` columns; where
    ``order[i]`` is -1, a column of padding.

    ``order`` is an integer tensor on the device of ``words``. Scratch memory is bounded, as in packing.
    """
    depth, padding = words.shape[1], 1 << (bits - 1)
    taken = torch.empty(
        packed_shape(depth * BLOCK, order.numel(), bits), dtype=torch.int32, device=words.device
    )
    source, absent = order.clamp_min(0), order < 0
    step = max(1, SLAB_BYTES // (BLOCK * max(n, order.numel())))
    for start in range(0, depth, step):
        part = words[:, start : start + step].contiguous()
        codes = unpack_words(part, bits, (part.shape[1] * BLOCK, n)).index_select(1, source)
        taken[:, start : start + step] = pack_words(codes.masked_fill_(absent, padding), bits)
    return taken


def _slabs(rows: int, n: int) -> Iterator[tuple[int, int]]:
    step = max(1, SLAB_BYTES // (rows * BLOCK)) * BLOCK
    for start in range(0, n, step):
        yield start, min(start + step, n)


def _take_rows(part: torch.Tensor, rows: torch.Tensor | None, padding: int) -> torch.Tensor:
    if rows is None:
        return part
    taken = part.index_select(0, rows.clamp_min(0))
    return taken.masked_fill_((rows < 0).unsqueeze(1), padding)


def _pad(part: torch.Tensor, padding: int) -> torch.Tensor:
    """Rows and columns filled up to multiples of 64; the same tensor when nothing is missing."""
    k, n = part.shape
    if k % BLOCK == 0 and n % BLOCK == 0:
        return part
    return torch.nn.functional.pad(part, (0, -n % BLOCK, 0, -k % BLOCK), value=padding)


def _split(part: torch.Tensor, recipe: _Recipe) -> torch.Tensor:
    """``[K, N]`` (multiples of 64) viewed as ``[K/64, *k_shape, N/64, *n_shape]``."""
    k, n = part.shape
    return part.view(k // BLOCK, *recipe.k_shape, n // BLOCK, *recipe.n_shape)


def _drop_axes(part: torch.Tensor, index: tuple[int, ...], axes: tuple[int, ...]) -> torch.Tensor:
    """The part at ``index`` along ``axes``, which keep extent 1."""
    for i, axis in zip(index, axes, strict=True):
        part = part.narrow(axis, i, 1)
    return part


def _bytes_as_blocks(words: torch.Tensor, recipe: _Recipe) -> torch.Tensor:
    """Packed words as a uint8 view whose axes are those of :func:`_split` (axes inside a byte: extent 1)."""
    block = words.view(torch.uint8).view(*words.shape[:2], *recipe.extents)  # [N/64, K/64, *extents]
    position = {axis: 2 + i for i, axis in enumerate(recipe.order)}
    n_axis = 1 + len(recipe.k_shape)
    position[0], position[n_axis] = 1, 0
    view = block.permute([position[axis] for axis in sorted(position)])
    for axis in sorted(recipe.inner):
        view = view.unsqueeze(axis)
    return view


def _pack_slab(part: torch.Tensor, words: torch.Tensor, recipe: _Recipe) -> None:
    codes = _split(part, recipe)
    target = _bytes_as_blocks(words, recipe)
    combined: torch.Tensor | None = None
    for index, shift in recipe.combine:
        piece = _drop_axes(codes, index, recipe.inner)
        piece = piece << shift if shift else piece
        combined = piece if combined is None else combined | piece
    assert combined is not None
    target.copy_(combined)


def _unpack_slab(words: torch.Tensor, recipe: _Recipe, bits: int) -> torch.Tensor:
    blocks = _bytes_as_blocks(words.contiguous(), recipe)
    part = torch.empty(
        (words.shape[1] * BLOCK, words.shape[0] * BLOCK), dtype=torch.uint8, device=words.device
    )
    codes = _split(part, recipe)
    mask = (1 << bits) - 1
    for index, shift in recipe.combine:
        piece = blocks >> shift if shift else blocks
        _drop_axes(codes, index, recipe.inner).copy_(piece & mask if bits < 8 else piece)
    return part


def _words_view(
    words: torch.Tensor, bits: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    if words.dtype != torch.int32:
        raise ArgumentTypeError("words.dtype", words.dtype, "torch.int32")
    block = _recipe(bits).block_words
    if words.ndim < 3 or words.shape[-1] != block or not words.is_contiguous():
        raise ArgumentError(
            "words.shape",
            tuple(words.shape),
            f"a contiguous [..., N/64, K/64, {block}] tensor for bits={bits}",
        )
    return words.as_strided((*words.shape[:-1], *shape), (*words.stride()[:-1], *stride))


def lane_word_view(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 ``[..., N/64, K/64, 4, 32, 4 | 8]``: per k16 sub-tile and lane, the lane's words (no copy)."""
    from swordfish.layouts.format import lane_word_layout

    layout = lane_word_layout(bits)
    (lane, value, sub), (d_lane, d_value, d_sub) = layout.shape, layout.stride
    return _words_view(words, bits, (sub, lane, value), (d_sub, d_lane, d_value))


def lane_group_view(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 ``[..., N/64, K/64, groups, 32, 2, 4]``: a lane's 256-bit groups as two 16-byte vectors (no
    copy).

    int8 has 4 groups to a block, one per k16 sub-tile; int4 has 2, one per pair of sub-tiles.
    """
    from tensor_layouts import Layout, compose

    from swordfish.layouts.format import lane_group_layout

    layout = lane_group_layout(bits)
    (lane, group, count), (d_lane, d_group, d_count) = layout.shape, layout.stride
    vectors = compose(Layout(group, d_group), Layout((4, 2)))
    return _words_view(
        words,
        bits,
        (count, lane, vectors.shape[1], vectors.shape[0]),
        (d_count, d_lane, vectors.stride[1], vectors.stride[0]),
    )


def byte_view(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 ``[..., N/64, K/64, 8 | 16, 256]``: every block as dense rows of 256 bytes, as TMA copies it."""
    from swordfish.layouts.format import tma_layout

    row, rows = tma_layout(bits).shape
    flat = _words_view(words, bits, (words.shape[-1],), (1,))
    return flat.view(torch.uint8).view(*words.shape[:-1], rows, row)
