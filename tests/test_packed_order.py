"""Activations in packed order: weights without their permutation, layers that write for the next one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

import swordfish as sf
from swordfish.errors import ArgumentError, ArgumentTypeError
from tests.products import KERNELS, assert_product, device_of, layer, place

SCHEMES: dict[str, dict[str, Any]] = {
    "int4": {},
    "int8-zeros": {"bits": 8, "zeros": True},
    "channelwise": {"group_size": -1},
    "act-order": {"group_size": 32, "act_order": True, "zeros": True},
}


def weight(k: int, n: int, *, seed: int = 0, bias: bool = True, **scheme: Any) -> sf.PackedWeight:
    g = torch.Generator().manual_seed(seed)
    return layer(k, n, seed=seed, bias=torch.randn(n, generator=g) if bias else None, **scheme).weight


def ordered(k: int, n: int, **scheme: Any) -> sf.PackedWeight:
    return weight(k, n, **{"group_size": 32, "act_order": True, **scheme})


def padded_shard(n: int = 72) -> sf.PackedWeight:
    """35 rows of two groups that are filled up: more packed rows than inputs."""
    g = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (35, n), dtype=torch.uint8, generator=g)
    g_idx = torch.tensor([0] * 10 + [1] * 20 + [0] * 5)
    w = sf.pack(
        codes, torch.rand(2, n, generator=g), torch.randint(0, 16, (2, n), generator=g), g_idx,
        bits=4, group_size=32, dtype=torch.float16,
    )  # fmt: skip
    assert w.packed_k > 35
    return w


def tokens(m: int, k: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).half()


# --- packed weights


@pytest.mark.parametrize("where", ["reference", *KERNELS])
@pytest.mark.parametrize("m", [1, 5])
def test_x_in_packed_order(where: str, m: int) -> None:
    """The same bits as with the permutation: the sums are those of the same kernel in the same order."""
    w = ordered(192, 136, zeros=True).to(device_of(where))
    free = w.in_packed_order()
    assert free.perm is None and not free.scheme.act_order and free.words is w.words
    x = tokens(m, 192).to(w.device)
    with place(where):
        assert torch.equal(sf.mm(w.gather(x), free), sf.mm(x, w))


def test_padding_is_part_of_packed_order() -> None:
    w = padded_shard()
    free = w.in_packed_order()
    assert free.shape == (w.packed_k, 72) and free.packed_k == w.packed_k
    x = tokens(5, 35)
    assert torch.equal(sf.mm(w.gather(x), free), sf.mm(x, w))


def test_natural_order_is_packed_order() -> None:
    w = weight(192, 72)
    assert w.in_packed_order() is w


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [64, 72, 200])
def test_reordered_columns(scheme: str, n: int) -> None:
    w = weight(200, n, **SCHEMES[scheme])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(4)).int()
    other = w.reorder_columns(order)
    assert other.scheme == w.scheme and other.shape == w.shape
    assert torch.equal(sf.dequantize(other), sf.dequantize(w)[:, order])
    assert torch.equal(other.bias, w.bias[order])
    back = other.reorder_columns(order.argsort())
    for name, tensor in w._tensors().items():
        assert torch.equal(back._tensors()[name], tensor), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_columns_that_are_added_are_zero(scheme: str) -> None:
    w = weight(200, 72, **SCHEMES[scheme])
    order = torch.full((100,), -1)
    order[torch.randperm(100, generator=torch.Generator().manual_seed(4))[:72]] = torch.randperm(72)
    other = w.reorder_columns(order)
    assert other.shape == (200, 100)
    y, there = sf.mm(tokens(3, 200), other), order >= 0
    assert not y[:, ~there].any()
    assert torch.equal(y[:, there], sf.mm(tokens(3, 200), w)[:, order[there]])


def test_long_columns_are_reordered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    w, order = ordered(300, 136, bits=8), torch.arange(136).flip(0)
    whole = w.reorder_columns(order)
    monkeypatch.setattr("swordfish.layouts.packing.SLAB_BYTES", 64 * 136)
    assert torch.equal(w.reorder_columns(order).words, whole.words)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (torch.arange(71), r"order.shape=\(71,\) is not allowed: expected \(72,\), or more"),
        (torch.arange(72)[None], r"order.shape=\(1, 72\)"),
        (torch.arange(72.0), r"order.dtype=torch.float32 is not allowed: expected torch.int32"),
        (torch.arange(72).clamp_max(70), r"order=72 columns from 0 to 70 .* every column from 0 to 71 once"),
        (torch.arange(1, 73), r"order=72 columns from 1 to 72"),
        (torch.arange(-2, 72), r"order=72 columns from -2 to 71"),
        (torch.arange(-1, 71), r"order=71 columns from -1 to 70"),
    ],
)
def test_orders_that_are_none(order: torch.Tensor, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        weight(64, 72, group_size=32).reorder_columns(order)


@pytest.mark.parametrize("world", [2, 4])
def test_an_mlp_with_act_order_can_be_cut_once_its_order_is_folded(world: int) -> None:
    """Tensor parallelism: columns of gate and up in the order of down, so that rows of down can be cut."""
    gate, up, down = weight(192, 256, seed=1), weight(192, 256, seed=2), ordered(256, 72, seed=3)
    assert down.perm is not None
    parts = [w.reorder_columns(down.perm) for w in (gate, up)]
    free = down.in_packed_order()
    x = tokens(6, 192)
    h = silu(sf.mm(x, gate)) * sf.mm(x, up)
    total = torch.zeros(6, 72, dtype=torch.float64)
    for rank in range(world):
        g, u = (sf.mm(x, w.shard("n", rank, world)) for w in parts)
        part = free.shard("k", rank, world)
        total += (silu(g) * u).double() @ sf.dequantize(part).double()
        total += 0 if part.bias is None else part.bias.double()
    assert down.bias is not None
    assert_product(total.half(), h, sf.dequantize(down).double(), down.bias)


# --- layers


def mlp(down: sf.PackedWeight, **scheme: Any) -> tuple[sf.Linear, sf.Linear, sf.Linear]:
    inner = down.shape[0]
    first = (sf.Linear(weight(192, inner, seed=seed, **scheme)) for seed in (1, 2))
    return (*first, sf.Linear(down))  # type: ignore[return-value]


def forward(layers: tuple[sf.Linear, sf.Linear, sf.Linear], x: torch.Tensor) -> torch.Tensor:
    gate, up, down = layers
    return down(silu(gate(x)) * up(x))


@pytest.mark.parametrize("where", ["reference", *KERNELS])
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_folding_changes_no_result(where: str, m: int, scheme: str) -> None:
    layers = mlp(ordered(160, 72, zeros=True), **SCHEMES[scheme])
    x = tokens(m, 192).to(device_of(where))
    for one in layers:
        one.to(device_of(where))
    with place(where):
        before = forward(layers, x)
        assert sf.fold_act_order(layers[:2], layers[2]) is True
        assert layers[2].perm is None and not layers[2].scheme.act_order
        assert torch.equal(forward(layers, x), before)


def test_folding_a_shard_with_rows_of_padding() -> None:
    layers = mlp(padded_shard())
    x = tokens(5, 192)
    before = forward(layers, x)
    assert sf.fold_act_order(layers[:2], layers[2])
    rows = layers[2].in_features
    assert rows > 35 and layers[0].out_features == layers[1].out_features == rows
    assert torch.equal(forward(layers, x), before)


def test_nothing_to_fold() -> None:
    layers = mlp(weight(160, 72))
    state = {name: t for i, one in enumerate(layers) for name, t in one.state_dict(prefix=f"{i}.").items()}
    assert sf.fold_act_order(layers[:2], layers[2]) is False
    ordered_layers = mlp(ordered(160, 72))
    assert sf.fold_act_order(ordered_layers[:2], ordered_layers[2]) is True
    words = ordered_layers[0].words
    assert sf.fold_act_order(ordered_layers[:2], ordered_layers[2]) is False
    assert ordered_layers[0].words is words
    for i, one in enumerate(layers):
        for name, tensor in one.state_dict(prefix=f"{i}.").items():
            assert torch.equal(tensor, state[name])


def test_one_layer_before_and_layers_named_twice() -> None:
    up, _, down = mlp(ordered(160, 72))
    x = tokens(3, 192)
    before = down(up(x).relu())
    assert sf.fold_act_order([up, up], down)
    assert torch.equal(down(up(x).relu()), before)
    up, _, down = mlp(ordered(160, 72))
    assert sf.fold_act_order(up, down)
    assert torch.equal(down(up(x).relu()), before)


def test_tensors_shared_with_other_modules_stay() -> None:
    shared = weight(192, 160)
    up, tied, down = sf.Linear(shared), sf.Linear(shared), sf.Linear(ordered(160, 72))
    x = tokens(3, 192)
    before, result = tied(x), down(tied(x))
    assert sf.fold_act_order([up], down)
    assert torch.equal(tied(x), before) and torch.equal(sf.mm(x, shared), before)
    assert torch.equal(down(up(x)), result)


def test_folded_layers_are_stored_and_copied() -> None:
    layers = torch.nn.ModuleList(mlp(ordered(160, 72)))
    unfolded = {name: t.clone() for name, t in layers.state_dict().items()}
    assert sf.fold_act_order(list(layers)[:2], layers[2])  # type: ignore[arg-type]
    x = tokens(3, 192)
    y = forward(tuple(layers), x)  # type: ignore[arg-type]
    for other in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        assert torch.equal(forward(tuple(other), x), y)
    state = layers.state_dict()
    assert "2.perm" not in state
    fresh = torch.nn.ModuleList(
        sf.Linear.empty(*one.weight.shape, one.scheme, bias=True)
        for one in layers  # type: ignore[union-attr,arg-type]
    )
    fresh.load_state_dict(state)
    assert torch.equal(forward(tuple(fresh), x), y)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"state_dict scheme=.*'act_order': True.*'act_order': False"):
        layers.load_state_dict(unfolded, strict=False)


def test_a_folded_layer_is_exported() -> None:
    """Its bias is numbered as in a layer that never had an order."""
    layers = mlp(ordered(160, 72))
    assert sf.fold_act_order(layers[:2], layers[2])
    x = tokens(3, 160)
    program = torch.export.export(layers[2], (x,))
    assert torch.equal(program.module()(x), layers[2](x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b, c: ([], c), r"producers=\[\] is not allowed"),
        (lambda a, b, c: ([a, torch.nn.Linear(4, 4)], c), r"producers\[1\]=Linear .* a swordfish.Linear"),
        (lambda a, b, c: ([a], torch.nn.ReLU()), r"consumer=ReLU"),
        (lambda a, b, c: ([a, c], copy.deepcopy(c)), r"producers\[1\].out_features=72 .* expected 160, the"),
        (lambda a, b, c: ([a, b.to("meta")], c.to("meta")), r"consumer.device=meta"),
    ],
)
def test_layers_that_cannot_be_folded(change: Any, message: str) -> None:
    gate, up, down = mlp(ordered(160, 72))
    words = gate.words
    producers, consumer = change(gate, up, down)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        sf.fold_act_order(producers, consumer)
    assert gate.words is words


def test_a_layer_does_not_fold_into_itself() -> None:
    square = sf.Linear(ordered(128, 128))
    with pytest.raises(ArgumentError, match=r"producers\[0\]=the consumer is not allowed"):
        sf.fold_act_order(square, square)
