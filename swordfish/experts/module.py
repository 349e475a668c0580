"""``sf.MoE``: the experts of a layer as a module."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from swordfish.errors import ArgumentError
from swordfish.experts.activation import Activation, activation_of
from swordfish.experts.ops import check_map_values, check_weights, moe
from swordfish.experts.weights import ExpertWeights
from swordfish.layouts.packing import BLOCK, packed_shape
from swordfish.packed import FORMAT_VERSION
from swordfish.packed_module import PackedModule
from swordfish.scheme import Scheme

__all__ = ["MoE"]

_FIELDS = ("words", "scale_rows", "zero_rows", "perm", "bias_rows")


class MoE(PackedModule):
    """Gated MLP experts; see :func:`swordfish.moe`.

    The tensors of the weights are buffers (``w13_words``, ..., ``w2_bias_rows``), as is ``expert_map``,
    so the module moves, saves, copies and pickles like any other; ``state_dict`` also carries schemes,
    shapes and the version of the packed format, and loading refuses others. Buffers keep their dtypes
    under ``module.to(dtype)``.

    ``MoE(w13, w2)`` wraps weights, ``MoE.empty(...)`` makes room to load a state_dict into.
    ``expert_map`` is checked here, where its values may be read: int32 ``[global experts]``, every place
    at most once, -1 elsewhere.
    """

    expert_map: torch.Tensor | None

    def __init__(
        self,
        w13: ExpertWeights,
        w2: ExpertWeights,
        *,
        activation: str | Activation = "silu",
        expert_map: torch.Tensor | None = None,
        weight_on_input: bool = False,
    ) -> None:
        super().__init__()
        check_weights(w13, w2)
        self.activation = activation_of(activation)
        self.weight_on_input = weight_on_input
        self._kinds = {"w13": (w13.scheme, w13.shape), "w2": (w2.scheme, w2.shape)}
        if expert_map is not None:
            if expert_map.ndim != 1 or not expert_map.numel():
                raise ArgumentError("expert_map.shape", tuple(expert_map.shape), "[global experts]")
            if not expert_map.is_meta:
                check_map_values(expert_map, w13.experts)
            expert_map = expert_map.to(w13.device, torch.int32).contiguous()
        buffers = {
            f"{name}_{field}": getattr(weights, field)
            for name, weights in (("w13", w13), ("w2", w2))
            for field in _FIELDS
        }
        self._register({**buffers, "expert_map": expert_map})

    @classmethod
    def empty(
        cls,
        experts: int,
        hidden: int,
        intermediate: int,
        scheme: Scheme,
        *,
        scheme2: Scheme | None = None,
        bias: bool = False,
        global_experts: int | None = None,
        activation: str | Activation = "silu",
        weight_on_input: bool = False,
        device: torch.device | str | None = None,
    ) -> MoE:
        """An uninitialised layer, for ``load_state_dict`` (``device="meta"`` allocates nothing).

        ``scheme2`` is that of w2, by default the same; stacked with w13 (:meth:`ExpertWeights.stack_layer`)
        it has no act-order. ``bias`` gives both weights biases; ``global_experts`` leaves room for an expert
        map.
        """
        shapes = ((hidden, 2 * intermediate), (intermediate, hidden))
        made = []
        for (k, n), kind, gated in zip(shapes, (scheme, scheme2 or scheme), (True, False), strict=True):
            columns = 2 * _blocks(n // 2) if gated else _blocks(n)
            rows = (experts, kind.groups(k), columns)

            def empty(*shape: int, dtype: torch.dtype = kind.torch_dtype) -> torch.Tensor:
                return torch.empty(shape, dtype=dtype, device=device)

            made.append(
                ExpertWeights(
                    empty(experts, *packed_shape(k, columns, kind.bits), dtype=torch.int32),
                    empty(*rows),
                    None if kind.zeros == "none" else empty(*rows),
                    empty(experts, k, dtype=torch.int32) if kind.act_order else None,
                    empty(experts, columns) if bias else None,
                    kind,
                    (k, n),
                    gated,
                )
            )
        layer = cls(made[0], made[1], activation=activation, weight_on_input=weight_on_input)
        if global_experts is not None:
            layer.expert_map = torch.full((global_experts,), -1, dtype=torch.int32, device=device)
        return layer

    @property
    def w13(self) -> ExpertWeights:
        """gate and up, made of the module's current buffers."""
        return self._weights("w13", gated=True)

    @property
    def w2(self) -> ExpertWeights:
        """down, made of the module's current buffers."""
        return self._weights("w2", gated=False)

    def _weights(self, name: str, *, gated: bool) -> ExpertWeights:
        buffers = [self._buffers[f"{name}_{field}"] for field in _FIELDS]
        cached: ExpertWeights | None = self.__dict__.get(f"_{name}")
        if cached is None or any(
            getattr(cached, field) is not buffer for field, buffer in zip(_FIELDS, buffers, strict=True)
        ):
            tensors = {field: t for field, t in zip(_FIELDS, buffers, strict=True) if t is not None}
            scheme, shape = self._kinds[name]
            cached = ExpertWeights.from_tensors(tensors, scheme, shape, gated=gated)
            self.__dict__[f"_{name}"] = cached
        return cached

    def forward(self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """``x`` ``[..., hidden]``, router weights and ids ``[..., top_k]`` of the same leading dimensions."""
        flat = x.reshape(-1, x.shape[-1])
        top_k = topk_ids.shape[-1]
        y = moe(
            flat,
            self.w13,
            self.w2,
            topk_weights.reshape(-1, top_k),
            topk_ids.reshape(-1, top_k),
            activation=self.activation,
            expert_map=self.expert_map,
            weight_on_input=self.weight_on_input,
        )
        return y.view(*x.shape[:-1], y.shape[-1])

    def extra_repr(self) -> str:
        return f"w13={self.w13!r}, w2={self.w2!r}, activation={self.activation}"

    def _description(self) -> dict[str, Any]:
        weights = {
            name: {"scheme": asdict(scheme), "shape": list(shape)}
            for name, (scheme, shape) in self._kinds.items()
        }
        act = asdict(self.activation)
        return {"version": FORMAT_VERSION, "activation": act, "on_input": self.weight_on_input, **weights}

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_w13", "_w2"):
            state.pop(name, None)
        return state


def _blocks(n: int) -> int:
    return -(-n // BLOCK) * BLOCK
