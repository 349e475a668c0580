"""The weights of a layer's experts as kernels read them: packed weights with a leading expert dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TypeAlias

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts.packing import BLOCK, packed_shape
from swordfish.packed import Expected, PackedWeight, check_tensors
from swordfish.scheme import Scheme

__all__ = ["MAX_EXPERTS", "ExpertWeights"]

MAX_EXPERTS = 8192
"""Experts of a layer, at most: the sorting kernel counts them in 48 KB of shared memory."""

STRIPE = 16
"""Columns of gate and of up that take turns in gated weights: the height of an mma tile."""

_FIELDS = ("words", "scale_rows", "zero_rows", "perm", "bias_rows")

_Rows: TypeAlias = "tuple[int, torch.Tensor | None]"
"""Of a down weight: K, and the row order that is to be the order of the columns of its gate and of its up."""


@dataclass(frozen=True, eq=False, repr=False)
class ExpertWeights:
    """E packed weights of one scheme and shape. Made by :meth:`stack_layer`, or alone by :meth:`stack` and
    :meth:`stack_gated`.

    ============== ==================================================================================
    ``words``      int32 ``[E, P/64, ceil(R/64), 512 | 1024]``: docs/format.md for each expert
    ``scale_rows`` ``[E, G, P]`` in ``dtype``; columns of padding hold 0
    ``zero_rows``  like ``scale_rows``, or ``None``
    ``perm``       int32 ``[E, R]`` or ``None``: act-order, the row order of each expert
    ``bias_rows``  ``[E, P]`` in ``dtype`` or ``None``; columns of padding hold 0
    ``scheme``     how codes become values
    ``shape``      ``(K, N)`` of one expert
    ``gated``      N is gate and up, N/2 columns each
    ============== ==================================================================================

    ``P`` is N in whole blocks of 64 columns. In gated weights gate and up are padded to whole blocks each and
    then take turns, 16 columns at a time, so that a warp holds both operands of the activation. All tensors
    are contiguous and on one device. The constructor checks shapes and dtypes only.
    """

    words: torch.Tensor
    scale_rows: torch.Tensor
    zero_rows: torch.Tensor | None
    perm: torch.Tensor | None
    bias_rows: torch.Tensor | None
    scheme: Scheme
    shape: tuple[int, int]
    gated: bool = False

    def __post_init__(self) -> None:
        if self.words.ndim != 4:
            raise ArgumentError("words.shape", tuple(self.words.shape), "[E, N blocks, K blocks, words]")
        experts, dtype = self.experts, self.scheme.torch_dtype
        if not 1 <= experts <= MAX_EXPERTS:
            raise ArgumentError("experts", experts, f"1 to {MAX_EXPERTS}")
        columns = self.padded_n
        groups = (experts, self.scheme.groups(self.packed_k), columns)
        words = (experts, *packed_shape(self.packed_k, columns, self.scheme.bits))
        expected: list[Expected] = [
            ("words", words, torch.int32, True),
            ("scale_rows", groups, dtype, True),
            ("zero_rows", groups, dtype, self.scheme.zeros != "none"),
            ("perm", (experts, self.packed_k), torch.int32, self.scheme.act_order),
            ("bias_rows", (experts, columns), dtype, None),
        ]
        check_tensors(self, expected)

    @property
    def experts(self) -> int:
        """E."""
        return int(self.words.shape[0])

    @property
    def padded_n(self) -> int:
        """P: packed columns of an expert."""
        n = self.shape[1]
        return 2 * _blocks(n // 2) if self.gated else _blocks(n)

    @property
    def packed_k(self) -> int:
        """Rows in packed order, before they are filled up to whole blocks."""
        return self.shape[0] if self.perm is None else int(self.perm.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.words.device

    @property
    def dtype(self) -> torch.dtype:
        """The activation dtype."""
        return self.scheme.torch_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors().values())

    def __repr__(self) -> str:
        k, n = self.shape
        gated = ", gated" if self.gated else ""
        return (
            f"ExpertWeights({self.experts} x [K={k}, N={n}]{gated}, {self.scheme}, {self.device}, "
            f"{self.nbytes / 2**20:.2f} MiB)"
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by field name."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], scheme: Scheme, shape: tuple[int, int], *, gated: bool
    ) -> ExpertWeights:
        """The inverse of :meth:`tensors`."""
        return cls(
            tensors["words"],
            tensors["scale_rows"],
            tensors.get("zero_rows"),
            tensors.get("perm"),
            tensors.get("bias_rows"),
            scheme,
            shape,
            gated,
        )

    def to(self, device: torch.device | str | int) -> ExpertWeights:
        """The weights on another device; themselves when they are there already."""
        if torch.empty(0, device=device).device == self.device:
            return self
        moved = {name: t.to(device) for name, t in self.tensors().items()}
        return self.from_tensors(moved, self.scheme, self.shape, gated=self.gated)

    @classmethod
    def stack(cls, weights: Iterable[PackedWeight], count: int | None = None) -> ExpertWeights:
        """Weights of equal scheme and shape as the experts of a layer, in the order given.

        A bias must be there for all or for none. ``weights`` may be an iterator if ``count`` says how many it
        gives: then one expert at a time is held besides the result.

        Raises:
            ArgumentError: no weights, or one that differs from the first.
            ArgumentTypeError: something that is no packed weight.
        """
        return _stack(weights, count, None)

    @classmethod
    def stack_gated(
        cls, gate_up: Iterable[PackedWeight | tuple[PackedWeight, PackedWeight]], count: int | None = None
    ) -> ExpertWeights:
        """gate_up weights as the experts of a layer: for each either a pair (gate, up) or one weight whose
        columns are all of gate, then all of up.

        Raises what :meth:`stack` raises, and ``ArgumentError`` for an odd N of a joined weight or a gate and
        an up that do not fit together (``PackedWeight.cat``).
        """
        return _stack_gated(gate_up, count, None)

    @classmethod
    def stack_layer(
        cls,
        gate_up: Iterable[PackedWeight | tuple[PackedWeight, PackedWeight]],
        down: Iterable[PackedWeight],
        count: int | None = None,
    ) -> tuple[ExpertWeights, ExpertWeights]:
        """w13 and w2 of a layer: :meth:`stack_gated` and :meth:`stack` of the same experts together.

        With act-order the columns of each expert's gate and up come in the row order of its down, so w2 reads
        what w13 writes as it is, without a permutation. Rows of padding in down (``packed_k`` above K) become
        columns that are 0: K of w2 is the ``packed_k`` of down, N of w13 twice that.

        Raises what the two raise, and ``ArgumentError`` for an expert whose gate_up is not twice as wide as
        its down is deep.
        """
        rows: list[_Rows] = []

        def in_order() -> Iterator[PackedWeight]:
            for i, w in enumerate(down):
                if not isinstance(w, PackedWeight):
                    raise ArgumentTypeError(f"down[{i}]", type(w).__name__, "a PackedWeight")
                rows.append((w.shape[0], w.perm))
                yield w.in_packed_order()

        count = len(down) if count is None and isinstance(down, Sized) else count
        w2 = _stack(in_order(), count, None)
        return _stack_gated(gate_up, w2.experts, rows), w2

    def expert(self, index: int) -> PackedWeight:
        """One expert as a packed weight of its own; of gated weights gate, then up."""
        if not 0 <= index < self.experts:
            raise ArgumentError("index", index, f"0 to {self.experts - 1}")
        part = {name: t[index] for name, t in self.tensors().items()}
        n = self.shape[1]
        if self.gated:
            part = {name: t if name == "perm" else _restripe(t, name, back=True) for name, t in part.items()}
        elif "bias_rows" in part:
            part["bias_rows"] = part["bias_rows"][:n]
        columns = self.padded_n if self.gated else n
        whole = PackedWeight(
            part["words"], part["scale_rows"], part.get("zero_rows"), part.get("perm"), part.get("bias_rows"),
            self.scheme, (self.shape[0], columns),
        )  # fmt: skip
        if not self.gated or columns == n:
            return whole
        half = columns // 2
        return PackedWeight.cat(
            [_first_columns(whole._columns(i * half, (i + 1) * half), n // 2) for i in (0, 1)]
        )


def _blocks(n: int) -> int:
    return -(-n // BLOCK) * BLOCK


def _stack(weights: Iterable[PackedWeight], count: int | None, widths: list[int] | None) -> ExpertWeights:
    """``widths`` is filled with the columns that gated weights have without padding, as they come."""
    if count is None:
        if not isinstance(weights, Sized):
            raise ArgumentError("count", None, "the number of weights that an iterator gives")
        count = len(weights)
    if not 1 <= count <= MAX_EXPERTS:
        raise ArgumentError("weights", f"{count} experts", f"1 to {MAX_EXPERTS}")
    first: PackedWeight | None = None
    stacked: dict[str, torch.Tensor] = {}
    given = 0
    for i, w in enumerate(weights):
        if first is None:
            first = w
            if not isinstance(w, PackedWeight):
                raise ArgumentTypeError("weights[0]", type(w).__name__, "a PackedWeight")
            stacked = _room(w, count)
        _check_like_first(i, w, first)
        given += 1
        if given > count:
            break
        for name, source in w._tensors().items():
            target = stacked["bias_rows" if name == "bias" else name]
            target[i, ..., : source.shape[-1]].copy_(source)
    if first is None or given != count:
        raise ArgumentError("count", count, f"the number of weights given, {given}")
    shape = first.shape if widths is None else (first.shape[0], widths[0])
    return ExpertWeights.from_tensors(stacked, first.scheme, shape, gated=widths is not None)


def _stack_gated(
    gate_up: Iterable[PackedWeight | tuple[PackedWeight, PackedWeight]],
    count: int | None,
    down: list[_Rows] | None,
) -> ExpertWeights:
    count = len(gate_up) if count is None and isinstance(gate_up, Sized) else count
    widths: list[int] = []

    def striped() -> Iterator[PackedWeight]:
        for i, w in enumerate(gate_up):
            made, n = _striped(w, f"gate_up[{i}]", down[i] if down and i < len(down) else None)
            widths.append(n)
            if n != widths[0]:
                raise ArgumentError(f"gate_up[{i}].shape", f"N={n}", f"N={widths[0]} like gate_up[0]")
            yield made

    return _stack(striped(), count, widths)


def _room(w: PackedWeight, count: int) -> dict[str, torch.Tensor]:
    """Tensors of ``count`` experts like ``w``; biases are padded with zeros."""
    room = {
        name: torch.empty((count, *t.shape), dtype=t.dtype, device=t.device)
        for name, t in w._tensors().items()
        if name != "bias"
    }
    if w.bias is not None:
        room["bias_rows"] = w.scale_rows.new_zeros(count, _blocks(w.shape[1]))
    return room


def _check_like_first(i: int, w: PackedWeight, first: PackedWeight) -> None:
    if not isinstance(w, PackedWeight):
        raise ArgumentTypeError(f"weights[{i}]", type(w).__name__, "a PackedWeight")
    for name in ("scheme", "shape", "packed_k", "device"):
        if getattr(w, name) != getattr(first, name):
            allowed = f"that of weights[0], {getattr(first, name)}"
            raise ArgumentError(f"weights[{i}].{name}", getattr(w, name), allowed)
    if (w.bias is None) != (first.bias is None):
        seen, wanted = ("None", "a tensor") if w.bias is None else ("a tensor", "None")
        raise ArgumentError(f"weights[{i}].bias", seen, f"{wanted} like that of weights[0]")


def _striped(
    w: PackedWeight | tuple[PackedWeight, PackedWeight], name: str, down: _Rows | None
) -> tuple[PackedWeight, int]:
    """gate and up with whole blocks each, in the order that their ``down`` reads, taking turns; and N without
    padding."""
    if isinstance(w, PackedWeight):
        if w.shape[1] % 2:
            raise ArgumentError(f"{name}.shape", w.shape, "an even N: gate and up")
        half = w.shape[1] // 2
    else:
        if len(w) != 2 or not all(isinstance(part, PackedWeight) for part in w):
            raise ArgumentTypeError(name, w, "a PackedWeight or a pair of them")
        half = w[0].shape[1]
        if w[1].shape[1] != half:
            raise ArgumentError(f"{name}[1].shape", w[1].shape, f"N={half} like gate")
    k, order = (half, None) if down is None else down
    if half != k:
        raise ArgumentError(f"{name}.shape", f"N={2 * half}", f"N={2 * k}: gate and up for K={k} of down")
    if isinstance(w, PackedWeight):
        if order is None and half % BLOCK == 0:
            return _take_turns(w), 2 * half
        gate, up = (w.take_columns(torch.arange(start, start + half)) for start in (0, half))
    else:
        gate, up = w
    if order is not None:
        gate, up = gate.reorder_columns(order), up.reorder_columns(order)
    joined = PackedWeight.cat([_whole_blocks(gate), _whole_blocks(up)])
    return _take_turns(joined), 2 * gate.shape[1]


def _take_turns(w: PackedWeight) -> PackedWeight:
    """Columns [gate | up], whole blocks each, in stripes that take turns."""
    tensors = {key: t if key == "perm" else _restripe(t, key, back=False) for key, t in w._tensors().items()}
    return PackedWeight._from_tensors(tensors, w.scheme, w.shape)


def _restripe(t: torch.Tensor, name: str, *, back: bool) -> torch.Tensor:
    """Columns [gate | up] to stripes of 16 that take turns, or back, of any tensor of a packed weight.

    A lane's words of a k16 slice belong to the four stripes of a block in order (docs/format.md), so the
    stripes of packed words move as whole words.
    """
    if name == "words":
        blocks, depth, size = t.shape
        per_stripe = size // 512  # words of a lane
        stripes = t.view(blocks, depth, 4, 32, 4, per_stripe).permute(0, 4, 1, 2, 3, 5).flatten(0, 1)
        moved = _turns(stripes, back)
        moved = moved.view(blocks, 4, depth, 4, 32, per_stripe).permute(0, 2, 3, 4, 1, 5)
        return moved.reshape(blocks, depth, size).contiguous()
    stripes = t.reshape(*t.shape[:-1], -1, STRIPE).movedim(-2, 0)
    return _turns(stripes, back).movedim(0, -2).reshape(t.shape).contiguous()


def _turns(stripes: torch.Tensor, back: bool) -> torch.Tensor:
    """``[2 S, ...]``: g0 g1 .. u0 u1 .. -> g0 u0 g1 u1 .., or back."""
    half = stripes.shape[0] // 2
    outer = (half, 2) if back else (2, half)
    return stripes.reshape(*outer, *stripes.shape[1:]).transpose(0, 1).reshape(stripes.shape)


def _first_columns(w: PackedWeight, n: int) -> PackedWeight:
    return w if w.shape[1] == n else w.take_columns(torch.arange(n))


def _whole_blocks(w: PackedWeight) -> PackedWeight:
    """The weight with its columns of padding counted: their scales, zeros and biases are 0."""
    n = w.shape[1]
    bias = None if w.bias is None else torch.nn.functional.pad(w.bias, (0, _blocks(n) - n))
    tensors = w._tensors() | ({} if bias is None else {"bias": bias})
    return PackedWeight._from_tensors(tensors, w.scheme, (w.shape[0], _blocks(n)))
