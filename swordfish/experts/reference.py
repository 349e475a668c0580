"""An expert layer on the CPU without kernels: exact weights, fp64 sums, the roundings of the kernels."""

from __future__ import annotations

import torch

from swordfish.experts.activation import Activation
from swordfish.experts.weights import ExpertWeights
from swordfish.packed import PackedWeight
from swordfish.reference import exact_columns

__all__ = ["places_of", "reference_layer"]


def places_of(ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int) -> torch.Tensor:
    """Place of each id among the experts here, -1 for nobody; int64, the shape of ``ids``."""
    everywhere = experts if expert_map is None else expert_map.shape[0]
    valid = (ids >= 0) & (ids < everywhere)
    places = torch.where(valid, ids.long(), 0)
    if expert_map is not None:
        places = expert_map.long()[places]
    return torch.where(valid & (places >= 0) & (places < experts), places, -1)


def reference_layer(
    x: torch.Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    activation: Activation,
    out: torch.Tensor,
    *,
    weight_on_input: bool = False,
) -> None:
    """What :func:`swordfish.moe` computes, one expert after the other; fp64 inside."""
    places = places_of(topk_ids, expert_map, w13.experts)
    total = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    for expert in range(w13.experts):
        token, slot = (places == expert).nonzero(as_tuple=True)
        if not token.numel():
            continue
        router = topk_weights[token, slot].double().unsqueeze(1)
        first = _product(x[token], w13.expert(expert), router if weight_on_input else None)
        gate, up = first.chunk(2, dim=1)
        h = activation(gate, up).to(x.dtype)
        second = _product(h, w2.expert(expert), None)
        total.index_add_(0, token, second if weight_on_input else second * router)
    out.copy_(total)


def _product(x: torch.Tensor, w: PackedWeight, scale: torch.Tensor | None) -> torch.Tensor:
    y = w.gather(x).double() @ exact_columns(w, 0, w.shape[1])
    if scale is not None:
        y = y * scale
    return y if w.bias is None else y + w.bias.double()
