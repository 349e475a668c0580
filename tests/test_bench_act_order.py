"""The benchmark of act-order, as far as it works without a GPU."""

from __future__ import annotations

import torch

from bench.act_order import ordered_experts, table
from bench.moe_data import MoeShape, hidden_states, random_experts, routes
from swordfish.experts import moe
from swordfish.scheme import Scheme
from tests.moe_layers import assert_layer


def test_both_stacks_are_the_same_layer() -> None:
    scheme = Scheme(4, 64, "bfloat16")
    w13 = random_experts(5, 128, 256, scheme, gated=True, device="cpu")
    w2 = random_experts(5, 128, 128, scheme, gated=False, device="cpu", seed=1)
    alone, layer = ordered_experts(w13, w2)
    assert alone[1].perm is not None and layer[1].perm is None and layer[0].perm is not None
    route = routes(MoeShape("small", 5, 2, 128, 128), 9, 1, device="cpu")[0]
    x = hidden_states(9, 128, torch.bfloat16, device="cpu")
    y = moe(x, *alone, route.weights, route.ids)
    assert_layer(moe(x, *layer, route.weights, route.ids), y.double())
    plain = moe(x, w13, w2, route.weights, route.ids)
    assert (y.double() - plain.double()).norm() > 0.5 * plain.double().norm()


def test_the_table_says_what_act_order_adds() -> None:
    us = {"plain": 4.8, "act-order": 6.3, "packed order": 4.75}
    text = table([{"name": "4096 x 4096", "m": 16, "us": us, "error": ""}])
    assert text.splitlines()[-1] == "| 4096 x 4096 | 16 | 4.80 | 6.30 | 4.75 | +1.50 | -0.05 |"
