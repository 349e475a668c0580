"""Expert layers whose weights are dequantised first: equality with fp64, which experts are dequantised, how
much memory, and when such a plan is made. A finding of the emulator fails the test."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.errors import ArgumentError
from swordfish.experts import Activation, moe, operators, plan_layer
from swordfish.experts import dense as experts_dense
from swordfish.experts.ahead import without_memory
from swordfish.experts.choose import LayerShape, plan_experts
from swordfish.experts.dense import WEIGHT_BYTES, ExpertDense, dense_bytes, experts_at_a_time
from swordfish.experts.kernels import ExpertWide
from swordfish.experts.layer import weight_bytes, workspace_bytes
from swordfish.experts.operators import MAX_DENSE_WORKSPACE, MAX_WORKSPACE, divide
from swordfish.experts.routing import sort_pairs
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme
from tests.backends import Backend
from tests.moe_layers import (
    SCHEMES,
    MoeLayer,
    assert_layer,
    compile_ahead,
    launch_products,
    layer,
    permuted_copies,
    routing,
    tokens,
)

HOPPER = Backend("sm_90a")
BACKENDS = ([Backend("cuda")] if torch.cuda.is_available() else []) + [HOPPER]
SMALL = ExpertDense(32, 3, 3)
LARGE = ExpertDense(160, 4, 132)


def run(
    backend: Backend,
    made: MoeLayer,
    config: ExpertDense,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    *,
    seed: int = 0,
    **how: Any,
) -> torch.Tensor:
    """A layer with both products on the dense kernel."""
    with backend.active(seed):
        return launch_products(made, config, x, weights, ids, arch="sm_90a", device=backend.device, **how)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(backend: Backend, scheme: str) -> None:
    """K and N that end inside a stage and inside a tile, several tiles and blocks for a CTA; the same bits
    under another schedule, and sums rounded by pair."""
    made = layer(3, 200, 104, **SCHEMES[scheme])
    weights, ids = routing(90, 2, 3, skew=1.0)
    x = tokens(90, made)
    expected = made.exact(x, weights, ids, dense=True)
    first = run(backend, made, SMALL, x, weights, ids)
    assert_layer(first, expected)
    assert torch.equal(first, run(backend, made, SMALL, x, weights, ids, seed=1))
    assert_layer(run(backend, made, SMALL, x, weights, ids, narrow=True), expected)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("act_order", [False, True])
def test_the_tiles_of_plans(backend: Backend, act_order: bool) -> None:
    """More blocks of an expert than take all columns together, and a K that wraps the ring."""
    made = layer(2, 320, 192, group_size=64, act_order=act_order)
    x = tokens(300, made)
    weights, ids = routing(300, 1, 2, skew=2.0)
    y = run(backend, made, LARGE, x, weights, ids)
    assert_layer(y, made.exact(x, weights, ids, dense=True))
    assert torch.equal(y, run(backend, made, ExpertDense(16, 3, 2), x, weights, ids))


@pytest.mark.parametrize(
    "activation", ["gelu", "gelu_tanh", Activation("swiglu", alpha=1.1, beta=0.5, limit=0.5)], ids=str
)
def test_activations(activation: str | Activation) -> None:
    made = layer(3, 128, 64, bias=True)
    weights, ids = routing(40, 2, 3)
    x = tokens(40, made)
    y = run(HOPPER, made, SMALL, x, weights, ids, activation=activation)
    assert_layer(y, made.exact(x, weights, ids, activation, dense=True))


def test_weight_on_input() -> None:
    made = layer(3, 128, 64, bias=True)
    weights, ids = routing(40, 1, 3)
    x = tokens(40, made)
    y = run(HOPPER, made, SMALL, x, weights, ids, weight_on_input=True)
    assert_layer(y, made.exact(x, weights, ids, weight_on_input=True, dense=True))
    assert (y.double() - made.exact(x, weights, ids, dense=True)).norm() > 0.05 * y.double().norm()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_experts_elsewhere(backend: Backend, ids_dtype: torch.dtype) -> None:
    made = layer(4, 128, 64)
    expert_map = torch.tensor([-1, 2, 0, -1, 3, -1, 1, -1], dtype=torch.int32)
    weights, ids = routing(50, 3, 8)
    ids[0] = torch.tensor([0, -1, 3])
    ids = ids.to(ids_dtype)
    x = tokens(50, made)
    y = run(backend, made, SMALL, x, weights, ids, expert_map=expert_map)
    assert_layer(y, made.exact(x, weights, ids, expert_map=expert_map, dense=True))
    assert not y[0].any()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_nobody_here_and_all_on_one(backend: Backend) -> None:
    made = layer(4, 128, 64)
    x = tokens(45, made)
    assert not run(backend, made, SMALL, x, torch.ones(45, 2), torch.full((45, 2), -1)).any()
    ids, weights = torch.full((45, 1), 2), torch.rand(45, 1)
    assert_layer(run(backend, made, SMALL, x, weights, ids), made.exact(x, weights, ids, dense=True))


def test_permuted_copies_of_one_mlp() -> None:
    """As in tests/test_moe.py: nothing of an expert is taken from another one."""
    made, dense = permuted_copies(5)
    x = tokens(60, made)
    weights, ids = routing(60, 3, 5)
    y = run(HOPPER, made, SMALL, x, weights.softmax(dim=1), ids)
    expected = dense(x)
    assert (y.double() - expected).norm() < 6e-3 * expected.norm()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("zeros", ["none", "integer"])
def test_experts_with_rows_are_dequantised(backend: Backend, zeros: str) -> None:
    """Values are those of ``sf.dequantize``, bit for bit; memory of an expert without rows is not touched."""
    made = layer(5, 128, 64, zeros=zeros, group_size=64)
    w = made.w2.to(backend.device)
    ids = torch.tensor([[0], [2], [2], [3]], dtype=torch.int32, device=backend.device)
    out = torch.full((3, w.padded_n, 64), math.nan, dtype=w.dtype, device=backend.device)
    with backend.active():
        sorted_ = sort_pairs(ids, None, 5, 2, "sm_90a", begins=True)
        assert sorted_.begins is not None
        experts_dense._dequantise(w, 1, 3, sorted_.begins[1:5], out, "sm_90a")
    assert sorted_.begins.tolist() == [0, 1, 1, 2, 3, 3]
    assert out[0].isnan().all()
    for place, expert in ((1, 2), (2, 3)):
        assert torch.equal(out[place].T.cpu(), sf.dequantize(made.down[expert]))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_rounds_of_experts(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many experts at a time as memory allows, the last round with fewer; the same bits."""
    made = layer(5, 128, 64)
    weights, ids = routing(70, 2, 5)
    x = tokens(70, made)
    whole = run(backend, made, SMALL, x, weights, ids)
    monkeypatch.setattr(experts_dense, "WEIGHT_BYTES", 2 * 128 * 128 * 2 + 1)
    assert experts_at_a_time(made.w13) == 2 and dense_bytes(made.w13) == 2 * 128 * 128 * 2
    assert torch.equal(whole, run(backend, made, SMALL, x, weights, ids))
    monkeypatch.setattr(experts_dense, "WEIGHT_BYTES", 1)
    assert experts_at_a_time(made.w13) == 1


# --- plans

MODELS = {"qwen1.5": (60, 2048, 1408, 4), "qwen3": (128, 2048, 768, 8), "mixtral": (8, 4096, 14336, 2)}
PROPS = DeviceProps.for_target("sm_90a")


def shape_of(model: str, bits: int = 4) -> LayerShape:
    experts, hidden, inner, _ = MODELS[model]
    scheme = Scheme(bits, 128, "bfloat16")
    return LayerShape(experts, experts, hidden, 2 * inner, inner, hidden, scheme, scheme)


@pytest.mark.parametrize(
    ("model", "bits", "least"),
    [
        ("qwen1.5", 4, 1600),
        ("qwen3", 4, 1600),
        ("qwen3", 8, 1500),
        ("mixtral", 4, 4600),
        ("mixtral", 8, 2900),
    ],
)
def test_dense_from_rows_of_an_expert(model: str, bits: int, least: int) -> None:
    shape, (experts, *_, top_k) = shape_of(model, bits), MODELS[model]
    tokens = least * experts // top_k
    few, many = (plan_experts(m, top_k, shape, PROPS) for m in (tokens - 1, tokens))
    assert isinstance(few.gate_up, ExpertWide) and not few.dense
    assert f"dense from {least} rows an expert on" in few.reason
    assert many.dense and many.gate_up == many.down == LARGE and many.narrow
    assert "make up for dequantising" in many.reason and "dense(tokens=160" in str(many)
    LARGE.check(shape.scheme13, shape.k13, PROPS)


def test_plans_count_rows_of_experts_here() -> None:
    """An eighth of the experts has as many rows each as all of them."""
    shape = replace(shape_of("qwen3"), experts=16)
    assert plan_experts(32768, 8, shape, PROPS).dense


@pytest.mark.parametrize(
    ("arch", "wanted", "kind", "told"),
    [
        ("sm_90a", "dense", ExpertDense, "asked for"),
        ("sm_90a", "decode", ExpertWide, "asked for"),
        ("sm_90a", "prefill", ExpertDense, "not grouped"),
        ("sm_100a", "dense", None, "not dense: the kernel needs wgmma, which sm_100a does not have"),
    ],
)
def test_paths_asked_for(arch: str, wanted: str, kind: type | None, told: str) -> None:
    shape, props = shape_of("qwen3"), DeviceProps.for_target(arch)
    plan = plan_experts(32768, 8, shape, props, wanted)
    assert told in plan.reason
    by_rule = plan_experts(32768, 8, shape, props)
    assert isinstance(plan.gate_up, kind) if kind else plan.gate_up == by_rule.gate_up
    assert by_rule.dense == (arch == "sm_90a")
    one = plan_experts(1, 8, shape, props, wanted)
    assert one.dense == (told == "asked for" and wanted == "dense") and one.direct != one.dense


def test_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call, as for ``sf.mm``."""
    made = layer(3, 128, 64)
    weights, ids = routing(20, 2, 3)
    x = tokens(20, made)
    with sf.emulate("sm_90a"):
        by_rule = moe(x, made.w13, made.w2, weights, ids)
        assert not plan_layer(made.w13, made.w2, 20, 2).dense
        monkeypatch.setenv("SWORDFISH_PATH", "dense")
        assert plan_layer(made.w13, made.w2, 20, 2).dense
        assert sf.explain(sf.MoE(made.w13, made.w2), 20, top_k=2).dense
        y = moe(x, made.w13, made.w2, weights, ids)
    assert_layer(y, made.exact(x, weights, ids, dense=True))
    assert not torch.equal(y, by_rule)


def weights_of(model: str, bits: int = 4) -> tuple[sf.ExpertWeights, sf.ExpertWeights, int]:
    experts, hidden, inner, top_k = MODELS[model]
    scheme = Scheme(bits, 128, "bfloat16")
    empty = sf.MoE.empty(1, hidden, inner, scheme, device="meta")
    return without_memory(empty.w13, experts), without_memory(empty.w2, experts), top_k


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [1000, 6000, 16384, 24000, 40000, 300_000])
def test_parts_keep_to_the_bounds(model: str, count: int) -> None:
    """Workspace of a part, with the weights 2 GiB; the plan of a part is what its tokens alone would get."""
    w13, w2, top_k = weights_of(model)
    step, plan = divide(count, top_k, w13, w2, None, PROPS)
    limit = MAX_DENSE_WORKSPACE if plan.dense else MAX_WORKSPACE
    assert 0 < workspace_bytes(step, top_k, w13, w2, plan) <= limit
    assert plan == plan_experts(step, top_k, shape_of(model), PROPS)
    assert weight_bytes(plan, w13, w2) <= WEIGHT_BYTES * plan.dense
    assert MAX_DENSE_WORKSPACE + WEIGHT_BYTES == 2 << 30
    whole = -(-count // step)
    if whole > 1:  # one part less would not do
        larger = -(-count // (whole - 1))
        other = plan_experts(larger, top_k, shape_of(model), PROPS)
        over = MAX_DENSE_WORKSPACE if other.dense else MAX_WORKSPACE
        assert workspace_bytes(larger, top_k, w13, w2, other) > over


@pytest.mark.parametrize(
    ("model", "count", "reached"),
    [("qwen1.5", 32768, True), ("qwen3", 32768, False), ("mixtral", 24576, False)],
)
def test_dense_is_reached(model: str, count: int, reached: bool) -> None:
    """In one part, where it was measured to be faster and as many rows fit in memory."""
    w13, w2, top_k = weights_of(model)
    step, plan = divide(count, top_k, w13, w2, None, PROPS)
    assert plan_experts(count, top_k, shape_of(model), PROPS).dense
    assert (step == count) == plan.dense == reached


def test_large_calls_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = layer(3, 128, 64)
    weights, ids = routing(50, 2, 3)
    x = tokens(50, made)
    monkeypatch.setenv("SWORDFISH_PATH", "dense")
    monkeypatch.setattr(operators, "MAX_DENSE_WORKSPACE", 30_000)
    with sf.emulate("sm_90a") as emulation:
        y = moe(x, made.w13, made.w2, weights, ids)
        assert len(emulation.reports) > 12
    assert_layer(y, made.exact(x, weights, ids, dense=True))


@pytest.mark.parametrize("values", [(24, 4, 1), (0, 4, 1), (192, 4, 1), (32, 2, 1), (32, 4, 0)])
def test_configurations_that_cannot_be(values: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match="ExpertDense"):
        ExpertDense(*values)
    with pytest.raises(ArgumentError, match="shared memory"):
        ExpertDense(176, 5, 1).check(Scheme(4, 128, "bfloat16"), 128, PROPS)
    with pytest.raises(ArgumentError, match="sm_100a"):
        LARGE.check(Scheme(4, 128, "bfloat16"), 128, DeviceProps.for_target("sm_100a"))


# --- on a GPU

MANY_TOKENS = [64, 700, 4096]


@pytest.mark.gpu
@pytest.mark.parametrize("skew", [0.0, 2.0])
@pytest.mark.parametrize("scheme", ["int4-128", "int8-32-zeros", "int4-zeros-act-order-bias"])
def test_many_tokens(monkeypatch: pytest.MonkeyPatch, scheme: str, skew: float) -> None:
    monkeypatch.setenv("SWORDFISH_PATH", "dense")
    made = layer(12, 512, 320, **SCHEMES[scheme])
    compile_ahead([made], MANY_TOKENS, 4)
    there = made.to("cuda")
    for m in MANY_TOKENS:
        weights, ids = routing(m, 4, 12, skew=skew)
        x = tokens(m, made)
        call = [x.cuda(), there.w13, there.w2, weights.cuda(), ids.cuda()]
        first = moe(*call)
        assert torch.equal(first, moe(*call))
        assert_layer(first.cpu(), made.exact(x, weights, ids, dense=True))


@pytest.mark.gpu
def test_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWORDFISH_PATH", "dense")
    made = layer(6, 256, 128).to("cuda")
    weights, ids = (t.cuda() for t in routing(300, 2, 6))
    x = tokens(300, made).cuda()
    moe(x, made.w13, made.w2, weights, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moe(x, made.w13, made.w2, weights, ids)
    for into, new in zip((weights, ids), routing(300, 2, 6, skew=2.0, seed=5), strict=True):
        into.copy_(new)
    graph.replay()
    assert torch.equal(y, moe(x, made.w13, made.w2, weights, ids))


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["decode", "dense"])
def test_memory_is_what_is_stated(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("SWORDFISH_PATH", path)
    made = layer(6, 512, 512).to("cuda")
    weights, ids = (t.cuda() for t in routing(20_000, 2, 6))
    x = tokens(20_000, made).cuda()
    moe(x, made.w13, made.w2, weights, ids)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _requested("current")
    y = moe(x, made.w13, made.w2, weights, ids)
    held = _requested("peak") - before - y.nbytes
    plan = plan_layer(made.w13, made.w2, 20_000, 2)
    stated = workspace_bytes(20_000, 2, made.w13, made.w2, plan) + weight_bytes(plan, made.w13, made.w2)
    assert plan.dense == (path == "dense") and 0.5 * stated < held <= stated


def _requested(which: str) -> int:
    """Bytes; what the allocator adds to each tensor, up to 1 MB, is not the layer's."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])
