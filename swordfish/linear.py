"""``sf.Linear``: a packed weight as a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts.packing import packed_shape
from swordfish.ops import mm
from swordfish.packed import FORMAT_VERSION, PackedWeight
from swordfish.scheme import Scheme

__all__ = ["Linear"]

_BUFFERS = ("words", "scale_rows", "zero_rows", "perm", "bias")


class Linear(nn.Module):
    """``y = x @ W + bias`` for a packed weight; x ``[..., in_features]`` in the weight's dtype.

    The tensors of the weight are buffers (``words``, ``scale_rows``, ``zero_rows``, ``perm``, ``bias``), so the module moves, saves, copies and
    pickles like any other; ``state_dict`` also carries the scheme and the version of the packed format, and loading refuses another one.
    Buffers keep their dtypes under ``module.to(dtype)`` and ``module.half()``: a weight is packed for one activation dtype.

    ``Linear(weight)`` wraps a :class:`~swordfish.PackedWeight`; ``Linear.empty(...)`` makes one to load a state_dict into.
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
        self.scheme = weight.scheme
        self.in_features, self.out_features = weight.shape
        for name in _BUFFERS:
            self.register_buffer(name, getattr(weight, name))

    @classmethod
    def empty(
        cls,
        in_features: int,
        out_features: int,
        scheme: Scheme,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
    ) -> Linear:
        """An uninitialised layer of the given scheme (``device="meta"`` allocates nothing), for ``load_state_dict``."""
        rows = (scheme.groups(in_features), -(-out_features // 64) * 64)
        dtype = scheme.torch_dtype
        return cls(
            PackedWeight(
                torch.empty(packed_shape(in_features, out_features, scheme.bits), dtype=torch.int32, device=device),
                torch.empty(rows, dtype=dtype, device=device),
                None if scheme.zeros == "none" else torch.empty(rows, dtype=dtype, device=device),
                torch.empty(in_features, dtype=torch.int32, device=device) if scheme.act_order else None,
                torch.empty(out_features, dtype=dtype, device=device) if bias else None,
                scheme,
                (in_features, out_features),
            )
        )

    @property
    def weight(self) -> PackedWeight:
        """The packed weight made of the module's current buffers."""
        cached: PackedWeight | None = self.__dict__.get("_weight")
        if cached is None or any(getattr(cached, name) is not self._buffers[name] for name in _BUFFERS):
            tensors = {name: t for name, t in self._buffers.items() if t is not None}
            cached = PackedWeight._from_tensors(tensors, self.scheme, (self.in_features, self.out_features))
            self.__dict__["_weight"] = cached
        return cached

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mm(x, self.weight)

    def extra_repr(self) -> str:
        return repr(self.weight)

    def get_extra_state(self) -> dict[str, Any]:
        """Scheme, shape and format version, stored with the state_dict."""
        return {
            "version": FORMAT_VERSION,
            "scheme": asdict(self.scheme),
            "shape": (self.in_features, self.out_features),
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Checks what :meth:`get_extra_state` stored. Raises ``ArgumentError`` when it describes another layer."""
        for name, expected in self.get_extra_state().items():
            found = state.get(name)
            if (tuple(found) if isinstance(found, list) else found) != expected:
                raise ArgumentError(f"state_dict {name}", found, f"{expected}, which this layer was made for")

    def _apply(self, fn: Any, recurse: bool = True) -> Linear:
        """Device moves apply; dtype changes do not (nn.Module offers no narrower hook for floating buffers)."""
        dtypes = {name: t.dtype for name, t in self._buffers.items() if t is not None}

        def keep_dtype(t: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(t)
            return moved if moved.dtype == t.dtype else t.to(moved.device)

        super()._apply(keep_dtype, recurse)
        assert all(self._buffers[name].dtype == dtype for name, dtype in dtypes.items())  # type: ignore[union-attr]
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_weight", None)
        return state
