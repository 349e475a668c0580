"""One expert layer: sorting, gate_up, activation, down and the sum over a token's experts."""

from __future__ import annotations

import functools

import torch

from swordfish.decode.tokens import gather_source as token_source
from swordfish.decode.tokens import packed_tokens
from swordfish.experts.activation import Activation
from swordfish.experts.choose import ExpertConfig, ExpertPlan
from swordfish.experts.dense import ExpertDense, dense_bytes, dequant_source
from swordfish.experts.kernels import Product
from swordfish.experts.routing import (
    Routing,
    block_bound,
    gather_rows,
    gather_source,
    sort_pairs,
    sort_source,
    sum_experts,
    sum_source,
)
from swordfish.experts.weights import ExpertWeights
from swordfish.runtime.launch import PreparedLaunch
from swordfish.runtime.registry import Source, get_kernel

__all__ = ["down", "gate_up", "launch_layer", "layer_sources", "weight_bytes", "workspace_bytes"]


def launch_layer(
    plan: ExpertPlan,
    x: torch.Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    activation: Activation,
    out: torch.Tensor,
    arch: str,
    *,
    weight_on_input: bool = False,
) -> None:
    """Queue the launches of a layer for at least one token.

    ``x`` ``[M, K]`` and ``out`` ``[M, N]`` have unit inner stride, ``topk_weights`` is fp32, ``topk_ids``
    int32 or int64, both contiguous ``[M, top_k]``.
    """
    assert plan.gate_up is not None and plan.down is not None
    if plan.direct and w13.perm is None and w2.perm is None:
        routing = Routing(topk_ids, expert_map, w13.experts, 1)
    else:
        rows = plan.gate_up.block_rows
        routing = sort_pairs(topk_ids, expert_map, w13.experts, rows, arch, begins=plan.dense)
    h = gate_up(plan.gate_up, x, w13, topk_weights if weight_on_input else None, routing, activation, arch)
    on_result = None if weight_on_input else topk_weights
    sums = down(plan.down, h, w2, on_result, routing, arch, narrow=plan.narrow)
    sum_experts(sums, routing, out, arch)


def gate_up(
    config: ExpertConfig,
    x: torch.Tensor,
    w13: ExpertWeights,
    router_weights: torch.Tensor | None,
    routing: Routing,
    activation: Activation,
    arch: str,
) -> torch.Tensor:
    """``activation(x W_gate, x W_up)`` of every pair, in the order by experts: ``[pairs, P / 2]``, what
    ``w2`` multiplies; rows of pairs whose expert is elsewhere are not written."""
    in_order = config.in_order or w13.perm is not None
    if w13.perm is None:
        x = packed_tokens(x, None, w13.packed_k, arch)
    if in_order:
        x = gather_rows(x, w13, routing, arch, in_order=False)
    h = torch.empty((routing.pairs, w13.padded_n // 2), dtype=w13.dtype, device=w13.device)
    # A launch before this one that ran after sorting is complete: its predecessor has ended.
    product = Product.of(
        w13,
        routing.direct,
        routing.wide_ids,
        activation,
        router=router_weights is not None,
        in_order=in_order,
        early=in_order,
    )
    _multiply(config, product, w13, x, router_weights, routing, h, arch)
    return h


def down(
    config: ExpertConfig,
    h: torch.Tensor,
    w2: ExpertWeights,
    router_weights: torch.Tensor | None,
    routing: Routing,
    arch: str,
    *,
    narrow: bool = False,
) -> torch.Tensor:
    """``h W_down`` of every pair, by pair: fp32 or (``narrow``) in the dtype of ``h``, ``[pairs, P]``; rows
    of pairs whose expert is elsewhere are not written. ``h`` is in the order by experts."""
    if w2.perm is not None:
        h = gather_rows(h, w2, routing, arch, in_order=True)
    dtype = w2.dtype if narrow else torch.float32
    sums = torch.empty((routing.pairs, w2.padded_n), dtype=dtype, device=w2.device)
    product = Product.of(
        w2,
        routing.direct,
        routing.wide_ids,
        None,
        router=router_weights is not None,
        in_order=True,
        early=True,
        narrow=narrow,
    )
    _multiply(config, product, w2, h, router_weights, routing, sums, arch)
    return sums


def _multiply(
    config: ExpertConfig,
    product: Product,
    weights: ExpertWeights,
    x: torch.Tensor,
    router_weights: torch.Tensor | None,
    routing: Routing,
    out: torch.Tensor,
    arch: str,
) -> None:
    launch = _launch(config, product, routing.blocks, arch)
    if isinstance(config, ExpertDense):
        config.multiply(launch, weights, x, router_weights, routing, out, arch)
    else:
        launch(config.arguments(weights, x, router_weights, routing, out))


@functools.lru_cache(maxsize=4096)
def _launch(config: ExpertConfig, product: Product, blocks: int, arch: str) -> PreparedLaunch:
    """The kernel, compiled or read from the cache, with its launch shape."""
    return get_kernel(config.source(product), arch).prepare(config.launch_config(product, blocks))


def layer_sources(
    plan: ExpertPlan,
    w13: ExpertWeights,
    w2: ExpertWeights,
    activation: Activation,
    *,
    wide_ids: bool = False,
    weight_on_input: bool = False,
) -> list[Source]:
    """Every kernel of :func:`launch_layer` for such a call, to build them side by side; none without a plan
    for a GPU. ``wide_ids``: ids are int64."""
    if plan.gate_up is None or plan.down is None:
        return []
    experts, direct = w13.experts, plan.direct and w13.perm is None and w2.perm is None
    in_order = plan.gate_up.in_order or w13.perm is not None
    first = Product.of(
        w13, direct, wide_ids, activation, router=weight_on_input, in_order=in_order, early=in_order
    )
    second = Product.of(
        w2, direct, wide_ids, None, router=not weight_on_input, in_order=True, early=True, narrow=plan.narrow
    )
    sources: list[Source] = [
        plan.gate_up.source(first),
        plan.down.source(second),
        sum_source(experts, wide_ids, w2.shape[1], w2.dtype == torch.bfloat16, plan.narrow),
    ]
    if not direct:
        sources.append(sort_source(experts, wide_ids))
    if in_order:
        sources.append(gather_source(experts, wide_ids, w13.packed_k, w13.perm is not None, False))
    if w2.perm is not None:
        sources.append(gather_source(experts, wide_ids, w2.packed_k, True, True))
    for config, weights in ((plan.gate_up, w13), (plan.down, w2)):
        if isinstance(config, ExpertDense):
            sources.append(dequant_source(weights.scheme))
    return [*sources, token_source()]


def workspace_bytes(tokens: int, top_k: int, w13: ExpertWeights, w2: ExpertWeights, plan: ExpertPlan) -> int:
    """Bytes that a layer holds at a time besides its result and dequantised weights: schedule and order; rows
    in order with the intermediate, then the intermediate with the sums."""
    if plan.gate_up is None:
        return 0
    pairs = tokens * top_k
    h = w13.padded_n
    ordered = -(-w13.packed_k // 64) * 128 if plan.gate_up.in_order or w13.perm is not None else 0
    permuted = 0 if w2.perm is None else -(-w2.packed_k // 64) * 128
    sums = (2 if plan.narrow else 4) * w2.padded_n
    sorting = 0
    if not plan.direct:
        sorting = 16 * (block_bound(pairs, w13.experts, plan.gate_up.block_rows) + 1) + 4 * pairs
    if plan.dense:
        sorting += 4 * (w13.experts + 1)
    return sorting + pairs * (h + max(ordered, permuted + sums))


def weight_bytes(plan: ExpertPlan, w13: ExpertWeights, w2: ExpertWeights) -> int:
    """Bytes of the dequantised weights that a layer holds at a time."""
    products = ((plan.gate_up, w13), (plan.down, w2))
    return max(dense_bytes(weights) if isinstance(config, ExpertDense) else 0 for config, weights in products)
