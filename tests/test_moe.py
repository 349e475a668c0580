"""Expert layers: every combination against fp64, on the emulator and on a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.decode import RingConfig, WideConfig
from swordfish.experts import ACTIVATIONS, Activation, ExpertPlan, ExpertWeights, moe, plan_layer
from swordfish.experts.kernels import ExpertRing, ExpertWide
from swordfish.experts.layer import launch_layer
from tests.backends import BACKENDS, EMULATED, Backend
from tests.moe_layers import (
    SCHEMES,
    MoeLayer,
    assert_layer,
    compile_ahead,
    layer,
    permuted_copies,
    routing,
    tokens,
)


def run(
    backend: Backend, made: MoeLayer, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, **kw: Any
):
    """``sf.moe`` on a backend; operands and result on the CPU."""
    there = made.to(backend.device)
    if kw.get("expert_map") is not None:
        kw["expert_map"] = kw["expert_map"].to(backend.device)
    with backend.active():
        y = moe(*(t.to(backend.device) if isinstance(t, torch.Tensor) else t
                  for t in (x, there.w13, there.w2, weights, ids)), **kw)  # fmt: skip
    return y.cpu()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [1, 6, 40])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(backend: Backend, m: int, scheme: str) -> None:
    made = layer(3, 192, 72, **SCHEMES[scheme])
    weights, ids = routing(m, 2, 3)
    x = tokens(m, made)
    assert_layer(run(backend, made, x, weights, ids), made.exact(x, weights, ids))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [1, 6, 40])
@pytest.mark.parametrize("scheme", [name for name, kind in SCHEMES.items() if kind.get("act_order")])
def test_a_layer_in_the_order_of_down(backend: Backend, m: int, scheme: str) -> None:
    """Folded, w2 needs no gather; with experts elsewhere, and the bits that the gather would have given."""
    made = layer(3, 192, 72, **SCHEMES[scheme])
    w13, w2 = ExpertWeights.stack_layer(made.gate_up, made.down)
    folded = MoeLayer(made.gate_up, made.down, w13, w2)
    expert_map = torch.tensor([2, -1, 0, 1], dtype=torch.int32)
    weights, ids = routing(m, 2, 4)
    x = tokens(m, made)
    y = run(backend, folded, x, weights, ids, expert_map=expert_map)
    assert_layer(y, made.exact(x, weights, ids, expert_map=expert_map))
    assert torch.equal(y, run(backend, made, x, weights, ids, expert_map=expert_map))


def test_a_layer_in_the_order_of_down_launches_one_gather_less() -> None:
    made = layer(3, 192, 72, **SCHEMES["int4-zeros-act-order-bias"])
    weights, ids = routing(6, 2, 3)
    x = tokens(6, made)
    counts = []
    for w13, w2 in ((made.w13, made.w2), ExpertWeights.stack_layer(made.gate_up, made.down)):
        with sf.emulate("sm_90a") as emulation:
            moe(x, w13, w2, weights, ids)
        counts.append(len(emulation.reports))
    assert counts[1] == counts[0] - 1


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [5, 40])
@pytest.mark.parametrize(
    "activation",
    ["gelu", "gelu_tanh", "swiglu", Activation("swiglu", alpha=1.1, beta=0.5, limit=math.inf)],
    ids=str,
)
def test_activations(backend: Backend, m: int, activation: str | Activation) -> None:
    made = layer(3, 128, 64, bias=True)
    weights, ids = routing(m, 2, 3)
    x = tokens(m, made)
    y = run(backend, made, x, weights, ids, activation=activation)
    assert_layer(y, made.exact(x, weights, ids, activation))


def test_clamp_is_reached() -> None:
    made = layer(2, 128, 64)
    weights, ids = routing(4, 1, 2)
    x = tokens(4, made) * 20
    limited = made.exact(x, weights, ids, Activation("swiglu", limit=0.5))
    assert_layer(run(EMULATED[0], made, x, weights, ids, activation=Activation("swiglu", limit=0.5)), limited)
    assert (limited - made.exact(x, weights, ids, "swiglu")).norm() > 0.1 * limited.norm()


@pytest.mark.parametrize("backend", EMULATED, ids=str)
@pytest.mark.parametrize("m", [2, 3, 9, 17, 33, 70])
@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_tokens(backend: Backend, m: int, skew: float) -> None:
    made = layer(5, 128, 64)
    weights, ids = routing(m, 2, 5, skew=skew)
    x = tokens(m, made)
    assert_layer(run(backend, made, x, weights, ids), made.exact(x, weights, ids))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [1, 7, 45])
def test_all_on_one_expert(backend: Backend, m: int) -> None:
    made = layer(4, 128, 64)
    ids = torch.full((m, 1), 2, dtype=torch.int64)
    weights = torch.rand(m, 1)
    x = tokens(m, made)
    assert_layer(run(backend, made, x, weights, ids), made.exact(x, weights, ids))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [1, 8, 50])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_experts_elsewhere(backend: Backend, m: int, ids_dtype: torch.dtype) -> None:
    """C26: an expert map, -1 and a token with no expert here."""
    made = layer(4, 128, 64)
    expert_map = torch.tensor([-1, 2, 0, -1, 3, -1, 1, -1], dtype=torch.int32)
    weights, ids = routing(m, 3, 8)
    ids[0] = torch.tensor([0, -1, 3])
    ids = ids.to(ids_dtype)
    x = tokens(m, made)
    y = run(backend, made, x, weights, ids, expert_map=expert_map)
    assert_layer(y, made.exact(x, weights, ids, expert_map=expert_map))
    assert not y[0].any()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_nobody_here(backend: Backend) -> None:
    made = layer(2, 128, 64)
    for m in (1, 3):
        ids = torch.full((m, 2), -1)
        assert not run(backend, made, tokens(m, made), torch.ones(m, 2), ids).any()


@pytest.mark.parametrize("backend", [Backend("reference"), *BACKENDS], ids=str)
def test_no_tokens(backend: Backend) -> None:
    made = layer(2, 128, 64)
    device = backend.device
    there = made.to(device)
    x = torch.empty(0, 128, dtype=made.w13.dtype, device=device)
    ids = torch.empty(0, 2, dtype=torch.int32, device=device)
    y = moe(x, there.w13, there.w2, ids.float(), ids)
    assert y.shape == (0, 128) and y.dtype == made.w13.dtype


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("m", [1, 7, 60])
def test_permuted_copies_of_one_mlp(backend: Backend, m: int) -> None:
    """Experts that are one MLP with its hidden channels in another order each, router weights that sum to
    1: the layer is that MLP, unless an expert's rows, columns, scales or biases are taken from another
    one."""
    made, dense = permuted_copies(5)
    x = tokens(m, made)
    weights, ids = routing(m, 3, 5)
    y = run(backend, made, x, weights.softmax(dim=1), ids)
    expected = dense(x)
    assert (y.double() - expected).norm() < 6e-3 * expected.norm()


@pytest.mark.parametrize("backend", EMULATED, ids=str)
@pytest.mark.parametrize("m", [1, 12])
def test_weight_on_input(backend: Backend, m: int) -> None:
    """C28: the weight of the only expert meets x, before the bias and the activation."""
    made = layer(3, 128, 64, bias=True)
    weights, ids = routing(m, 1, 3)
    x = tokens(m, made)
    y = run(backend, made, x, weights, ids, weight_on_input=True)
    assert_layer(y, made.exact(x, weights, ids, weight_on_input=True))
    assert (y.double() - made.exact(x, weights, ids)).norm() > 0.05 * y.double().norm()


RINGS = [
    ExpertRing(RingConfig(rows, cols, unit, warps, 2, split), clusters, items)
    for rows, cols, unit, warps, split, clusters, items in [
        (1, 1, 1, 3, 1, 3, 16),
        (2, 1, 1, 2, 2, 2, 16),
        (4, 1, 1, 3, 4, 1, 64),
        (8, 2, 1, 4, 1, 2, 16),
        (16, 1, 2, 2, 2, 2, 16),
        (16, 4, 1, 2, 1, 1, 16),
    ]
]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("config", RINGS, ids=str)
def test_ring_configurations(backend: Backend, config: ExpertRing) -> None:
    """Several items for a cluster, K split over the CTAs of a cluster, tiles wider than the weight."""
    made = layer(3, 320, 192, zeros="integer", group_size=64, bias=True)
    with_configs(backend, made, ExpertPlan("experts", config, config, False, ""), 13)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.name != "sm_100a"], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        WideConfig(16, 2, 1, 128, 3, ctas=5, span=2),
        WideConfig(32, 4, 2, 128, 3, ctas=2),
        WideConfig(24, 2, 2, 256, 2, scale_rows=4, ctas=3),
        WideConfig(112, 2, 1, 128, 3, in_place=True, ctas=99),
        WideConfig(144, 2, 2, 128, 2, in_place=True, ctas=3, span=3),
    ],
    ids=str,
)
def test_wide_configurations(backend: Backend, config: WideConfig) -> None:
    """CTAs that go from tile to tile or have one each, a ring that ends within a tile, k that ends within a
    stage; rows of x by lanes and by tensor copies."""
    made = layer(3, 320, 192, group_size=64, bias=True)
    for narrow in (False, True):
        wide = ExpertWide(config, in_order=narrow)
        with_configs(backend, made, ExpertPlan("experts", wide, wide, False, "", narrow), 50)


def with_configs(backend: Backend, made: MoeLayer, plan: ExpertPlan, m: int) -> None:
    weights, ids = routing(m, 2, 3, skew=1.0)
    x, there, device = tokens(m, made), made.to(backend.device), backend.device
    results = []
    for seed in (1, 2):
        out = torch.full((m, 320), math.nan, dtype=x.dtype, device=device)
        with backend.active(seed):
            arch = "sm_90a" if backend.name == "cuda" else backend.name
            launch_layer(
                plan, x.to(device), there.w13, there.w2, weights.to(device), ids.to(device), None,
                ACTIVATIONS["silu"], out, arch,
            )  # fmt: skip
        results.append(out.cpu())
    assert_layer(results[0], made.exact(x, weights, ids))
    assert torch.equal(*results)


@pytest.mark.parametrize("backend", EMULATED, ids=str)
def test_one_token_needs_no_sorting(backend: Backend) -> None:
    """Pairs as blocks of their own give the bits that a schedule gives."""
    made = layer(3, 192, 64)
    weights, ids = routing(1, 2, 3)
    x = tokens(1, made)
    plan = plan_on(backend, made, 1)
    assert plan.direct and plan.gate_up is not None
    results = []
    for direct in (True, False):
        out = torch.empty(1, 192, dtype=x.dtype)
        with backend.active():
            launch_layer(
                replace(plan, direct=direct), x, made.w13, made.w2, weights, ids, None,
                ACTIVATIONS["silu"], out, backend.name,
            )  # fmt: skip
        results.append(out)
    assert torch.equal(*results)


def plan_on(backend: Backend, made: MoeLayer, m: int, top_k: int = 2) -> ExpertPlan:
    with backend.active():
        return plan_layer(made.w13, made.w2, m, top_k)


@pytest.mark.parametrize("backend", EMULATED, ids=str)
def test_operands_of_any_strides(backend: Backend) -> None:
    made = layer(3, 200, 64, group_size=32)
    weights, ids = routing(6, 2, 3)
    x = tokens(6, made)
    expected = made.exact(x, weights, ids)
    strided = torch.stack([x, x], dim=2)[:, :, 1]
    out = torch.empty(200, 6, dtype=x.dtype).T
    y = run(backend, made, strided, weights.to(torch.bfloat16), ids.T.contiguous().T, out=out)
    assert_layer(y, made.exact(x, weights.to(torch.bfloat16), ids))
    assert out.data_ptr() == y.data_ptr()
    assert_layer(run(backend, made, x, weights, ids), expected)


def test_reference_agrees() -> None:
    made = layer(4, 128, 72, zeros="integer", group_size=32, act_order=True, bias=True)
    weights, ids = routing(9, 2, 4)
    x = tokens(9, made)
    assert_layer(moe(x, made.w13, made.w2, weights, ids), made.exact(x, weights, ids))


def test_large_calls_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = layer(3, 128, 64)
    weights, ids = routing(30, 2, 3)
    x = tokens(30, made)
    monkeypatch.setattr("swordfish.experts.operators.MAX_WORKSPACE", 20_000)
    with sf.emulate("sm_90a") as emulation:
        y = moe(x, made.w13, made.w2, weights, ids)
        launches = len(emulation.reports)
    assert launches == 2 * 4  # two parts: sorting, gate_up with rows by lanes, down, sum
    assert_layer(y, made.exact(x, weights, ids))


MANY_TOKENS = [1, 2, 4, 16, 31, 64, 150, 256, 700, 1024, 4096]
MANY_SCHEMES = ["int4-128", "int8-32-zeros", "int4-zeros-act-order-bias"]


@pytest.fixture(scope="module")
def many_layers() -> dict[str, MoeLayer]:
    made = {scheme: layer(12, 512, 320, **SCHEMES[scheme]) for scheme in MANY_SCHEMES}
    compile_ahead(list(made.values()), MANY_TOKENS, 4)
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("m", MANY_TOKENS)
@pytest.mark.parametrize("skew", [0.0, 2.0])
@pytest.mark.parametrize("scheme", MANY_SCHEMES)
def test_many_tokens(many_layers: dict[str, MoeLayer], m: int, skew: float, scheme: str) -> None:
    made = many_layers[scheme]
    weights, ids = routing(m, 4, 12, skew=skew)
    x = tokens(m, made)
    first = run(Backend("cuda"), made, x, weights, ids)
    assert torch.equal(first, run(Backend("cuda"), made, x, weights, ids))
    plan = plan_on(Backend("cuda"), made.to("cuda"), m, 4)
    assert_layer(first, made.exact(x, weights, ids, dense=plan.dense))


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 3, 300])
def test_captured(m: int) -> None:
    made = layer(6, 256, 128).to("cuda")
    weights, ids = (t.cuda() for t in routing(m, 2, 6))
    x = tokens(m, made).cuda()
    expected = moe(x, made.w13, made.w2, weights, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moe(x, made.w13, made.w2, weights, ids)
    other_weights, other_ids = (t.cuda() for t in routing(m, 2, 6, seed=5))
    weights.copy_(other_weights)
    ids.copy_(other_ids)
    graph.replay()
    assert torch.equal(y, moe(x, made.w13, made.w2, weights, ids))
    assert m > 100 or not torch.equal(y, expected)
