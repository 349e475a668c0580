"""``sf.Linear``: a packed weight as a module."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts.packing import BLOCK, packed_shape
from swordfish.matmul import activation, mm
from swordfish.packed import FORMAT_VERSION, PackedWeight
from swordfish.packed_module import PackedModule
from swordfish.scheme import Scheme

__all__ = ["Linear"]

_BUFFERS = ("words", "scale_rows", "zero_rows", "perm", "bias")


class Linear(PackedModule):
    """``y = x @ W + bias`` for a packed weight; x ``[..., in_features]`` in the weight's dtype.

    The tensors of the weight are buffers (``words``, ``scale_rows``, ``zero_rows``, ``perm``, ``bias``), so
    the module moves, saves, copies and pickles like any other. ``state_dict`` also carries the scheme and the
    version of the packed format (as a tensor of JSON text, which safetensors files can hold), and loading
    refuses another one. Buffers keep their dtypes under ``module.to(dtype)`` and ``module.half()``: a weight
    is packed for one activation dtype.

    ``Linear(weight)`` wraps a :class:`~swordfish.PackedWeight`; ``Linear.empty(...)`` makes one to load a
    state_dict into.
    """

    words: torch.Tensor
    scale_rows: torch.Tensor
    zero_rows: torch.Tensor | None
    perm: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        if not isinstance(weight, PackedWeight):
            raise ArgumentTypeError("weight", type(weight).__name__, "a PackedWeight")
        self.hold(weight)

    def hold(self, weight: PackedWeight) -> None:
        """Makes ``weight`` the weight of this layer, whatever its scheme and shape."""
        self.scheme = weight.scheme
        self.in_features, self.out_features = weight.shape
        self._register({name: getattr(weight, name) for name in _BUFFERS})

    @classmethod
    def empty(
        cls,
        in_features: int,
        out_features: int,
        scheme: Scheme,
        *,
        bias: bool = False,
        packed_rows: int | None = None,
        device: torch.device | str | None = None,
    ) -> Linear:
        """An uninitialised layer of the given scheme, for ``load_state_dict`` (``device="meta"`` allocates
        nothing).

        ``packed_rows`` is ``PackedWeight.packed_k`` of the weight to come. It differs from ``in_features``
        only for row shards of an act-order weight whose groups had to be padded.

        Raises ``ArgumentError`` for fewer packed rows than ``in_features``, or another number without
        act-order.
        """
        rows = in_features if packed_rows is None else packed_rows
        if rows < in_features or (rows != in_features and not scheme.act_order):
            allowed = f"in_features={in_features}" + (
                " or more" if scheme.act_order else " without act-order"
            )
            raise ArgumentError("packed_rows", rows, allowed)
        dtype = scheme.torch_dtype
        scales = (scheme.groups(rows), -(-out_features // BLOCK) * BLOCK)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            PackedWeight(
                empty(*packed_shape(rows, out_features, scheme.bits), dtype=torch.int32),
                empty(*scales),
                None if scheme.zeros == "none" else empty(*scales),
                empty(rows, dtype=torch.int32) if scheme.act_order else None,
                empty(out_features) if bias else None,
                scheme,
                (in_features, out_features),
            )
        )

    @property
    def weight(self) -> PackedWeight:
        """The packed weight made of the module's current buffers."""
        cached: PackedWeight | None = self.__dict__.get("_weight")
        buffers = self._buffers
        if (
            cached is None
            or cached.words is not buffers["words"]
            or cached.scale_rows is not buffers["scale_rows"]
            or cached.zero_rows is not buffers["zero_rows"]
            or cached.perm is not buffers["perm"]
            or cached.bias is not buffers["bias"]
        ):
            tensors = {name: t for name, t in buffers.items() if t is not None}
            cached = PackedWeight._from_tensors(tensors, self.scheme, (self.in_features, self.out_features))
            self.__dict__["_weight"] = cached
        return cached

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return mm(x, self.weight)
        # Everything looked at here is a guard that is checked at every call of the compiled graph; as
        # attributes buffers would be three each.
        k, s = self.in_features, self.scheme
        buffers: dict[str, Any] = self._buffers
        result: torch.Tensor = torch.ops.swordfish.mm(
            activation(x, buffers["scale_rows"], k),
            buffers["words"],
            buffers["scale_rows"],
            buffers["zero_rows"],
            buffers["perm"],
            buffers["bias"],
            k,
            self.out_features,
            s.group_size,
            s.zeros == "offset",
        )
        return result

    def extra_repr(self) -> str:
        return repr(self.weight)

    def _description(self) -> dict[str, Any]:
        return {
            "version": FORMAT_VERSION,
            "scheme": asdict(self.scheme),
            "shape": [self.in_features, self.out_features],
        }

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_weight", None)
        return state
