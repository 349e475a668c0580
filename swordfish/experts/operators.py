"""``swordfish::moe``: an expert layer as one operator, opaque to ``torch.compile`` and ``torch.export``.

Weights travel as their tensors and what those do not tell; :func:`operands` takes a call apart.
"""

from __future__ import annotations

from typing import Any

import torch

from swordfish.dispatch import overrides, props_of
from swordfish.experts.activation import Activation
from swordfish.experts.choose import ExpertPlan, LayerShape, plan_experts
from swordfish.experts.layer import launch_layer, workspace_bytes
from swordfish.experts.reference import reference_layer
from swordfish.experts.weights import ExpertWeights
from swordfish.operators import define, scheme_of
from swordfish.runtime.device import DeviceProps

__all__ = ["MAX_DENSE_WORKSPACE", "MAX_WORKSPACE", "divide", "layer_shape", "operands", "run_layer"]

MAX_WORKSPACE = 512 << 20
"""Bytes of rows beyond which a call is done in several parts, one after the other."""

MAX_DENSE_WORKSPACE = 1 << 30
"""The same with dequantised weights, which pay only if many rows share them; they take
:data:`~swordfish.experts.dense.WEIGHT_BYTES` besides."""

_FIELDS = ("words", "scale_rows", "zero_rows", "perm", "bias_rows")


def layer_shape(w13: ExpertWeights, w2: ExpertWeights, expert_map: torch.Tensor | None) -> LayerShape:
    """What plans depend on."""
    everywhere = w13.experts if expert_map is None else int(expert_map.shape[0])
    return LayerShape(
        w13.experts, everywhere, w13.packed_k, w13.padded_n, w2.packed_k, w2.padded_n, w13.scheme, w2.scheme
    )


def run_layer(
    x: torch.Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    activation: Activation,
    out: torch.Tensor,
    weight_on_input: bool,
) -> None:
    """The layer on the path that the plan asks for, operands checked already; ``out`` has unit inner
    stride."""
    tokens, top_k = topk_ids.shape
    if top_k == 0 or tokens == 0:
        out.zero_()
        return
    ids, weights = topk_ids.contiguous(), topk_weights.float().contiguous()
    if x.stride(1) != 1:
        x = x.contiguous()
    props = props_of(x.device)
    if props is None:
        reference_layer(
            x, w13, w2, weights, ids, expert_map, activation, out, weight_on_input=weight_on_input
        )
        return
    step, plan = divide(tokens, top_k, w13, w2, expert_map, props)
    for start in range(0, tokens, step):
        part = slice(start, min(tokens, start + step))
        launch_layer(
            plan, x[part], w13, w2, weights[part], ids[part], expert_map, activation, out[part], props.arch,
            weight_on_input=weight_on_input,
        )  # fmt: skip


def divide(
    tokens: int,
    top_k: int,
    w13: ExpertWeights,
    w2: ExpertWeights,
    expert_map: torch.Tensor | None,
    props: DeviceProps | None,
) -> tuple[int, ExpertPlan]:
    """Tokens of a part of a call, as many as the bounds on workspace allow, and the plan of every part."""
    shape, wanted = layer_shape(w13, w2, expert_map), overrides().path
    parts = 1
    while True:
        step = -(-tokens // parts)
        plan = plan_experts(step, top_k, shape, props, wanted)
        limit = MAX_DENSE_WORKSPACE if plan.dense else MAX_WORKSPACE
        held = workspace_bytes(step, top_k, w13, w2, plan)
        if held <= limit or step == 1:
            return step, plan
        parts = max(parts + 1, -(-parts * held // limit))


def operands(
    x: torch.Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    activation: Activation,
    weight_on_input: bool,
) -> tuple[Any, ...]:
    """A call as the operator takes it."""
    tensors = [getattr(w, name) for w in (w13, w2) for name in _FIELDS]
    sizes = [v for w in (w13, w2) for v in (*w.shape, w.scheme.group_size, w.scheme.zeros == "offset")]
    act = (activation.kind, activation.alpha, activation.beta, activation.limit)
    return (x, *tensors, topk_weights, topk_ids, expert_map, *sizes, *act, weight_on_input)


def _weights(tensors: tuple[Any, ...], sizes: tuple[Any, ...], *, gated: bool) -> ExpertWeights:
    words, scale_rows, zero_rows, perm, bias_rows = tensors
    k, n, group_size, offset = sizes
    scheme = scheme_of(
        words.shape,
        scale_rows.dtype,
        group_size,
        zeros=zero_rows is not None,
        offset=offset,
        act_order=perm is not None,
    )
    return ExpertWeights(words, scale_rows, zero_rows, perm, bias_rows, scheme, (k, n), gated)


def _moe(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    weights, ids, expert_map = rest[10:13]
    w13 = _weights(rest[:5], rest[13:17], gated=True)
    w2 = _weights(rest[5:10], rest[17:21], gated=False)
    *act, weight_on_input = rest[21:]
    out = x.new_empty((x.shape[0], w2.shape[1]))
    run_layer(x, w13, w2, weights, ids, expert_map, Activation(*act), out, weight_on_input)
    return out


def _moe_fake(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], rest[18]))


def _register() -> torch.library.Library:
    """The operator lives as long as the returned library."""
    library: Any = torch.library.Library("swordfish", "FRAGMENT")  # type: ignore[no-untyped-call]
    weight = (
        "Tensor {0}_words, Tensor {0}_scale_rows, Tensor? {0}_zero_rows, Tensor? {0}_perm, Tensor? {0}_bias"
    )
    scheme = "int {0}_k, int {0}_n, int {0}_group_size, bool {0}_offset"
    both = [text.format(name) for text in (weight, scheme) for name in ("w13", "w2")]
    routing = "Tensor topk_weights, Tensor topk_ids, Tensor? expert_map"
    activation = "str activation, float alpha, float beta, float limit, bool weight_on_input"
    schema = f"moe(Tensor x, {both[0]}, {both[1]}, {routing}, {both[2]}, {both[3]}, {activation}) -> Tensor"
    define(library, schema, _moe, _moe_fake)
    found: torch.library.Library = library
    return found


_library = _register()
