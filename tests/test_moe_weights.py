"""Weights of many experts: stacking, loading from checkpoints, ``sf.MoE``, the operator, errors."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import swordfish as sf
from swordfish.cli.weights import Experts, checkpoint_layers, checkpoint_weights
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.experts import Activation, ExpertWeights, MoE, load_experts, moe
from tests.backends import quantised
from tests.fixtures.oracles import (
    Sample,
    compressed_tensors_sample,
    gptq_sample,
    pack_awq,
    random_layer,
    values,
    write_folder,
)
from tests.moe_layers import MoeLayer, assert_layer, layer, routing

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"group_size": 32},
    "int8-zeros-bias": {"bits": 8, "zeros": "integer", "group_size": 64, "bias": True},
    "act-order": {"act_order": True, "group_size": 32},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [72, 128])
def test_experts_come_back(kind: str, n: int) -> None:
    given = [quantised(96, n, seed=i, **KINDS[kind]) for i in range(3)]
    stacked = ExpertWeights.stack(given)
    assert stacked.shape == (96, n) and stacked.experts == 3
    for i, w in enumerate(given):
        assert_same(stacked.expert(i), w)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [8, 64, 72, 160])
def test_gated_experts_come_back(kind: str, half: int) -> None:
    """Columns of any number: padded inside, where gate and up take turns."""
    given = [quantised(96, 2 * half, seed=i, **KINDS[kind]) for i in range(2)]
    stacked = ExpertWeights.stack_gated(given)
    assert stacked.gated and stacked.shape == (96, 2 * half)
    for i, w in enumerate(given):
        assert_same(stacked.expert(i), w)


@pytest.mark.parametrize("half", [64, 72])
def test_gate_and_up_apart(half: int) -> None:
    pairs = [
        (quantised(96, half, seed=i, bias=True), quantised(96, half, seed=9 + i, bias=True)) for i in range(2)
    ]
    stacked = ExpertWeights.stack_gated(pairs)
    for i, (gate, up) in enumerate(pairs):
        whole = stacked.expert(i)
        assert torch.equal(sf.dequantize(whole), torch.cat([sf.dequantize(gate), sf.dequantize(up)], dim=1))
        assert whole.bias is not None and gate.bias is not None and up.bias is not None
        assert torch.equal(whole.bias, torch.cat([gate.bias, up.bias]))


def assert_same(a: sf.PackedWeight, b: sf.PackedWeight) -> None:
    assert a.scheme == b.scheme and a.shape == b.shape
    assert torch.equal(sf.dequantize(a), sf.dequantize(b))
    for x, y in ((a.perm, b.perm), (a.bias, b.bias)):
        assert (x is None) == (y is None) and (x is None or y is None or torch.equal(x, y))


def test_gate_and_up_take_turns_every_16_columns() -> None:
    """What kernels rely on: columns 0-15 of a block are gate, 16-31 up."""
    half = 64
    marks = torch.arange(2 * half) // 16  # which stripe a column belongs to
    w = sf.pack(
        torch.full((64, 2 * half), 9, dtype=torch.uint8), marks[None].float() + 1, bits=4, group_size=-1,
        dtype=torch.float16,
    )  # fmt: skip
    scales = ExpertWeights.stack_gated([w]).scale_rows[0, 0].view(-1, 16)[:, 0]
    assert scales.tolist() == [1, 5, 2, 6, 3, 7, 4, 8]


ORDERED = {"bits": 4, "group_size": 32, "act_order": True, "zeros": "integer", "bias": True}


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("half", [64, 96])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_layer_takes_its_order_from_down(joined: bool, half: int, bits: int) -> None:
    """Columns of gate and up, with scales, zeros and biases, meet the rows of down; each expert has its own
    order, one of them the natural one."""
    kinds = {**ORDERED, "bits": bits}
    down = [quantised(half, 64, seed=9 + i, **{**kinds, "act_order": i != 1}) for i in range(3)]
    both = [quantised(96, 2 * half, seed=i, **kinds) for i in range(3)]
    pairs = [(w.take_columns(torch.arange(half)), w.take_columns(torch.arange(half, 2 * half))) for w in both]
    w13, w2 = ExpertWeights.stack_layer(both if joined else pairs, down)
    assert w2.perm is None and not w2.scheme.act_order and w13.perm is not None
    assert (w13.shape, w2.shape) == ((96, 2 * half), (half, 64))
    for i in range(3):
        order = torch.arange(half) if down[i].perm is None else down[i].perm.long()
        columns = torch.cat([order, half + order])
        first, second = w13.expert(i), w2.expert(i)
        assert torch.equal(sf.dequantize(first), sf.dequantize(both[i])[:, columns])
        assert torch.equal(first.bias, both[i].bias[columns])
        assert torch.equal(sf.dequantize(second), sf.dequantize(down[i])[order])
        assert torch.equal(second.bias, down[i].bias)


def test_rows_of_padding_in_down_become_columns_of_zeros() -> None:
    """Shards of a layer: groups of unequal size, in every expert as many packed rows."""
    g = torch.Generator().manual_seed(1)
    down, dense = [], []
    for seed in range(2):
        g_idx = torch.tensor([0] * 10 + [1] * 20 + [0] * 5)[torch.randperm(35, generator=g)]
        codes = torch.randint(0, 16, (35, 64), dtype=torch.uint8, generator=g)
        scales, zeros = torch.rand(2, 64, generator=g), torch.randint(0, 16, (2, 64), generator=g)
        down.append(sf.pack(codes, scales, zeros, g_idx, bits=4, group_size=32, dtype=torch.float16))
        dense.append(quantised(64, 70, seed=seed, dtype=torch.float16, bias=True, zeros="integer"))
    r = down[0].packed_k
    assert r > 35
    w13, w2 = ExpertWeights.stack_layer(iter(dense), iter(down), 2)
    assert (w13.shape, w2.shape) == ((64, 2 * r), (r, 64))
    weights, ids = routing(9, 2, 2)
    x = torch.randn(9, 64, generator=g).half()
    separate = ExpertWeights.stack_gated(dense), ExpertWeights.stack(down)
    assert_layer(moe(x, w13, w2, weights, ids), moe(x, *separate, weights, ids).double())
    absent = down[0].perm < 0
    gate, up = w13.expert(0).bias.view(2, r)
    assert not gate[absent].any() and not up[absent].any()


def test_layers_that_do_not_fit() -> None:
    down = [quantised(96, 64, **ORDERED)]
    with pytest.raises(ArgumentError, match=r"gate_up\[0\].shape=N=128 is not allowed: expected N=192: gate"):
        ExpertWeights.stack_layer([quantised(64, 128, group_size=32)], down)
    with pytest.raises(ArgumentTypeError, match=r"down\[0\]=Tensor"):
        ExpertWeights.stack_layer([quantised(64, 128)], [torch.zeros(1)])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"count=1 is not allowed: expected the number of weights given"):
        ExpertWeights.stack_layer([quantised(64, 192, group_size=32)] * 2, down)


def test_iterators_need_a_count() -> None:
    weights = [quantised(64, 64, seed=i) for i in range(3)]
    assert ExpertWeights.stack(iter(weights), 3).experts == 3
    with pytest.raises(ArgumentError, match=r"count=None is not allowed"):
        ExpertWeights.stack(iter(weights))
    for wrong in (2, 4):
        with pytest.raises(ArgumentError, match=rf"count={wrong} is not allowed"):
            ExpertWeights.stack(iter(weights), wrong)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"bits": 8}, r"weights\[1\].scheme"),
        ({"group_size": 64}, r"weights\[1\].scheme"),
        ({"act_order": True}, r"weights\[1\].scheme"),
        ({"bias": True}, r"weights\[1\].bias=a tensor is not allowed: expected None"),
        ({"n": 128}, r"weights\[1\].shape=\(256, 128\)"),
    ],
)
def test_experts_must_agree(other: dict[str, Any], message: str) -> None:
    n = other.pop("n", 64)
    with pytest.raises(ArgumentError, match=message):
        ExpertWeights.stack([quantised(256, 64), quantised(256, n, **other)])


def test_wrong_stacks() -> None:
    with pytest.raises(ArgumentError, match=r"weights=0 experts is not allowed: expected 1 to"):
        ExpertWeights.stack([])
    with pytest.raises(ArgumentTypeError, match=r"weights\[0\]=Tensor"):
        ExpertWeights.stack([torch.zeros(1)])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"gate_up\[0\].shape=\(64, 65\) .* an even N"):
        ExpertWeights.stack_gated([quantised(64, 65, group_size=32)])
    with pytest.raises(ArgumentError, match=r"gate_up\[0\]\[1\].shape"):
        ExpertWeights.stack_gated([(quantised(64, 64), quantised(64, 128))])
    made = ExpertWeights.stack([quantised(64, 64)])
    with pytest.raises(ArgumentError, match=r"scale_rows.shape"):
        ExpertWeights(made.words, made.scale_rows[:, :, :32], None, None, None, made.scheme, made.shape)
    with pytest.raises(ArgumentError, match=r"index=1"):
        made.expert(1)


# --- checkpoints


def gptq_experts(order: bool = False) -> list[dict[str, Sample]]:
    def one(seed: int) -> dict[str, Sample]:
        parts = {
            name: gptq_sample(np.random.default_rng(10 * seed + i), k, n, 4, 32, 1, False, order)
            for i, (name, k, n) in enumerate([("gate", 64, 96), ("up", 64, 96), ("down", 96, 64)])
        }
        if order:  # gate and up see the same inputs, so they share their order
            shared = gptq_sample(np.random.default_rng(seed), 64, 192, 4, 32, 1, False, True)
            for name, columns in (("gate", slice(0, 96)), ("up", slice(96, 192))):
                t = shared.tensors
                parts[name] = Sample(
                    name,
                    {
                        "qweight": t["qweight"][:, columns],
                        "scales": t["scales"][:, columns],
                        "qzeros": t["qzeros"][:, columns.start // 8 : columns.stop // 8],
                        "g_idx": t["g_idx"],
                    },
                    shared.params,
                    shared.codes[:, columns],
                    shared.values[:, columns],
                )
        return parts

    return [one(seed) for seed in range(3)]


NAMES = {
    "qwen": ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe.experts", "w1", "w3", "w2"),
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}


def assert_loaded(loaded: tuple[ExpertWeights, ExpertWeights], experts: list[dict[str, Sample]]) -> None:
    """With the columns of gate and up, and the rows of down, sorted by the groups of down."""
    w13, w2 = loaded
    assert w13.experts == w2.experts == len(experts) and w2.perm is None
    for i, parts in enumerate(experts):
        down = parts["down"]
        g_idx = down.tensors.get("g_idx", torch.zeros(len(down.values)))
        order = torch.argsort(g_idx, stable=True).numpy()
        both = [parts[name].values[:, order] for name in ("gate", "up")]
        assert np.array_equal(
            sf.dequantize(w13.expert(i)).numpy(), np.concatenate(both, axis=1).astype(np.float16)
        )
        assert np.array_equal(sf.dequantize(w2.expert(i)).numpy(), down.values[order].astype(np.float16))


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("order", [False, True])
def test_gptq_experts(tmp_path: Path, names: str, order: bool) -> None:
    where, gate, up, down = NAMES[names]
    experts = gptq_experts(order)
    layers = {}
    for i, parts in enumerate(experts):
        for name, key in ((gate, "gate"), (up, "up"), (down, "down")):
            layers[f"model.layers.0.{where}.{i}.{name}"] = dict(parts[key].tensors)
    write_folder(tmp_path / "c", layers, {**GPTQ, "desc_act": order})
    for layer_name in (f"model.layers.0.{where}", f"model.layers.0.{where.partition('.')[0]}"):
        assert_loaded(load_experts(tmp_path / "c", layer_name, dtype=torch.float16), experts)
    some = load_experts(tmp_path / "c", f"model.layers.0.{where}", experts=[2, 0], dtype=torch.float16)
    assert_loaded(some, [experts[2], experts[0]])


def test_stacked_gptq_experts(tmp_path: Path) -> None:
    experts = gptq_experts()
    stacked = {
        f"mlp.experts.{name}": {
            suffix: torch.stack([parts[key].tensors[suffix] for parts in experts])
            for suffix in ("qweight", "scales", "qzeros")
        }
        for name, key in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
    }
    write_folder(tmp_path / "c", stacked, GPTQ)
    assert_loaded(load_experts(tmp_path / "c", "mlp.experts", dtype=torch.float16), experts)
    joined = {
        "mlp.experts.gate_up_proj": {
            suffix: torch.cat([stacked[f"mlp.experts.{p}"][suffix] for p in ("gate_proj", "up_proj")], dim=-1)
            for suffix in ("qweight", "scales", "qzeros")
        },
        "mlp.experts.down_proj": stacked["mlp.experts.down_proj"],
    }
    write_folder(tmp_path / "j", joined, GPTQ)
    assert_loaded(load_experts(tmp_path / "j", "mlp", dtype=torch.float16), experts)
    with pytest.raises(ArgumentError, match=r"experts=3 is not allowed: expected 0 to 2"):
        load_experts(tmp_path / "j", "mlp", experts=[3])


def test_awq_experts(tmp_path: Path) -> None:
    experts, layers = [], {}
    for i in range(2):
        parts = {}
        for seed, (key, name, k, n) in enumerate(
            [("gate", "gate_proj", 64, 96), ("up", "up_proj", 64, 96), ("down", "down_proj", 96, 64)]
        ):
            codes, scales, zeros, g_idx = random_layer(np.random.default_rng(7 * i + seed), k, n, 4, 32)
            tensors = {
                "qweight": pack_awq(codes), "qzeros": pack_awq(zeros), "scales": torch.from_numpy(scales)
            }  # fmt: skip
            layers[f"mlp.experts.{i}.{name}"] = tensors
            parts[key] = Sample("", tensors, None, codes, values(codes, scales, zeros, g_idx))  # type: ignore[arg-type]
        experts.append(parts)
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    write_folder(tmp_path / "c", layers, config)
    assert_loaded(load_experts(tmp_path / "c", "mlp", dtype=torch.float16), experts)


@pytest.mark.parametrize("stacked", [False, True])
def test_compressed_tensors_experts(tmp_path: Path, stacked: bool) -> None:
    experts = [
        {
            key: compressed_tensors_sample(
                np.random.default_rng(5 * i + j), k, n, 4, 32, True, False, np.float16
            )
            for j, (key, k, n) in enumerate([("gate", 64, 96), ("up", 64, 96), ("down", 96, 64)])
        }
        for i in range(2)
    ]
    roles = (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
    if stacked:
        layers = {
            f"mlp.experts.{name}": {
                suffix: torch.stack([parts[key].tensors[suffix] for parts in experts])
                for suffix in experts[0][key].tensors
            }
            for name, key in roles
        }
    else:
        layers = {
            f"mlp.experts.{i}.{name}": dict(parts[key].tensors)
            for i, parts in enumerate(experts)
            for name, key in roles
        }
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
    }
    write_folder(tmp_path / "c", layers, config)
    assert_loaded(load_experts(tmp_path / "c", "mlp", dtype=torch.float16), experts)


def test_experts_of_a_checkpoint_are_layers_not_weights(tmp_path: Path) -> None:
    """Two equal layers of three experts are one; other layers stay weights; the config knows top_k."""
    experts = gptq_experts()
    layers = {
        f"model.layers.{i}.mlp.experts.{e}.{name}_proj": dict(experts[e][name].tensors)
        for i in (0, 1)
        for e in range(len(experts))
        for name in ("gate", "up", "down")
    }
    layers["model.layers.0.self_attn.o_proj"] = dict(experts[0]["gate"].tensors)
    write_folder(tmp_path / "c", layers, GPTQ)
    write_folder(tmp_path / "k", layers, GPTQ, num_experts_per_tok=2)
    (plain,) = checkpoint_weights(tmp_path / "c", "float16")
    assert (plain.k, plain.n) == (64, 96)
    options: dict[str, Any] = {"activation": "silu", "ranks": 1}
    with pytest.raises(ArgumentError, match="--top-k"):
        checkpoint_layers(tmp_path / "c", "float16", top_k=None, **options)
    same, layer = checkpoint_layers(tmp_path / "k", "float16", top_k=None, **options)
    assert same == plain and isinstance(layer, Experts)
    assert layer.w13.experts == layer.global_experts == len(experts) and layer.top_k == 2
    w13, w2 = load_experts(tmp_path / "c", "model.layers.1.mlp", dtype=torch.float16)
    for mine, loaded in ((layer.w13, w13), (layer.w2, w2)):
        assert (mine.scheme, mine.shape, mine.gated) == (loaded.scheme, loaded.shape, loaded.gated)
        assert {k: t.shape for k, t in mine.tensors().items()} == {
            k: t.shape for k, t in loaded.tensors().items()
        }


def test_no_experts_there(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", {"mlp.up_proj": dict(gptq_experts()[0]["up"].tensors)}, GPTQ)
    with pytest.raises(ArgumentError, match=r"layer=mlp is not allowed: expected a module with quantised"):
        load_experts(tmp_path / "c", "mlp")


# --- the module and the operator


def made(kind: str = "plain") -> MoeLayer:
    return layer(3, 128, 72, **KINDS[kind])


def call(tokens: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    return x, *routing(tokens, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_module_round_trips(kind: str) -> None:
    from_weights = made(kind)
    module = MoE(from_weights.w13, from_weights.w2, activation=Activation("swiglu", limit=3.0))
    x, weights, ids = call()
    y = module(x, weights, ids)
    assert_layer(y, from_weights.exact(x, weights, ids, Activation("swiglu", limit=3.0)))
    fresh = MoE.empty(
        3,
        128,
        72,
        module.w13.scheme,
        bias=kind == "int8-zeros-bias",
        activation=Activation("swiglu", limit=3.0),
    )
    fresh.load_state_dict(module.state_dict())
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    for other in (
        fresh,
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        module.half(),
        module.to("cpu"),
    ):
        assert torch.equal(other(x, weights, ids), y)
    batched = module(x.view(5, 1, 128), weights.view(5, 1, 2), ids.view(5, 1, 2))
    assert torch.equal(batched.view(5, 128), y)
    assert "ExpertWeights(3 x [K=128, N=144], gated" in repr(module)


def test_module_of_a_layer_in_the_order_of_down() -> None:
    """Only w13 has an order of its own to store."""
    parts = made("act-order")
    module = MoE(*ExpertWeights.stack_layer(parts.gate_up, parts.down))
    x, weights, ids = call()
    y = module(x, weights, ids)
    assert_layer(y, parts.exact(x, weights, ids))
    fresh = MoE.empty(3, 128, 72, module.w13.scheme, scheme2=module.w2.scheme)
    fresh.load_state_dict(module.state_dict())
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x, weights, ids), y)
    with pytest.raises(ArgumentError, match=r"state_dict w2=.*'act_order': False"):
        MoE(parts.w13, parts.w2).load_state_dict(module.state_dict(), strict=False)


def test_module_refuses_another_state() -> None:
    state = MoE(made().w13, made().w2).state_dict()
    other = MoE.empty(3, 128, 72, made().w13.scheme, activation="gelu")
    with pytest.raises(ArgumentError, match="state_dict activation"):
        other.load_state_dict(state)


def test_module_with_an_expert_map() -> None:
    from_weights = made()
    expert_map = torch.tensor([2, -1, 0, 1], dtype=torch.int64)
    module = MoE(from_weights.w13, from_weights.w2, expert_map=expert_map)
    x, weights, _ = call()
    ids = torch.randint(0, 4, (5, 2), generator=torch.Generator().manual_seed(1))
    y = module(x, weights, ids)
    assert_layer(y, from_weights.exact(x, weights, ids, expert_map=expert_map))
    for wrong, message in (
        ([0, 0], "0 twice"),
        ([0, 3], "=3 is not allowed"),
        ([-2, 0], "=-2 is not allowed"),
    ):
        with pytest.raises(ArgumentError, match=message):
            MoE(from_weights.w13, from_weights.w2, expert_map=torch.tensor(wrong))


def test_fakes_and_meta() -> None:
    """C20: shapes without memory."""
    x, weights, ids = call()
    layer_on_meta = MoE.empty(3, 128, 72, made().w13.scheme, device="meta")
    y = layer_on_meta(x.to("meta"), weights.to("meta"), ids.to("meta"))
    assert y.shape == (5, 128) and y.device.type == "meta"
    module = MoE(made().w13, made().w2)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        y = module(mode.from_tensor(x), mode.from_tensor(weights), mode.from_tensor(ids))
    assert y.shape == (5, 128) and y.dtype == torch.bfloat16


def test_operator_is_well_formed() -> None:
    from swordfish.experts.activation import ACTIVATIONS
    from swordfish.experts.operators import operands

    x, weights, ids = call()
    layer_ = made("int8-zeros-bias")
    args = operands(x, layer_.w13, layer_.w2, weights, ids, None, ACTIVATIONS["silu"], False)
    torch.library.opcheck(
        torch.ops.swordfish.moe.default, args, test_utils=("test_schema", "test_faketensor")
    )
    assert torch.equal(torch.ops.swordfish.moe(*args), moe(x, layer_.w13, layer_.w2, weights, ids))


@pytest.mark.slow
def test_compiles_into_one_graph() -> None:
    module = MoE(made().w13, made().w2)
    compiled = torch.compile(
        lambda *args: module(*args) * 2, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for tokens in (5, 9):
        x, weights, ids = call(tokens)
        assert torch.equal(compiled(x, weights, ids), module(x, weights, ids) * 2)


@pytest.mark.parametrize("kind", ["int8-zeros-bias", "plain"])
def test_exports_as_one_operator(kind: str) -> None:
    """Also where tensors are absent between those that are there."""
    layer_ = made(kind)
    module, arguments = MoE(layer_.w13, layer_.w2), call()
    program = torch.export.export(module, arguments)
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.swordfish.moe.default) == 1
    assert torch.equal(program.module()(*arguments), module(*arguments))


def test_explain() -> None:
    module = MoE(made().w13, made().w2)
    assert str(sf.explain(module, 4, top_k=2)).startswith("reference")
    with sf.emulate("sm_90a"):
        assert sf.explain(module, 1, top_k=2).direct
        assert "blocks of" in str(sf.explain(module, 400, top_k=2))
    with pytest.raises(ArgumentError, match="top_k=None"):
        sf.explain(module, 4)  # type: ignore[call-overload]


# --- what is refused, before anything is launched

GOOD = made()


def refused(**changed: Any) -> None:
    x, weights, ids = call()
    arguments: dict[str, Any] = {
        "x": x, "w13": GOOD.w13, "w2": GOOD.w2, "topk_weights": weights, "topk_ids": ids, **changed
    }  # fmt: skip
    moe(**arguments)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.zeros(5, 128)}, ArgumentTypeError, r"x.dtype=torch.float32"),
        ({"x": torch.zeros(5, 96).bfloat16()}, ArgumentError, r"x.shape=\(5, 96\) .* \[tokens, K=128\]"),
        ({"x": torch.zeros(128).bfloat16()}, ArgumentError, r"x.shape"),
        ({"x": torch.zeros(5, 128, device="meta").bfloat16()}, ArgumentError, r"x.device=meta"),
        ({"x": None}, ArgumentTypeError, r"x=NoneType"),
        ({"w13": GOOD.w2}, ArgumentError, r"w13.gated=False"),
        ({"w2": GOOD.w13}, ArgumentError, r"w2.gated=True"),
        ({"w2": GOOD.down[0]}, ArgumentTypeError, r"w2=PackedWeight"),
        ({"w2": layer(2, 128, 72).w2}, ArgumentError, r"w2.experts=2 .* 3 like w13"),
        ({"w2": layer(3, 128, 64).w2}, ArgumentError, r"w2.shape=\(64, 128\) .* K=72"),
        ({"w2": layer(3, 128, 72, dtype=torch.float16).w2}, ArgumentError, r"w2.dtype"),
        ({"topk_ids": torch.zeros(5, 2)}, ArgumentTypeError, r"topk_ids.dtype=torch.float32"),
        ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32)}, ArgumentError, r"topk_ids.shape=\(4, 2\)"),
        ({"topk_ids": torch.full((5, 2), 3)}, ArgumentError, r"topk_ids=3 .* at most 2"),
        ({"topk_weights": torch.zeros(5, 3)}, ArgumentError, r"topk_weights.shape=\(5, 3\)"),
        ({"topk_weights": torch.zeros(5, 2).int()}, ArgumentTypeError, r"topk_weights.dtype=torch.int32"),
        ({"activation": "relu"}, ArgumentError, r"activation='relu'"),
        ({"weight_on_input": True}, ArgumentError, r"weight_on_input=True .* top_k=2"),
        ({"expert_map": torch.zeros(3)}, ArgumentTypeError, r"expert_map.dtype"),
        ({"expert_map": torch.tensor([[0]], dtype=torch.int32)}, ArgumentError, r"expert_map.shape"),
        ({"expert_map": torch.tensor([0, 1, 1], dtype=torch.int32)}, ArgumentError, r"1 twice"),
        ({"expert_map": torch.tensor([0, 3, 1], dtype=torch.int32)}, ArgumentError, r"expert_map=3"),
        ({"out": torch.zeros(5, 96).bfloat16()}, ArgumentError, r"out.shape"),
        ({"out": torch.zeros(5, 128)}, ArgumentTypeError, r"out.dtype"),
        ({"x": torch.zeros(5, 128).bfloat16().requires_grad_()}, ArgumentError, r"x.requires_grad"),
    ],
)
def test_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        refused(**changed)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_limit_must_be_positive(limit: float) -> None:
    with pytest.raises(ArgumentError, match="limit="):
        Activation("swiglu", limit=limit)


def test_out_may_not_be_x() -> None:
    x, weights, ids = call()
    with pytest.raises(ArgumentError, match="memory of x"):
        moe(x, GOOD.w13, GOOD.w2, weights, ids, out=x)
