"""The grouped kernel of expert layers on the emulator: every scheme against fp64, every routing, no write
beyond the rows that exist.

Checkers are on; a finding fails the test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.errors import ArgumentError
from swordfish.experts import ACTIVATIONS, Activation, moe, plan_layer
from swordfish.experts.grouped import ExpertGrouped
from swordfish.experts.kernels import Product
from swordfish.experts.layer import down
from swordfish.experts.routing import sort_pairs
from swordfish.prefill.config import ARCHITECTURES
from swordfish.runtime.cute import keep_workers
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.registry import get_artifact
from swordfish.scheme import Scheme
from tests.moe_layers import (
    GroupedProblem,
    MoeLayer,
    assert_layer,
    launch_products,
    layer,
    permuted_copies,
    routing,
    tokens,
)
from tests.prefill_cases import check_count, check_resources, schedule

SINGLE = ExpertGrouped(32, 1, 3)
PAIR = ExpertGrouped(64, 2, 2)
SCHEMES: dict[str, tuple[ExpertGrouped, dict[str, Any]]] = {
    "int4-128": (PAIR, {}),
    "int4-64-zeros": (SINGLE, {"zeros": "integer", "group_size": 64}),
    "int4-32-act-order": (SINGLE, {"group_size": 32, "act_order": True, "dtype": torch.float16}),
    "int4-channelwise-bias": (PAIR, {"group_size": -1, "bias": True}),
    "int4-zeros-act-order-bias": (
        SINGLE,
        {"zeros": "integer", "group_size": 64, "act_order": True, "bias": True},
    ),
    "int8-128-bias": (SINGLE, {"bits": 8, "bias": True, "dtype": torch.float16}),
    "int8-32-zeros": (PAIR, {"bits": 8, "zeros": "integer", "group_size": 32}),
    "int8-channelwise-zeros": (SINGLE, {"bits": 8, "zeros": "integer", "group_size": -1}),
    "int4-32-offset": (SINGLE, {"zeros": "offset", "group_size": 32}),
}


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """One compiler process for the module."""
    with keep_workers():
        yield


def run(
    made: MoeLayer,
    config: ExpertGrouped,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    *,
    seed: int = 0,
    arch: str = "sm_100a",
    **how: Any,
) -> torch.Tensor:
    """A layer with both products on the grouped kernel; raises on any finding."""
    with sf.emulate(arch, tcgen05_fences=True, cluster_start=True, **schedule(seed)) as emulation:
        out = launch_products(made, config, x, weights, ids, arch=arch, **how)
    for report in emulation.reports:
        report.raise_on_findings()
    return out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme: str) -> None:
    """K and N that end inside a stage and inside a tile; the same bits under another schedule."""
    config, values = SCHEMES[scheme]
    made = layer(3, 192, 72, **values)
    weights, ids = routing(36, 2, 3, skew=1.0)
    x = tokens(36, made)
    y = run(made, config, x, weights, ids)
    assert_layer(y, made.exact(x, weights, ids, rounded=True))
    if config is SINGLE:
        assert torch.equal(y, run(made, config, x, weights, ids, seed=1))


def test_groups_of_several_stages() -> None:
    """They share the kernel of group size 128; and several tiles wrap the rings."""
    made = layer(2, 640, 256, group_size=256)
    weights, ids = routing(20, 1, 2)
    x = tokens(20, made)
    assert_layer(
        run(made, replace(SINGLE, clusters=1), x, weights, ids), made.exact(x, weights, ids, rounded=True)
    )


@pytest.mark.parametrize(
    "activation",
    ["gelu", "gelu_tanh", "swiglu", Activation("swiglu", alpha=1.1, beta=0.5, limit=math.inf)],
    ids=str,
)
def test_activations(activation: str | Activation) -> None:
    made = layer(2, 128, 64, bias=True)
    weights, ids = routing(10, 1, 2)
    x = tokens(10, made) * 4  # beyond the clamp of swiglu, too
    y = run(made, SINGLE, x, weights, ids, activation=activation)
    assert_layer(y, made.exact(x, weights, ids, activation, rounded=True))


def test_weight_on_input() -> None:
    """C28: the weight of the only expert meets x, before the bias and the activation."""
    made = layer(2, 128, 64, bias=True)
    weights, ids = routing(40, 1, 2)
    x = tokens(40, made)
    y = run(made, SINGLE, x, weights, ids, weight_on_input=True)
    assert_layer(y, made.exact(x, weights, ids, weight_on_input=True, rounded=True))
    assert (y.double() - made.exact(x, weights, ids, rounded=True)).norm() > 0.05 * y.double().norm()


def test_pairs_in_16_bits() -> None:
    made = layer(3, 192, 64)
    weights, ids = routing(40, 2, 3)
    x = tokens(40, made)
    narrow, wide = (run(made, SINGLE, x, weights, ids, narrow=narrow) for narrow in (True, False))
    assert_layer(narrow, made.exact(x, weights, ids, rounded=True))
    assert not torch.equal(narrow, wide)


@pytest.mark.parametrize("m", [1, 33, 70])
def test_all_on_one_expert(m: int) -> None:
    """The others are empty; blocks that are full, and one row in a block."""
    made = layer(4, 128, 64)
    weights, ids = torch.rand(m, 1), torch.full((m, 1), 2, dtype=torch.int64)
    x = tokens(m, made)
    assert_layer(run(made, SINGLE, x, weights, ids), made.exact(x, weights, ids, rounded=True))


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_experts_elsewhere(ids_dtype: torch.dtype) -> None:
    """An expert map, -1, ids beyond the experts, and a token with no expert here."""
    made = layer(4, 128, 64)
    expert_map = torch.tensor([-1, 2, 0, -1, 3, -1, 1, -1], dtype=torch.int32)
    weights, ids = routing(30, 3, 8)
    ids[0] = torch.tensor([0, -1, 3])
    ids[1, 1] = 99
    ids = ids.to(ids_dtype)
    x = tokens(30, made)
    y = run(made, SINGLE, x, weights, ids, expert_map=expert_map)
    assert_layer(y, made.exact(x, weights, ids, expert_map=expert_map, rounded=True))
    assert not y[0].any()


def test_nobody_here() -> None:
    made = layer(2, 128, 64)
    ids = torch.full((3, 2), -1)
    assert not run(made, PAIR, tokens(3, made), torch.ones(3, 2), ids).any()


def test_permuted_copies_of_one_mlp() -> None:
    """Unless an expert's rows, columns, scales or biases are taken from another one, the layer is the MLP."""
    made, dense = permuted_copies(5)
    x = tokens(40, made)
    weights, ids = routing(40, 3, 5)
    y = run(made, SINGLE, x, weights.softmax(dim=1), ids)
    expected = dense(x)
    assert (y.double() - expected).norm() < 6e-3 * expected.norm()


def test_experts_do_not_meet() -> None:
    """What lies behind an expert's columns and groups, and behind the last row, is not read: the next
    expert's scales are NaN, and the rows of nobody hold NaN."""
    made = layer(2, 192, 192, group_size=32)
    made.w2.scale_rows[1] = math.nan
    ids = torch.tensor([[0], [-1]] * 20, dtype=torch.int32)
    weights = torch.rand(40, 1)
    h = torch.full((40, 192), math.nan, dtype=made.w2.dtype)
    h[:20] = torch.randn(20, 192, generator=torch.Generator().manual_seed(1))
    with sf.emulate("sm_100a"):
        sorted_ = sort_pairs(ids, None, 2, SINGLE.block_rows, "sm_100a")
    with sf.emulate("sm_100a") as emulation:  # not the launch after sorting, which it may not be
        sums = down(SINGLE, h, made.w2, weights, sorted_, "sm_100a")
    emulation.reports[-1].raise_on_findings()
    assert sorted_.order is not None
    pairs = sorted_.order[:20].long()
    exact = h[:20].double() @ sf.dequantize(made.down[0]).double() * weights[pairs].double()
    assert (sums[pairs].double() - exact).norm() < 1e-5 * exact.norm()


def test_only_rows_that_exist_are_written() -> None:
    """Of nobody's pairs, of rows behind a block and of those behind the last pair nothing is stored."""
    made = layer(3, 128, 64)
    ids = torch.tensor([[0, 2], [-1, 0], [2, -1], [2, 0]], dtype=torch.int32)
    for w in (made.w13, made.w2):
        problem = GroupedProblem(SINGLE, w, torch.rand(4, 2), ids)
        problem.run(problem.artifact.ptx).raise_on_findings()
        assert problem.written.tolist() == (list(range(6)) if w.gated else [0, 1, 3, 4, 6, 7])


@pytest.mark.parametrize("arch", ["sm_100a", "sm_110a"])
def test_chosen_for_many_rows(arch: str) -> None:
    """What ``sf.moe`` runs by itself, through sorting, gathering and the sum."""
    made = layer(2, 128, 64)
    weights, ids = routing(98, 2, 2)
    x = tokens(98, made)
    with sf.emulate(arch) as emulation:
        plan = plan_layer(made.w13, made.w2, 98, 2)
        y = moe(x, made.w13, made.w2, weights, ids)
    assert isinstance(plan.gate_up, ExpertGrouped) and isinstance(plan.down, ExpertGrouped)
    assert len(emulation.reports) == 5
    assert_layer(y, made.exact(x, weights, ids, rounded=True))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_code(arch: str) -> None:
    """No spills with the largest tile, and the Transform of a dense product."""
    check_code(ExpertGrouped(256, 2, 1), Scheme(4, 128, "bfloat16"), None, True, False, arch)


@pytest.mark.parametrize(
    ("bits", "group", "dtype", "zeros", "arch"),
    [
        (4, 32, "bfloat16", "integer", "sm_100a"),
        (4, 64, "float16", "offset", "sm_110a"),
        (8, 128, "float16", "none", "sm_100a"),
        (8, -1, "bfloat16", "offset", "sm_103a"),
    ],
)
def test_code_of_schemes(bits: int, group: int, dtype: str, zeros: str, arch: str) -> None:
    """A sample: every scheme takes minutes."""
    scheme = Scheme(bits, group, dtype, zeros)  # type: ignore[arg-type]
    check_code(ExpertGrouped(192, 2, 1), scheme, "silu", False, False, arch)
    check_code(ExpertGrouped(96, 1, 1), scheme, None, True, False, arch)


@pytest.mark.parametrize(
    ("act", "router", "narrow"), [("gelu", True, False), ("swiglu", False, False), (None, True, True)]
)
def test_code_of_results(act: str | None, router: bool, narrow: bool) -> None:
    check_code(ExpertGrouped(256, 2, 1), Scheme(8, 32, "bfloat16"), act, router, narrow, "sm_100a")


def check_code(
    config: ExpertGrouped, scheme: Scheme, act: str | None, router: bool, narrow: bool, arch: str
) -> None:
    activation = None if act is None else ACTIVATIONS[act]
    product = Product(scheme, 8, 256, 256, True, activation, router, True, True, False, False, narrow)
    artifact = get_artifact(config.source(product), arch)
    check_resources(config.tile(scheme), artifact, arch)
    check_count(config.tile(scheme), artifact)
    # No emulated run shows it: the next kernel may start only when the one before this has ended.
    assert artifact.ptx.count("griddepcontrol.launch_dependents") == 1
    assert re.search(r"griddepcontrol\.wait;\s+griddepcontrol\.launch_dependents;", artifact.ptx)


def test_one_kernel_for_every_shape() -> None:
    scheme = Scheme(4, 128, "bfloat16")
    first = Product(scheme, 8, 256, 512, True, ACTIVATIONS["silu"], False, True, True, False)
    other = replace(first, experts=60, k=2048, n=1408, bias=False, wide_ids=True)
    assert SINGLE.source(first) == SINGLE.source(other)
    assert SINGLE.source(first) != SINGLE.source(replace(first, activation=ACTIVATIONS["gelu"]))
    swiglu = [
        SINGLE.source(replace(first, activation=Activation("swiglu", limit=limit))) for limit in (1.0, 2.0)
    ]
    assert swiglu[0] != swiglu[1]


def test_configurations_that_cannot_be() -> None:
    props, scheme = DeviceProps.for_target("sm_100a"), Scheme(4, 128, "bfloat16")
    with pytest.raises(ArgumentError, match="clusters=0"):
        ExpertGrouped(64, 2, 0)
    with pytest.raises(ArgumentError, match="tokens=48"):
        ExpertGrouped(48, 2, 1).check(scheme, 128, props)
    with pytest.raises(ArgumentError, match="no tcgen05"):
        SINGLE.check(scheme, 128, DeviceProps.for_target("sm_90a"))
    SINGLE.check(replace(scheme, act_order=True), 128, props)
