"""``sf.Linear``: a module like any other (case C38; packed weights as such are in test_weights_packed)."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import swordfish as sf
from swordfish.errors import ArgumentError, ArgumentTypeError
from tests.products import Layer, assert_product, device_of, layer, place

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "int8 channelwise": {"bits": 8, "group_size": -1},
    "zeros, act-order, bias": {"zeros": True, "act_order": True, "group_size": 32, "bias": torch.randn(72)},
}


def padded_shard() -> sf.PackedWeight:
    """35 rows of groups of 32 in an order that needs rows of padding: more packed rows than inputs."""
    g_idx = torch.tensor([0] * 10 + [1] * 20 + [0] * 5)
    codes = torch.randint(0, 16, (35, 72), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    w = sf.pack(codes, torch.rand(2, 72), g_idx=g_idx, bits=4, group_size=32, dtype=torch.float16)
    assert w.packed_k > 35
    return w


def weight(kind: str) -> sf.PackedWeight:
    return padded_shard() if kind == "padded shard" else layer(192, 72, **KINDS[kind]).weight


ALL = pytest.mark.parametrize("kind", [*KINDS, "padded shard"])


def empty_like(w: sf.PackedWeight, device: str | None = None) -> sf.Linear:
    return sf.Linear.empty(*w.shape, w.scheme, bias=w.bias is not None, packed_rows=w.packed_k, device=device)


def assert_same(a: sf.Linear, b: sf.Linear) -> None:
    x = torch.randn(3, a.in_features, generator=torch.Generator().manual_seed(1)).to(a.weight.dtype)
    assert torch.equal(a(x), b(x))
    assert set(a.state_dict()) == set(b.state_dict())


# --- use


@pytest.mark.parametrize("where", ["reference", "sm_90a"])
def test_forward(where: str) -> None:
    made: Layer = layer(192, 72, bias=torch.randn(72), group_size=64, device=device_of(where))
    linear = sf.Linear(made.weight)
    assert (linear.in_features, linear.out_features) == (192, 72)
    x = torch.randn(2, 3, 192).half()
    with place(where):
        y = linear(x)
    assert made.weight.bias is not None
    assert_product(y, x, made.values, made.weight.bias)


def test_inside_a_model() -> None:
    """It has no parameters to train and passes gradients to what is before it."""
    model = nn.Sequential(nn.Linear(8, 192).half(), sf.Linear(layer(192, 72).weight))
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    model(torch.randn(4, 8).half()).sum().backward()
    assert model[0].weight.grad is not None and model[0].weight.grad.abs().sum() > 0
    assert "K=192, N=72, int4, group_size=128, float16" in repr(model)


def test_only_packed_weights_are_taken() -> None:
    with pytest.raises(ArgumentTypeError, match=r"weight=Tensor is not allowed: expected a PackedWeight"):
        sf.Linear(torch.zeros(64, 64))  # type: ignore[arg-type]


# --- storing and copying


@ALL
def test_state_dict_into_an_empty_layer(kind: str) -> None:
    original = sf.Linear(weight(kind))
    other = empty_like(original.weight)
    other.load_state_dict(original.state_dict(), strict=True)
    assert_same(original, other)


@ALL
def test_meta_layer_takes_tensors_over(kind: str) -> None:
    original = sf.Linear(weight(kind))
    other = empty_like(original.weight, "meta")
    assert other.words.is_meta
    other.load_state_dict(original.state_dict(), strict=True, assign=True)
    assert_same(original, other)
    assert other.words.data_ptr() == original.words.data_ptr()


@ALL
def test_copies(kind: str) -> None:
    original = sf.Linear(weight(kind))
    buffer = io.BytesIO()
    torch.save(original, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(original),
        pickle.loads(pickle.dumps(original)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert_same(original, other)
        assert other.words.data_ptr() != original.words.data_ptr()


@ALL
def test_files(kind: str, tmp_path: Path) -> None:
    """torch.save with weights_only, safetensors files of tensors and of modules."""
    original = nn.Sequential(sf.Linear(weight(kind)))
    torch.save(original.state_dict(), tmp_path / "state.pt")
    save_file(original.state_dict(), tmp_path / "state.safetensors")
    save_model(original, str(tmp_path / "model.safetensors"))
    states = [
        torch.load(tmp_path / "state.pt", weights_only=True),
        load_file(tmp_path / "state.safetensors"),
    ]
    for state in states:
        other = nn.Sequential(empty_like(original[0].weight))
        other.load_state_dict(state, strict=True)
        assert_same(original[0], other[0])
    other = nn.Sequential(empty_like(original[0].weight))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert_same(original[0], other[0])


def test_the_weight_follows_its_buffers() -> None:
    """The packed weight is remade after buffers were replaced, and kept while they are not."""
    a, b = sf.Linear(layer(192, 72, seed=1).weight), sf.Linear(layer(192, 72, seed=2).weight)
    assert a.weight is a.weight
    before = a.weight
    a.load_state_dict(b.state_dict(), assign=True)
    assert a.weight is not before
    assert_same(a, b)


def test_moves_and_dtypes() -> None:
    """Devices change, dtypes do not: a weight is packed for one activation dtype."""
    linear = sf.Linear(layer(192, 72, dtype=torch.bfloat16, bias=torch.randn(72)).weight)
    state = {name: tensor.dtype for name, tensor in linear.state_dict().items()}
    for moved in (linear.half(), linear.to(torch.float64), linear.to("cpu", torch.float32)):
        assert {name: tensor.dtype for name, tensor in moved.state_dict().items()} == state
    x = torch.randn(2, 192).bfloat16()
    assert linear(x).dtype == torch.bfloat16
    assert {t.device.type for t in linear.to("meta").buffers()} == {"meta"}


def test_fake_tensors() -> None:
    w = layer(192, 72, bias=torch.zeros(72)).weight
    with FakeTensorMode():
        linear = empty_like(w)
        assert linear.weight.shape == (192, 72) and tuple(linear.weight.scales.shape) == (2, 72)


# --- what does not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"group_size": 64},
            r"state_dict scheme=.*'group_size': 128.* 'group_size': 64.* this layer was made",
        ),
        ({"dtype": "bfloat16"}, r"state_dict scheme=.*'dtype': 'float16'"),
    ],
)
def test_another_scheme_is_refused(changes: dict[str, Any], message: str) -> None:
    original = sf.Linear(layer(192, 72).weight)
    scheme = replace(original.scheme, **changes)
    with pytest.raises(ArgumentError, match=message):
        sf.Linear.empty(192, 72, scheme).load_state_dict(original.state_dict(), strict=False)


def test_another_shape_or_format_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sf.Linear(layer(128, 72).weight)
    state = original.state_dict()
    with pytest.raises(
        ArgumentError, match=r"state_dict shape=\[128, 72\] is not allowed: expected \[128, 70\]"
    ):
        sf.Linear.empty(128, 70, original.scheme).load_state_dict(state)
    monkeypatch.setattr("swordfish.linear.FORMAT_VERSION", "2")
    with pytest.raises(ArgumentError, match=r"state_dict version=1 is not allowed: expected 2"):
        sf.Linear.empty(128, 72, original.scheme).load_state_dict(state)


def test_a_raw_checkpoint_is_refused_strictly() -> None:
    raw = {"qweight": torch.zeros(16, 72, dtype=torch.int32), "scales": torch.zeros(1, 72)}
    linear = sf.Linear(layer(128, 72).weight)
    with pytest.raises(RuntimeError, match=r'(?s)Missing key.*"words".*Unexpected key.*"qweight"'):
        linear.load_state_dict(raw)


def test_a_bias_is_neither_lost_nor_invented() -> None:
    without, bias = sf.Linear(layer(128, 72).weight), sf.Linear(layer(128, 72, bias=torch.ones(72)).weight)
    assert "bias" not in without.state_dict()
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"bias"'):
        sf.Linear.empty(128, 72, without.scheme).load_state_dict(bias.state_dict())
    with pytest.raises(RuntimeError, match=r'Missing key.*"bias"'):
        sf.Linear.empty(128, 72, without.scheme, bias=True).load_state_dict(without.state_dict())


def test_packed_rows_must_fit() -> None:
    plain, ordered = sf.Scheme(4, 32, "float16"), sf.Scheme(4, 32, "float16", act_order=True)
    with pytest.raises(
        ArgumentError, match=r"packed_rows=160 is not allowed: expected in_features=128 without act"
    ):
        sf.Linear.empty(128, 64, plain, packed_rows=160)
    with pytest.raises(
        ArgumentError, match=r"packed_rows=96 is not allowed: expected in_features=128 or more"
    ):
        sf.Linear.empty(128, 64, ordered, packed_rows=96)
    assert sf.Linear.empty(128, 64, ordered, packed_rows=160).weight.packed_k == 160
