"""Loading layers of a folder: shards, overrides, fused layers, the output head, bias; and of GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from swordfish.errors import ArgumentError, ArgumentTypeError, SwordfishError
from swordfish.formats import list_layers, load_layer, load_layers, store
from swordfish.weights import dequantize
from tests.fixtures.oracles import (
    Sample,
    compressed_tensors_sample,
    gptq_sample,
    pack_awq,
    random_layer,
    values,
    write_folder,
)

FIXTURES = Path(__file__).parent / "fixtures"
ATTN, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}


def sample(
    seed: int = 0, n: int = 64, bits: int = 4, group_size: int = 64, sym: bool = True, order: bool = False
) -> Sample:
    return gptq_sample(np.random.default_rng(seed), 256, n, bits, group_size, 1, sym, order)


def check(
    folder: Path, layer: str | list[str], *expected: Sample, dtype: torch.dtype = torch.float16
) -> None:
    w = load_layer(folder, layer, dtype=dtype)
    wanted = np.concatenate([s.values for s in expected], axis=1).astype(np.float16)
    assert np.array_equal(dequantize(w).numpy(), wanted)


def test_dtype_defaults_to_the_models() -> None:
    name = f"{ATTN}.k_proj"
    assert load_layer(FIXTURES / "awq", name).dtype == torch.float16
    assert load_layer(FIXTURES / "gptq-actorder", name).dtype == torch.bfloat16
    assert (
        load_layer(FIXTURES / "compressed-tensors", name).dtype == torch.bfloat16
    )  # the config says float32
    assert load_layer(FIXTURES / "awq", name, dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ArgumentTypeError, match=r"dtype=torch.float32"):
        load_layer(FIXTURES / "awq", name, dtype=torch.float32)


def test_real_layers_with_act_order_are_fused() -> None:
    folder, k, v = FIXTURES / "gptq-actorder", f"{ATTN}.k_proj", f"{ATTN}.v_proj"
    both = load_layer(folder, [k, v])
    assert both.shape == (576, 384) and both.scheme.act_order
    apart = torch.cat([dequantize(load_layer(folder, name)) for name in (k, v)], dim=1)
    assert torch.equal(dequantize(both), apart)


def test_list_and_iterate(tmp_path: Path) -> None:
    layers = {f"model.layers.{i}.mlp.up_proj": sample(i) for i in (0, 2, 10)}
    stored = {name: s.tensors for name, s in layers.items()}
    write_folder(tmp_path, {**stored, "model.norm": {"weight": torch.ones(4)}}, GPTQ)
    assert list_layers(tmp_path) == list(layers)
    for name, w in load_layers(tmp_path, dtype=torch.float16):
        assert np.array_equal(dequantize(w).numpy(), layers.pop(name).values.astype(np.float16))
    assert not layers
    assert [name for name, _ in load_layers(tmp_path, "*.layers.1*")] == ["model.layers.10.mlp.up_proj"]
    with pytest.raises(ArgumentError, match=r"pattern=\*\.down_proj"):
        next(load_layers(tmp_path, "*.down_proj"))


def sharded(folder: Path, *parts: dict[str, Sample]) -> dict[str, str]:
    """A folder with one safetensors file per part, config and index; returns the index's map."""
    weight_map: dict[str, str] = {}
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(parts, start=1):
        file = f"model-{i:05d}-of-{len(parts):05d}.safetensors"
        tensors = {f"{n}.{key}": t.contiguous() for n, s in part.items() for key, t in s.tensors.items()}
        save_file(tensors, str(folder / file))
        weight_map.update(dict.fromkeys(tensors, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"quantization_config": GPTQ}))
    return weight_map


def test_sharded_files_and_only_the_layers_tensors_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = sample(1), sample(2)
    sharded(tmp_path, {"a.up_proj": a}, {"b.up_proj": b})
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"not opened")
    read: list[str] = []
    original = store.TensorStore.read

    def spy(self: store.TensorStore, layer: str, *rest: Any) -> dict[str, torch.Tensor]:
        tensors = original(self, layer, *rest)
        read.extend(f"{layer}.{suffix}" for suffix in tensors)
        return tensors

    monkeypatch.setattr(store.TensorStore, "read", spy)
    check(tmp_path, "b.up_proj", b)
    assert sorted(read) == ["b.up_proj.g_idx", "b.up_proj.qweight", "b.up_proj.qzeros", "b.up_proj.scales"]


def test_one_layer_over_two_files(tmp_path: Path) -> None:
    s = sample(1)
    halves = [("qweight", "g_idx"), ("scales", "qzeros")]
    for i, keys in enumerate(halves):
        save_file({f"m.{k}": s.tensors[k].contiguous() for k in keys}, str(tmp_path / f"{i}.safetensors"))
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ))
    check(tmp_path, "m", s)  # no index: every file counts
    save_file({"m.scales": s.tensors["scales"]}, str(tmp_path / "2.safetensors"))
    with pytest.raises(ArgumentError, match=r"one file with m.scales, found 1.safetensors and 2.safetensors"):
        load_layer(tmp_path, "m")


def test_broken_indices(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path, {"a": sample(1)}, {"b": sample(2)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {**weight_map, "b.scales": "model-00001-of-00002.safetensors"}})
    )
    with pytest.raises(ArgumentError, match=r"tensor=b.scales .*model-00001-of-00002"):
        load_layer(tmp_path, "b")
    for bad in ("../other.safetensors", "missing.safetensors"):
        index.write_text(json.dumps({"weight_map": {**weight_map, "b.scales": bad}}))
        with pytest.raises(ArgumentError, match=bad):
            load_layer(tmp_path, "a")


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"folder=.*absent .*existing checkpoint folder"):
        load_layer(tmp_path / "absent", "m")
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ))
    with pytest.raises(ArgumentError, match=r"safetensors files"):
        load_layer(tmp_path, "m")


def test_unknown_and_unquantised_layers(tmp_path: Path) -> None:
    stored = {f"{MLP}.up_proj": sample().tensors, f"{MLP}.gate": {"weight": torch.ones(8, 8)}}
    write_folder(tmp_path, stored, {**GPTQ, "modules_to_not_convert": ["o_proj"]})
    with pytest.raises(ArgumentError, match=rf"layer={MLP}.upproj .*Close to it: {MLP}.up_proj"):
        load_layer(tmp_path, f"{MLP}.upproj")
    with pytest.raises(
        ArgumentError, match=r"not quantised. The checkpoint holds weight for it; though its config"
    ):
        load_layer(tmp_path, f"{MLP}.gate")
    write_folder(
        tmp_path, {"o_proj": {"weight": torch.ones(8, 8)}}, {**GPTQ, "modules_to_not_convert": ["o_proj"]}
    )
    with pytest.raises(
        ArgumentError, match=r"not quantised. The checkpoint holds weight for it; its config excludes it"
    ):
        load_layer(tmp_path, "o_proj")
    write_folder(tmp_path, {"o_proj": sample().tensors}, {**GPTQ, "modules_to_not_convert": ["o_proj"]})
    with pytest.raises(
        ArgumentError, match=r"config excludes to have no qweight. Config and tensors disagree"
    ):
        load_layer(tmp_path, "o_proj")
    broken = {k: t for k, t in sample().tensors.items() if k != "scales"}
    write_folder(tmp_path, {"o_proj": broken}, GPTQ)
    with pytest.raises(ArgumentError, match=r"Missing: scales"):
        load_layer(tmp_path, "o_proj")


def test_each_layer_gets_its_own_overrides(tmp_path: Path) -> None:
    q, k, v = sample(1), sample(2, bits=8), sample(3, group_size=32)
    stored = {f"{ATTN}.{n}_proj": s.tensors for n, s in {"q": q, "k": k, "v": v}.items()}
    rules = {r".*\.k_proj": {"bits": 8}, r".*v_proj": {"group_size": 32}}
    write_folder(tmp_path, stored, {**GPTQ, "dynamic": rules})
    for name, s in {"q": q, "k": k, "v": v}.items():
        check(tmp_path, f"{ATTN}.{name}_proj", s)
    with pytest.raises(ArgumentError, match=r"bits of .*k_proj=8 .*4 like .*q_proj"):
        load_layer(tmp_path, [f"{ATTN}.q_proj", f"{ATTN}.k_proj"])
    with pytest.raises(ArgumentError, match=r"group_size of .*v_proj=32 .*64 like .*q_proj"):
        load_layer(tmp_path, [f"{ATTN}.q_proj", f"{ATTN}.v_proj"])


def test_fused_names_and_lists(tmp_path: Path) -> None:
    parts = {name: sample(i, n=72) for i, name in enumerate(("q_proj", "k_proj", "v_proj"))}
    stored = {f"{ATTN}.{name}": s.tensors for name, s in parts.items()}
    write_folder(tmp_path, stored, GPTQ)
    check(tmp_path, [f"{ATTN}.{name}" for name in parts], *parts.values())
    check(tmp_path, f"{ATTN}.qkv_proj", *parts.values())
    write_folder(tmp_path, stored, {**GPTQ, "modules_to_not_convert": ["k_proj"]})
    with pytest.raises(ArgumentError, match=r"layer=.*k_proj .*disagree"):
        load_layer(tmp_path, f"{ATTN}.qkv_proj")
    with pytest.raises(ArgumentError, match=r"at least one name"):
        load_layer(tmp_path, [])


def test_a_fused_layer_that_is_stored_as_such(tmp_path: Path) -> None:
    s = sample(n=128)
    write_folder(tmp_path, {f"{ATTN}.qkv_proj": s.tensors}, GPTQ)
    check(tmp_path, f"{ATTN}.qkv_proj", s)


def test_parts_with_another_row_order_are_not_fused(tmp_path: Path) -> None:
    stored = {"q_proj": sample(1, order=True).tensors, "k_proj": sample(2, order=True).tensors}
    write_folder(tmp_path, stored, {**GPTQ, "desc_act": True})
    with pytest.raises(ArgumentError, match=r"g_idx"):
        load_layer(tmp_path, ["q_proj", "k_proj"])


def test_missing_group_size_is_read_off_the_scales(tmp_path: Path) -> None:
    layers = {
        "a": sample(1, group_size=32),
        "b": sample(2, group_size=-1),
        "c": sample(3, group_size=128, order=True),
    }
    config = {"quant_method": "gptq", "bits": 4}
    write_folder(tmp_path, {name: s.tensors for name, s in layers.items()}, config)
    for name, s in layers.items():
        check(tmp_path, name, s)
    assert load_layer(tmp_path, "c").scheme.group_size == 128


def test_act_order_flags_against_the_tensors(tmp_path: Path) -> None:
    s = sample(order=True)
    bare = {k: t for k, t in s.tensors.items() if k != "g_idx"}
    write_folder(tmp_path, {"m": s.tensors, "bare": bare}, GPTQ)
    with pytest.warns(UserWarning, match=r"no act-order but g_idx reorders the groups: g_idx is used"):
        check(tmp_path, "m", s)
    write_folder(tmp_path, {"bare": bare}, {**GPTQ, "desc_act": True})
    with pytest.raises(
        ArgumentError, match=r"g_idx=None .*group of each input, since the config says act-order"
    ):
        load_layer(tmp_path, "bare")


def compressed(actorder: object, **weights: Any) -> dict[str, Any]:
    base = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    group = {"targets": ["Linear"], "weights": {**base, "actorder": actorder, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }


@pytest.mark.parametrize("actorder", [None, "static", "weight", "group"])
def test_actorder_without_g_idx(tmp_path: Path, actorder: str | None) -> None:
    s = compressed_tensors_sample(np.random.default_rng(0), 768, 64, 4, 32, True, False, np.float16)
    write_folder(tmp_path, {"m": s.tensors}, compressed(actorder))
    if actorder == "group":
        with pytest.raises(ArgumentError, match=r"weight_g_idx=None .*since the config says act-order"):
            load_layer(tmp_path, "m")
    else:
        check(tmp_path, "m", s)
        assert load_layer(tmp_path, "m").perm is None


@pytest.mark.parametrize("sym", [True, False])
def test_actorder_group(tmp_path: Path, sym: bool) -> None:
    s = compressed_tensors_sample(np.random.default_rng(0), 256, 64, 4, 32, sym, True, np.float16)
    write_folder(tmp_path, {"m": s.tensors}, compressed("group", symmetric=sym))
    check(tmp_path, "m", s)
    assert load_layer(tmp_path, "m").perm is not None


def test_awq_channelwise_and_older_config_keys(tmp_path: Path) -> None:
    codes, scales, zeros, g_idx = random_layer(np.random.default_rng(0), 128, 64, 4, 64)
    tensors = {
        "m.qweight": pack_awq(codes),
        "m.qzeros": pack_awq(zeros),
        "m.scales": torch.from_numpy(scales),
    }
    save_file(tensors, str(tmp_path / "model.safetensors"))
    config = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "quant_config.json").write_text(json.dumps(config))
    got = dequantize(load_layer(tmp_path, "m", dtype=torch.float16)).numpy()
    assert np.array_equal(got, values(codes, scales, zeros, g_idx).astype(np.float16))


def test_bias_is_picked_up_only_where_there_is_one(tmp_path: Path) -> None:
    with_bias, without = sample(1), sample(2)
    bias = torch.arange(64, dtype=torch.float32)
    write_folder(tmp_path, {"a": {**with_bias.tensors, "bias": bias}, "b": without.tensors}, GPTQ)
    w = load_layer(tmp_path, "a", dtype=torch.float16)
    assert w.bias is not None and torch.equal(w.bias, bias.half())
    assert load_layer(tmp_path, "b").bias is None
    both = load_layer(tmp_path, ["b", "a"], dtype=torch.float16)
    assert both.bias is not None and torch.equal(both.bias, torch.cat([torch.zeros(64), bias]).half())


HEAD = "lm_head"


@pytest.mark.parametrize("n", [320, 321, 328])
def test_quantised_head_of_any_width(tmp_path: Path, n: int) -> None:
    s = sample(n=n)
    write_folder(tmp_path, {HEAD: s.tensors}, {**GPTQ, "lm_head": True})
    check(tmp_path, HEAD, s)
    assert load_layer(tmp_path, HEAD).shape == (256, n)


def test_head_rules(tmp_path: Path) -> None:
    quantised, plain = sample().tensors, {"weight": torch.ones(64, 256)}
    write_folder(tmp_path, {HEAD: quantised}, GPTQ)  # lm_head not stated: the tensors decide
    assert load_layer(tmp_path, HEAD).shape == (256, 64)
    write_folder(tmp_path, {HEAD: quantised}, {**GPTQ, "lm_head": True}, tie_word_embeddings=True)
    assert load_layer(tmp_path, HEAD).shape == (256, 64)
    cases: list[tuple[dict[str, Any], dict[str, Any], bool, str]] = [
        ({HEAD: quantised}, {**GPTQ, "lm_head": False}, False, r"Config and tensors disagree"),
        ({HEAD: plain}, {**GPTQ, "lm_head": False}, False, r"not quantised.*its config excludes it"),
        ({HEAD: plain}, {**GPTQ, "lm_head": True}, False, r"since the config says lm_head: true"),
        ({HEAD: plain}, GPTQ, False, r"not quantised"),
        ({HEAD: quantised}, GPTQ, True, r"not tied .*it has quantised tensors of its own"),
        ({"m": quantised}, GPTQ, True, r"not tied .*it has no quantised weight of its own"),
    ]
    for stored, config, tied, message in cases:
        write_folder(tmp_path, stored, config, tie_word_embeddings=tied)
        with pytest.raises(ArgumentError, match=message):
            load_layer(tmp_path, HEAD)


@pytest.mark.parametrize("bits", [2, 3, 5, 6, None])
def test_bit_widths_are_refused_before_any_tensor_is_read(tmp_path: Path, bits: int | None) -> None:
    write_folder(tmp_path, {"m": sample().tensors}, {**GPTQ, "bits": bits})
    with pytest.raises(ArgumentError, match=rf"bits={bits} is not allowed: expected 4 or 8"):
        load_layer(tmp_path, "m")


@pytest.mark.parametrize("bits", ["4", 4.0])
def test_bits_written_otherwise(tmp_path: Path, bits: object) -> None:
    s = sample()
    write_folder(tmp_path, {"m": s.tensors}, {**GPTQ, "bits": bits})
    check(tmp_path, "m", s)


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A file with a layer of each supported type, one of another type and a bias; returns the values."""
    import gguf

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    expected = {}
    for i, kind in enumerate(("Q4_0", "Q4_1", "Q8_0", "Q5_0")):
        quant_type = gguf.GGMLQuantizationType[kind]
        blocks = gguf.quants.quantize(rng.normal(0, 0.05, (72, 96)).astype(np.float32), quant_type)
        writer.add_tensor(f"blk.{i}.ffn_up.weight", blocks, raw_dtype=quant_type)
        expected[f"blk.{i}.ffn_up"] = gguf.quants.dequantize(blocks, quant_type).T
    writer.add_tensor("blk.0.ffn_up.bias", np.arange(72, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_gguf_file(tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "m.gguf")
    names = list_layers(tmp_path / "m.gguf")
    assert names == ["blk.0.ffn_up", "blk.1.ffn_up", "blk.2.ffn_up"]
    for name in names:
        w = load_layer(tmp_path / "m.gguf", name, dtype=torch.float16)
        assert w.shape == (96, 72) and (w.bias is not None) == (name == names[0])
        error = np.abs(dequantize(w).float().numpy() - expected[name])
        assert (error <= np.abs(expected[name]) * 2.0**-11 + 2.0**-25).all()
    with pytest.raises(ArgumentError, match=r"type of blk.3.ffn_up=Q5_0 .*Q4_0, Q4_1 or Q8_0"):
        load_layer(tmp_path / "m.gguf", "blk.3.ffn_up")
    with pytest.raises(ArgumentError, match=r"layer=blk.9.ffn_up .*blk.0.ffn_up"):
        load_layer(tmp_path / "m.gguf", "blk.9.ffn_up")


def test_gguf_file_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SwordfishError, match=r"needs the gguf package: pip install 'swordfish\[gguf\]'"):
        load_layer(tmp_path / "m.gguf", "blk.0.ffn_up")
