"""Ahead of time, with no GPU: what a layer's kernels depend on, and all that any call may launch."""

from __future__ import annotations

import torch

from swordfish.errors import ArgumentError
from swordfish.experts.activation import Activation, activation_of
from swordfish.experts.choose import plan_experts
from swordfish.experts.layer import layer_sources
from swordfish.experts.operators import layer_shape
from swordfish.experts.weights import ExpertWeights
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.registry import Source

__all__ = ["sources_for_experts", "without_memory"]

_TOKENS_PLANNED = (
    *range(1, 513),
    *range(520, 2049, 8),
    *range(2112, 16385, 64),
    *range(20480, 131073, 4096),
)
"""Token counts that meet every plan: rows of a block come in buckets, which many counts share."""


def without_memory(w: ExpertWeights, experts: int) -> ExpertWeights:
    """So many experts like those of ``w``, on the meta device."""
    tensors = {
        name: torch.empty((experts, *t.shape[1:]), dtype=t.dtype, device="meta")
        for name, t in w.tensors().items()
    }
    return ExpertWeights.from_tensors(tensors, w.scheme, w.shape, gated=w.gated)


def sources_for_experts(
    w13: ExpertWeights,
    w2: ExpertWeights,
    top_k: int,
    props: DeviceProps,
    *,
    global_experts: int | None = None,
    activation: str | Activation = "silu",
) -> list[Source]:
    """Every kernel that a layer may launch by rule, whatever the number of tokens, with ids of both types.

    ``w13`` and ``w2`` may be on the meta device, see :func:`without_memory`. ``global_experts``: those that
    tokens choose from where they are spread over several GPUs; default: those of the weights.

    Raises ``ArgumentError`` when ``top_k`` or ``global_experts`` cannot be.
    """
    everywhere = w13.experts if global_experts is None else global_experts
    if everywhere < w13.experts:
        raise ArgumentError("global_experts", everywhere, f"{w13.experts} or more, the experts here")
    if not 1 <= top_k <= everywhere:
        raise ArgumentError("top_k", top_k, f"1 to {everywhere}, the experts that there are")
    act = activation_of(activation)
    places = torch.empty(everywhere, dtype=torch.int32, device="meta")
    shape = layer_shape(w13, w2, places)
    planned = (plan_experts(tokens, top_k, shape, props) for tokens in _TOKENS_PLANNED)
    found: dict[Source, None] = {}
    for plan in {plan.kernels: plan for plan in planned}.values():
        for wide_ids in (False, True):
            found.update(dict.fromkeys(layer_sources(plan, w13, w2, act, wide_ids=wide_ids)))
    return list(found)
