"""Cases of docs/cases.md about mixtures of experts, at the sizes that they name."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import swordfish as sf
from swordfish.experts import ExpertWeights, moe, plan_layer
from swordfish.scheme import Scheme
from tests.backends import quantised
from tests.moe_layers import MoeLayer, assert_layer, compile_ahead, layer, routing


@pytest.mark.parametrize("m", [1, 16, 200])
@pytest.mark.parametrize("where", [pytest.param("cuda", marks=pytest.mark.gpu)])
def test_c01_2880_is_no_multiple_of_128(where: str, m: int) -> None:
    made = layer(8, 2880, 2880, group_size=32)
    there = made.to(where)
    weights, ids = routing(m, 2, 8)
    x = torch.randn(m, 2880).bfloat16()
    y = moe(x.to(where), there.w13, there.w2, weights.to(where), ids.to(where)).cpu()
    rows = slice(0, 8)  # of the slow reference
    assert_layer(y[rows], made.exact(x[rows], weights[rows], ids[rows]))


@pytest.mark.gpu
def test_c18_more_pairs_than_a_grid_axis_has() -> None:
    made = layer(8, 128, 128)
    there = made.to("cuda")
    weights, ids = routing(8193, 8, 8)
    x = torch.randn(8193, 128).bfloat16()
    y = moe(x.cuda(), there.w13, there.w2, weights.cuda(), ids.cuda()).cpu()
    assert_layer(y, made.exact(x, weights, ids, dense=plan_layer(there.w13, there.w2, 8193, 8).dense))


EXPERTS = [1, 3, 7, 60, 96, 160, 257, 384, 512, 1024, 1025]


def copies(few: MoeLayer, experts: int) -> MoeLayer:
    """The same few experts over and over."""
    pick = [i % len(few.down) for i in range(experts)]
    w13 = ExpertWeights.stack_gated([few.gate_up[i] for i in pick])
    return MoeLayer(few.gate_up, few.down, w13, ExpertWeights.stack([few.down[i] for i in pick]))


@pytest.fixture(scope="module")
def repeated() -> dict[int, tuple[MoeLayer, MoeLayer]]:
    made = {}
    for experts in EXPERTS:
        few = layer(min(experts, 4), 128, 128, group_size=64)
        made[experts] = few, copies(few, experts)
    compile_ahead([many for _, many in made.values()], [1, 5, 9000], 8)
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("experts", EXPERTS)
def test_c27_numbers_of_experts(repeated: dict[int, tuple[MoeLayer, MoeLayer]], experts: int) -> None:
    """The right one must be found among all."""
    few, many = repeated[experts]
    there = many.to("cuda")
    for tokens in (1, 5, 9000):
        top_k = min(8, experts)
        weights, ids = routing(tokens, top_k, experts)
        x = torch.randn(tokens, 128).bfloat16()
        y = moe(x.cuda(), there.w13, there.w2, weights.cuda(), ids.cuda()).cpu()
        dense = plan_layer(there.w13, there.w2, tokens, top_k).dense
        assert_layer(y, few.exact(x, weights, ids % len(few.down), dense=dense))


def test_c28_weights_count_once() -> None:
    """Weights 0.5, 0.5 of one expert chosen twice are that expert; halves on the input are not."""
    made = layer(2, 128, 64)
    x = torch.randn(3, 128).bfloat16()
    ids = torch.ones(3, 2, dtype=torch.int32)
    with sf.emulate("sm_90a"):
        twice = moe(x, made.w13, made.w2, torch.full((3, 2), 0.5, dtype=torch.bfloat16), ids)
        once = moe(x, made.w13, made.w2, torch.ones(3, 1), ids[:, :1])
        inside = moe(x, made.w13, made.w2, torch.full((3, 1), 0.5), ids[:, :1], weight_on_input=True)
    assert torch.equal(twice, once)
    assert_layer(inside, made.exact(x, torch.full((3, 1), 0.5), ids[:, :1], weight_on_input=True))
    assert not torch.equal(inside, once)


def test_c37_sources_are_not_kept() -> None:
    given = [quantised(128, 128, seed=i) for i in range(3)]
    alive = [weakref.ref(w.words) for w in given]
    stacked = ExpertWeights.stack(given)
    bytes_of_one = given[0].nbytes
    del given
    gc.collect()
    assert all(ref() is None for ref in alive)
    assert stacked.nbytes == 3 * bytes_of_one


@pytest.mark.gpu
def test_c37_memory_of_stacking() -> None:
    """An iterator of experts: besides the result, no more than a few of them at a time."""
    scheme = Scheme(4, 128, "bfloat16")
    one = quantised(1024, 2048).to("cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    stacked = ExpertWeights.stack_gated((sf.PackedWeight.cat([one]) for _ in range(64)), 64)
    assert stacked.scheme == scheme
    assert torch.cuda.memory_allocated() - before < stacked.nbytes * 1.02
    assert torch.cuda.max_memory_allocated() - before < stacked.nbytes + 16 * one.nbytes
