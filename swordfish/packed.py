"""The packed weight: what kernels read, and how it is moved, cut, joined and stored (docs/format.md)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts.packing import BLOCK, pack_words, packed_shape, take_columns, unpack_words
from swordfish.scheme import CHANNELWISE, Scheme, ZeroKind

__all__ = ["FORMAT", "FORMAT_VERSION", "CallKey", "Expected", "PackedWeight", "check_tensors", "pad_columns"]

FORMAT = "swordfish.packed_weight"
FORMAT_VERSION = "1"

CallKey: TypeAlias = "tuple[int, int, int, int, int, str, ZeroKind, bool]"
"""``k, n, packed_k, bits, group_size, dtype, zeros, act_order``: hashed at every call, much faster than a
scheme and a shape."""


@dataclass(frozen=True, eq=False, repr=False)
class PackedWeight:
    """A packed weight: what kernels read. Made by :func:`pack_weight`.

    ============== ==================================================================================
    ``words``      int32 ``[ceil(N/64), ceil(R/64), 512 | 1024]``, see docs/format.md
    ``scale_rows`` ``[G, P]`` in ``dtype``, ``P = ceil(N/64) * 64``; columns from N on hold 0
    ``zero_rows``  like ``scale_rows``, or ``None``
    ``perm``       int32 ``[R]`` or ``None``: packed row ``i`` is checkpoint row ``perm[i]``, -1 is padding
    ``bias``       ``[N]`` in ``dtype``, or ``None``
    ``scheme``     how codes become values
    ``shape``      ``(K, N)``
    ``call_key``   all of this that a plan depends on, as plain values
    ============== ==================================================================================

    ``R`` (:attr:`packed_k`) is K unless groups of unequal size had to be padded. All tensors are contiguous
    and on one device. The constructor checks shapes and dtypes only, so fake and meta tensors are fine.
    """

    words: torch.Tensor
    scale_rows: torch.Tensor
    zero_rows: torch.Tensor | None
    perm: torch.Tensor | None
    bias: torch.Tensor | None
    scheme: Scheme
    shape: tuple[int, int]
    call_key: CallKey = field(init=False)

    def __post_init__(self) -> None:
        k, n = self.shape
        s = self.scheme
        key = (k, n, self.packed_k, s.bits, s.group_size, s.dtype, s.zeros, s.act_order)
        object.__setattr__(self, "call_key", key)
        groups = (self.scheme.groups(self.packed_k), -(-n // BLOCK) * BLOCK)
        dtype = self.scheme.torch_dtype
        expected: list[Expected] = [
            ("words", packed_shape(self.packed_k, n, self.scheme.bits), torch.int32, True),
            ("scale_rows", groups, dtype, True),
            ("zero_rows", groups, dtype, self.scheme.zeros != "none"),
            ("perm", (self.packed_k,), torch.int32, self.scheme.act_order),
            ("bias", (n,), dtype, None),
        ]
        check_tensors(self, expected)

    @property
    def scales(self) -> torch.Tensor:
        """``[G, N]``, a view with row pitch ``ceil(N/64) * 64``."""
        return self.scale_rows[:, : self.shape[1]]

    @property
    def zeros(self) -> torch.Tensor | None:
        """``[G, N]`` (a view like :attr:`scales`), or ``None``."""
        return None if self.zero_rows is None else self.zero_rows[:, : self.shape[1]]

    @property
    def packed_k(self) -> int:
        """Rows in packed order, before they are filled up to whole blocks."""
        return self.shape[0] if self.perm is None else int(self.perm.numel())

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
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def __repr__(self) -> str:
        s = self.scheme
        group = "channelwise" if s.group_size == CHANNELWISE else f"group_size={s.group_size}"
        extra = [text for text, on in (("act-order", s.act_order), ("bias", self.bias is not None)) if on]
        parts = [
            f"K={self.shape[0]}",
            f"N={self.shape[1]}",
            f"int{s.bits}",
            group,
            s.dtype,
            f"zeros={s.zeros}",
        ]
        return f"PackedWeight({', '.join([*parts, *extra, str(self.device)])}, {self.nbytes / 2**20:.2f} MiB)"

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by field name; :meth:`_from_tensors` is the inverse."""
        fields = ("words", "scale_rows", "zero_rows", "perm", "bias")
        return {name: getattr(self, name) for name in fields if getattr(self, name) is not None}

    @classmethod
    def _from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        return cls(
            tensors["words"],
            tensors["scale_rows"],
            tensors.get("zero_rows"),
            tensors.get("perm"),
            tensors.get("bias"),
            scheme,
            shape,
        )

    def unchecked(
        self,
        words: torch.Tensor,
        scale_rows: torch.Tensor,
        zero_rows: torch.Tensor | None,
        perm: torch.Tensor | None,
    ) -> PackedWeight:
        """This weight with other tensors and no bias, for tensors whose shapes and dtypes are known to be
        those of this one: a tenth of the constructor's time, which a call of a few microseconds notices."""
        weight: PackedWeight = object.__new__(PackedWeight)
        fields = weight.__dict__  # the class is frozen; one by one is the fastest
        fields["words"] = words
        fields["scale_rows"] = scale_rows
        fields["zero_rows"] = zero_rows
        fields["perm"] = perm
        fields["bias"] = None
        fields["scheme"] = self.scheme
        fields["shape"] = self.shape
        fields["call_key"] = self.call_key
        return weight

    def to(
        self,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
    ) -> PackedWeight:
        """The weight on another device; itself when it is there already.

        Raises ``ArgumentTypeError`` on a dtype other than :attr:`dtype`: another activation dtype rounds the
        scales again, so pack the checkpoint for it instead.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and dtype != self.dtype:
            raise ArgumentTypeError(
                "dtype", dtype, f"{self.dtype}, which the weight was packed for", "Pack the checkpoint again."
            )
        if device is None or torch.empty(0, device=device).device == self.device:
            return self
        moved = {k: t.to(device, non_blocking=non_blocking) for k, t in self._tensors().items()}
        return self._from_tensors(moved, self.scheme, self.shape)

    def pin_memory(self) -> PackedWeight:
        """A copy in page-locked host memory, for non-blocking copies to a GPU."""
        pinned = {k: t.pin_memory() for k, t in self._tensors().items()}
        return self._from_tensors(pinned, self.scheme, self.shape)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Activations ``[..., K]`` in packed row order, ``[..., R]``; rows of padding get 0."""
        if self.perm is None:
            return x
        gathered = x.index_select(-1, self.perm.clamp_min(0))
        return gathered if self.packed_k == self.shape[0] else gathered.masked_fill(self.perm < 0, 0)

    def in_packed_order(self) -> PackedWeight:
        """The same tensors without :attr:`perm`: a weight for activations that come in packed row order, as
        :meth:`gather` gives them, so that no kernel permutes them. Its K is :attr:`packed_k`.

        Itself without act-order. :meth:`reorder_columns` makes the layer before write such activations.
        """
        if self.perm is None:
            return self
        return PackedWeight(
            self.words,
            self.scale_rows,
            self.zero_rows,
            None,
            self.bias,
            replace(self.scheme, act_order=False),
            (self.packed_k, self.shape[1]),
        )

    def reorder_columns(self, order: torch.Tensor) -> PackedWeight:
        """The weight with its columns (and bias) in another order: column ``i`` is column ``order[i]`` of
        this one.

        ``order`` (integer ``[>= N]``) names every column once; where it is -1 comes a column whose results
        are 0. With ``order = other.perm`` the result of this weight is what ``other.in_packed_order()``
        multiplies; anything elementwise may lie between that leaves 0 as it is.

        Raises ``ArgumentTypeError`` on another dtype and ``ArgumentError`` on an order that is none.
        """
        n = self.shape[1]
        if order.dtype not in (torch.int32, torch.int64):
            raise ArgumentTypeError("order.dtype", order.dtype, "torch.int32 or torch.int64")
        if order.ndim != 1 or order.numel() < n:
            raise ArgumentError("order.shape", tuple(order.shape), f"({n},), or more with columns added")
        named = order[order >= 0].sort().values
        if int(order.min()) < -1 or not torch.equal(named, torch.arange(n).to(named)):
            seen = f"{named.numel()} columns from {int(order.min())} to {int(order.max())}"
            raise ArgumentError("order", seen, f"every column from 0 to {n - 1} once, else -1")
        return self.take_columns(order)

    def take_columns(self, order: torch.Tensor) -> PackedWeight:
        """Columns ``order`` (integer) of the weight, repacked; -1 is a column of zeros."""
        order = order.to(self.device, torch.int64)
        source, absent = order.clamp_min(0), order < 0

        def take(rows: torch.Tensor) -> torch.Tensor:
            return rows.index_select(-1, source).masked_fill(absent, 0)

        return PackedWeight(
            take_columns(self.words, self.scheme.bits, self.shape[1], order),
            pad_columns(take(self.scales)),
            None if self.zeros is None else pad_columns(take(self.zeros)),
            self.perm,
            None if self.bias is None else take(self.bias),
            self.scheme,
            (self.shape[0], order.numel()),
        )

    def shard(self, dim: str, rank: int, world: int) -> PackedWeight:
        """Part ``rank`` of ``world`` equal parts along ``"n"`` (columns) or ``"k"`` (rows), copied, not
        repacked.

        Parts must be whole 64-blocks. A row shard that cuts a quantisation group gets a smaller group size,
        the greatest common divisor of group and shard, with its scale rows repeated: the values stay the
        same. Column shards take their part of the bias; of the row shards only rank 0 keeps it, so that the
        sum of all outputs contains it once. Weights with act-order have no row shards: a shard of the
        *checkpoint's* rows must be packed from those rows and their ``g_idx`` (:func:`pack_weight` takes
        the full scale table); :meth:`in_packed_order` has shards of packed rows.
        """
        if dim not in ("n", "k"):
            raise ArgumentError("dim", repr(dim), "'n' or 'k'")
        k, n = self.shape
        extent = n if dim == "n" else k
        if world < 1 or (world > 1 and extent % (BLOCK * world)):
            blocks = extent // BLOCK if extent % BLOCK == 0 else 1
            fits = [d for d in range(1, blocks + 1) if blocks % d == 0]
            raise ArgumentError(
                "world",
                world,
                f"one of {fits}, which cut {dim.upper()}={extent} into whole blocks of {BLOCK}",
                "Other parts can be packed from their own rows or columns of the checkpoint.",
            )
        if not 0 <= rank < world:
            raise ArgumentError("rank", rank, f"0 to {world - 1}")
        if world == 1:
            return self
        if dim == "n":
            return self._columns(rank * (n // world), (rank + 1) * (n // world))
        return self._rows(rank * (k // world), (rank + 1) * (k // world), keep_bias=rank == 0)

    def _columns(self, start: int, stop: int) -> PackedWeight:
        """Columns ``start`` to ``stop``, multiples of 64."""
        part = {
            "words": self.words[start // BLOCK : stop // BLOCK],
            "scale_rows": self.scale_rows[:, start:stop],
            **({"zero_rows": self.zero_rows[:, start:stop]} if self.zero_rows is not None else {}),
            **({"perm": self.perm} if self.perm is not None else {}),
            **({"bias": self.bias[start:stop]} if self.bias is not None else {}),
        }
        copies = {name: tensor.contiguous().clone() for name, tensor in part.items()}
        return self._from_tensors(copies, self.scheme, (self.shape[0], stop - start))

    def _rows(self, start: int, stop: int, *, keep_bias: bool) -> PackedWeight:
        """Rows ``start`` to ``stop``, multiples of 64, of a weight in natural row order."""
        if self.perm is not None:
            raise ArgumentError(
                "dim",
                "'k'",
                "'n' for a weight with act-order, whose packed rows are sorted by group",
                "Pack the shard from its checkpoint rows and their g_idx instead, or cut in_packed_order().",
            )
        group_size = self.scheme.group_size
        pick = torch.zeros(1, dtype=torch.int64, device=self.device)
        if group_size != CHANNELWISE:
            group_size = math.gcd(group_size, stop - start)
            first_rows = torch.arange(start, stop, group_size, device=self.device)
            pick = first_rows // self.scheme.group_size
        return PackedWeight(
            self.words[:, start // BLOCK : stop // BLOCK].contiguous(),
            self.scale_rows[pick],
            None if self.zero_rows is None else self.zero_rows[pick],
            None,
            self.bias.clone() if keep_bias and self.bias is not None else None,
            replace(self.scheme, group_size=group_size),
            (stop - start, self.shape[1]),
        )

    @classmethod
    def cat(cls, weights: Sequence[PackedWeight], dim: str = "n") -> PackedWeight:
        """Weights side by side along N, for example q, k and v of an attention layer.

        They must agree in scheme, K, device and row order. Widths that are multiples of 64 are joined as they
        are; others are repacked. A missing bias counts as zero when another part has one.
        """
        if dim != "n":
            raise ArgumentError("dim", repr(dim), "'n'")
        if not weights:
            raise ArgumentError("weights", "[]", "at least one PackedWeight")
        first = weights[0]
        for i, w in enumerate(weights[1:], start=1):
            for name in ("scheme", "device"):
                if getattr(w, name) != getattr(first, name):
                    raise ArgumentError(
                        f"weights[{i}].{name}",
                        getattr(w, name),
                        f"that of weights[0], {getattr(first, name)}",
                    )
            if w.shape[0] != first.shape[0]:
                raise ArgumentError(f"weights[{i}].shape", w.shape, f"K={first.shape[0]} like weights[0]")
            if first.perm is not None and (w.perm is None or not torch.equal(w.perm, first.perm)):
                raise ArgumentError(
                    f"weights[{i}].perm", "another row order", "that of weights[0]: both need the same g_idx"
                )
        n = sum(w.shape[1] for w in weights)
        if all(w.shape[1] % BLOCK == 0 for w in weights[:-1]):
            words = torch.cat([w.words for w in weights])
        else:
            bits, k = first.scheme.bits, first.packed_k
            words = pack_words(
                torch.cat([unpack_words(w.words, bits, (k, w.shape[1])) for w in weights], dim=1), bits
            )
        bias = None
        if any(w.bias is not None for w in weights):
            bias = torch.cat(
                [w.scale_rows.new_zeros(w.shape[1]) if w.bias is None else w.bias for w in weights]
            )
        zeros = [w.zeros for w in weights if w.zeros is not None]
        return cls(
            words,
            pad_columns(torch.cat([w.scales for w in weights], dim=1)),
            pad_columns(torch.cat(zeros, dim=1)) if zeros else None,
            None if first.perm is None else first.perm.clone(),
            bias,
            first.scheme,
            (first.shape[0], n),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file: tensors ``words``, ``scales``, ``zeros``, ``perm``, ``bias`` and, in the
        metadata, format name, format version, scheme and shape."""
        from safetensors.torch import save_file

        tensors = {"words": self.words, "scales": self.scales.contiguous()}
        for name, tensor in (("zeros", self.zeros), ("perm", self.perm), ("bias", self.bias)):
            if tensor is not None:
                tensors[name] = tensor.contiguous()
        metadata = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "scheme": json.dumps(asdict(self.scheme)),
            "shape": json.dumps(self.shape),
        }
        save_file(tensors, os.fspath(path), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> PackedWeight:
        """Reads what :meth:`save` wrote. Raises ``ArgumentError`` on any other file or format version."""
        from safetensors import SafetensorError, safe_open

        wanted = f"a packed weight written by Swordfish ({FORMAT}, version {FORMAT_VERSION})"
        try:
            with safe_open(os.fspath(path), framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    keys = ", ".join(sorted(file.keys())[:4])
                    raise ArgumentError("path", path, wanted, f"It holds the tensors {keys}.")
                if metadata.get("version") != FORMAT_VERSION:
                    raise ArgumentError(
                        "path",
                        path,
                        wanted,
                        f"It is version {metadata.get('version')}: pack the checkpoint again.",
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ArgumentError("path", path, wanted, str(error)) from error
        k, n = json.loads(metadata["shape"])
        zeros = tensors.get("zeros")
        return cls(
            tensors["words"],
            pad_columns(tensors["scales"]),
            None if zeros is None else pad_columns(zeros),
            tensors.get("perm"),
            tensors.get("bias"),
            Scheme(**json.loads(metadata["scheme"])),
            (int(k), int(n)),
        )


Expected: TypeAlias = "tuple[str, tuple[int, ...], torch.dtype, bool | None]"
"""A tensor of a packed weight: field, shape, dtype, and whether it must be there (``None``: it may)."""


def check_tensors(weight: Any, expected: Sequence[Expected]) -> None:
    """Raises ``ArgumentError`` or ``ArgumentTypeError`` for a tensor of ``weight`` (a packed weight or
    experts) that is missing, superfluous, or of another shape or dtype."""
    for name, shape, wanted, present in expected:
        tensor = getattr(weight, name)
        if present is not None and (tensor is not None) != present:
            seen, needed = ("None", "a tensor") if present else ("a tensor", "None")
            raise ArgumentError(name, seen, f"{needed} for {weight.scheme}")
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ArgumentError(f"{name}.shape", tuple(tensor.shape), str(shape))
        if tensor.dtype != wanted:
            raise ArgumentTypeError(f"{name}.dtype", tensor.dtype, str(wanted))


def pad_columns(rows: torch.Tensor) -> torch.Tensor:
    """``[G, N]`` filled up with zeros to whole blocks of columns, contiguous and not aliasing its source."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK)).contiguous().clone()
