"""Which layers a config covers and how, without any tensors; the tables are those of docs/formats.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats import FORMATS, LayerParams, select_format
from swordfish.formats.configs import pick_dtype, read_config
from swordfish.formats.modules import is_ignored, is_listed

Q = "model.layers.0.self_attn.q_proj"
GATE = "model.layers.0.mlp.gate_proj"
ROUTER = "model.layers.0.mlp.gate"
EXPERT = "model.layers.10.mlp.experts.3.down_proj"
QKV = "model.layers.0.self_attn.qkv_proj"

LISTED = [
    (["lm_head"], {"lm_head"}),
    (["model.layers.0."], {Q, GATE, ROUTER, QKV}),
    (["model.layers.1"], set()),
    (["layers.*.mlp"], {GATE, ROUTER, EXPERT}),
    (["self_attn"], {Q, QKV}),
    (["mlp.gate"], {ROUTER}),
    (["gate"], {ROUTER}),
    (["q_proj", "k_proj", "v_proj"], {Q}),
    (["qkv_proj"], {Q, QKV}),
    (["experts"], {EXPERT}),
    (["proj"], set()),
    (None, set()),
    ([], set()),
]


@pytest.mark.parametrize(("entries", "excluded"), LISTED)
def test_lists_of_unconverted_modules(entries: list[str] | None, excluded: set[str]) -> None:
    names = ["lm_head", Q, GATE, ROUTER, EXPERT, QKV]
    assert {name for name in names if is_listed(name, entries, "modules_to_not_convert")} == excluded
    for method in ("awq", "gptq"):
        config = {"bits": 4, "group_size": 64, "modules_to_not_convert": entries}
        found = {name for name in names if FORMATS[method].layer_params(config, name) is None}
        assert found == excluded, method


@pytest.mark.parametrize("entry", ["re:.*gate", "layers.[0-9]", "gate|up", "^lm_head$"])
def test_pattern_characters_in_a_list_of_names_are_refused(entry: str) -> None:
    with pytest.raises(ArgumentError, match=r"modules_to_not_convert=.*expected dotted module names"):
        is_listed(Q, [entry], "modules_to_not_convert")


@pytest.mark.parametrize(
    ("entries", "error"), [("lm_head", ArgumentTypeError), ([1], ArgumentTypeError), (["."], ArgumentError)]
)
def test_malformed_lists_are_refused(entries: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"modules_to_not_convert="):
        is_listed(Q, entries, "modules_to_not_convert")


@pytest.mark.parametrize(
    ("ignore", "excluded"),
    [
        (["lm_head"], {"lm_head"}),
        (["self_attn"], set()),
        ([Q], {Q}),
        (["re:.*self_attn.*"], {Q, QKV}),
        (["re:self_attn"], set()),
        (["re:.*mlp.gate$"], {ROUTER}),
        ([QKV], {Q, QKV}),
        (["Linear"], {"lm_head", Q, GATE, ROUTER, EXPERT, QKV}),
        (None, set()),
        ([], set()),
    ],
)
def test_compressed_tensors_ignore(ignore: list[str] | None, excluded: set[str]) -> None:
    names = ["lm_head", Q, GATE, ROUTER, EXPERT, QKV]
    assert {name for name in names if is_ignored(name, ignore)} == excluded
    config = {"config_groups": groups(all=(["Linear"], {})), "ignore": ignore}
    assert {n for n in names if FORMATS["compressed-tensors"].layer_params(config, n) is None} == excluded


def groups(**kwargs: tuple[list[str], dict[str, Any]]) -> dict[str, Any]:
    base = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    return {key: {"targets": t, "weights": {**base, **w}} for key, (t, w) in kwargs.items()}


def test_config_groups_by_precedence() -> None:
    config = {
        "config_groups": groups(
            a=(["Linear"], {}), b=([r"re:.*\.down_proj"], {"num_bits": 8}), c=([Q], {"group_size": 64})
        )
    }
    fmt = FORMATS["compressed-tensors"]
    assert fmt.layer_params(config, GATE) == LayerParams(4, 128, True, False)
    assert fmt.layer_params(config, EXPERT) == LayerParams(8, 128, True, False)
    assert fmt.layer_params(config, Q) == LayerParams(4, 64, True, False)
    config["config_groups"]["b"]["weights"] = None
    assert fmt.layer_params(config, EXPERT) is None
    assert fmt.layer_params({"config_groups": groups(c=([Q], {}))}, GATE) is None


def test_config_groups_that_compete_are_refused() -> None:
    config = {"config_groups": groups(a=(["re:.*q_proj"], {}), b=(["re:.*self_attn.*"], {"num_bits": 8}))}
    with pytest.raises(ArgumentError, match=r"config_groups=a and b .*q_proj"):
        FORMATS["compressed-tensors"].layer_params(config, Q)
    agreeing = {"config_groups": groups(a=(["re:.*q_proj"], {}), b=(["re:.*self_attn.*"], {}))}
    assert FORMATS["compressed-tensors"].layer_params(agreeing, Q) == LayerParams(4, 128, True, False)


@pytest.mark.parametrize(
    ("actorder", "needs_g_idx"),
    [(None, False), ("static", False), ("weight", False), (False, False), ("group", True), ("dynamic", True)],
)
def test_actorder(actorder: object, needs_g_idx: bool) -> None:
    config = {"config_groups": groups(a=(["Linear"], {"actorder": actorder}))}
    params = FORMATS["compressed-tensors"].layer_params(config, Q)
    assert params is not None and params.act_order is needs_g_idx


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"actorder": "random"}, "actorder=random"),
        ({"strategy": "block"}, "strategy=block"),
        ({"type": "float"}, "weights.type=float"),
        ({"num_bits": 3}, "bits=3 .*4 or 8"),
        ({"num_bits": None}, "bits=None .*4 or 8"),
        ({"group_size": 0}, "group_size=0"),
    ],
)
def test_compressed_tensors_schemes_that_are_not_supported(weights: dict[str, Any], message: str) -> None:
    config = {"config_groups": groups(a=(["Linear"], weights))}
    with pytest.raises(ArgumentError, match=message):
        FORMATS["compressed-tensors"].layer_params(config, Q)


def test_quantised_activations_and_other_group_formats_are_refused() -> None:
    config = {"config_groups": groups(a=(["Linear"], {}))}
    config["config_groups"]["a"]["input_activations"] = {"num_bits": 8}
    with pytest.raises(ArgumentError, match=r"input_activations=.*weight-only"):
        FORMATS["compressed-tensors"].layer_params(config, Q)
    config["config_groups"]["a"].update(input_activations=None, format="marlin-24")
    with pytest.raises(ArgumentError, match=r"format=marlin-24"):
        FORMATS["compressed-tensors"].layer_params(config, Q)


@pytest.mark.parametrize(("strategy", "size"), [("channel", -1), ("tensor", -1), ("group", 128), (None, 128)])
def test_strategies(strategy: str | None, size: int) -> None:
    config = {"config_groups": groups(a=(["Linear"], {"strategy": strategy}))}
    params = FORMATS["compressed-tensors"].layer_params(config, Q)
    assert params is not None and params.group_size == size


def test_dynamic_rules_first_match_wins() -> None:
    rules = {
        r"-:.*\.experts\.": {},
        r"+:.*\.layers\.0\.mlp\.gate_proj": {"bits": 8},
        r".*self_attn\.q": {"group_size": 64, "desc_act": True},
        r".*\.gate_proj": {"bits": 4, "group_size": 32},
        "q_proj": {"bits": 3},
    }
    config = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False, "dynamic": rules}
    fmt = FORMATS["gptq"]
    assert fmt.layer_params(config, EXPERT) is None
    assert fmt.layer_params(config, GATE) == LayerParams(8, 128, True, False)
    assert fmt.layer_params(config, GATE.replace("0", "1")) == LayerParams(4, 32, True, False)
    assert fmt.layer_params(config, Q) == LayerParams(4, 64, True, True)
    assert fmt.layer_params(config, Q.replace("q_proj", "o_proj")) == LayerParams(4, 128, True, False)


def test_malformed_dynamic_rules_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"dynamic="):
        FORMATS["gptq"].layer_params({"bits": 4, "dynamic": ["q_proj"]}, Q)
    with pytest.raises(ArgumentError, match=r"dynamic=\( is not allowed: expected a regular expression"):
        FORMATS["gptq"].layer_params({"bits": 4, "dynamic": {"-:(": {}}}, Q)


def test_missing_keys_have_documented_defaults_and_unknown_ones_are_ignored() -> None:
    assert FORMATS["gptq"].layer_params({"bits": 4}, Q) == LayerParams(4, None, True, None)
    assert FORMATS["awq"].layer_params({"bits": 4}, Q) == LayerParams(4, None, False, False)
    assert FORMATS["awq"].layer_params({"w_bit": 4, "q_group_size": 64}, Q) == LayerParams(
        4, 64, False, False
    )
    assert FORMATS["gptq"].layer_params({"bits": "8", "group_size": 64.0, "x": 1}, Q) == LayerParams(
        8, 64, True, None
    )


@pytest.mark.parametrize("bits", [2, 3, 5, 6, None])
@pytest.mark.parametrize("method", ["gptq", "gptq_v2", "awq"])
def test_bit_widths_are_refused_while_parsing(method: str, bits: int | None) -> None:
    with pytest.raises(ArgumentError, match=f"bits={bits} is not allowed: expected 4"):
        FORMATS[method].layer_params({"bits": bits, "group_size": 64}, Q)


def test_awq_has_no_8_bits() -> None:
    with pytest.raises(ArgumentError, match=r"bits=8 is not allowed: expected 4"):
        FORMATS["awq"].layer_params({"bits": 8}, Q)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "gptq"}, "gptq"),
        ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, "gptq_v2"),
        ({"quant_method": "GPTQ", "format": "gptq"}, "gptq"),
        ({"quant_method": "awq", "version": "GEMM"}, "awq"),
        ({"quant_method": "awq", "checkpoint_format": "gemm"}, "awq"),
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_format_of_a_config(config: dict[str, Any], name: str) -> None:
    assert select_format(config).name == name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method=bitsandbytes .*'awq' or"),
        ({}, "quant_method=None"),
        ({"quant_method": "awq", "version": "gemv"}, "awq format=gemv .*'gemm'"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "gptq format=marlin .*'gptq' or 'gptq_v2'"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "format=int-quantized .*'pack-q"),
    ],
)
def test_formats_that_are_not_supported_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        select_format(config)


def write(folder: Path, **files: object) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_files_are_merged_and_config_json_comes_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        config={
            "dtype": "float16",
            "quantization_config": {"quant_method": "gptq", "bits": 4, "meta": {"a": 1}},
        },
        quantize_config={"bits": 4.0, "group_size": 64, "meta": {"b": 2}},
    )
    found = read_config(tmp_path)
    assert found.quantization["group_size"] == 64 and found.quantization["meta"] == {"a": 1}
    assert found.dtype == "float16" and found.sources == ("config.json", "quantize_config.json")


@pytest.mark.parametrize(
    ("key", "a", "b"),
    [("bits", 4, 8), ("group_size", 128, 64), ("sym", True, False), ("desc_act", True, False)],
)
def test_files_that_disagree_are_refused(tmp_path: Path, key: str, a: object, b: object) -> None:
    write(
        tmp_path, config={"quantization_config": {"quant_method": "gptq", key: a}}, quantize_config={key: b}
    )
    with pytest.raises(ArgumentError, match=rf"{key}={b} in quantize_config.json .*{a} as in config.json"):
        read_config(tmp_path)


def test_side_files_imply_their_method(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, quantize_config={"bits": 4})).quantization["quant_method"] == "gptq"
    (tmp_path / "quantize_config.json").unlink()
    found = read_config(write(tmp_path, quant_config={"w_bit": 4, "q_group_size": 64, "version": "GEMM"}))
    assert found.quantization["quant_method"] == "awq" and found.quantization["bits"] == 4
    assert select_format(found.quantization).name == "awq"


def test_nested_and_older_keys(tmp_path: Path) -> None:
    inner = {"quant_method": "compressed-tensors"}
    write(
        tmp_path,
        config={
            "text_config": {"quantization_config": inner, "dtype": "float16", "tie_word_embeddings": True}
        },
    )
    found = read_config(tmp_path)
    assert found.quantization == inner and found.dtype == "float16" and found.tied_head
    assert read_config(write(tmp_path, config={"compression_config": inner})).quantization == inner


def test_folders_without_a_usable_config(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"folder=.*config.json with a quantization_config"):
        read_config(write(tmp_path, config={"dtype": "float16"}))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"config.json is not allowed: expected a JSON file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ArgumentError, match=r"expected a JSON object"):
        read_config(tmp_path)


def test_activation_dtype() -> None:
    assert pick_dtype(None, "float16") == torch.float16
    assert pick_dtype(None, "torch.float16") == torch.float16
    assert pick_dtype(None, "float32") == pick_dtype(None, None) == torch.bfloat16
    assert pick_dtype(torch.float16, "bfloat16") == torch.float16
    with pytest.raises(ArgumentTypeError, match=r"dtype=torch.float32 .*torch.float16 or torch.bfloat16"):
        pick_dtype(torch.float32, None)
