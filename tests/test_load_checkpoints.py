"""Real checkpoints decode to what an independent oracle reads from the same tensors, layer by layer.

Runs over ``tests/fixtures``, the layer that ships with the package, and every checkpoint folder under
``SWORDFISH_CHECKPOINTS`` when that is set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import swordfish
from swordfish.formats import list_layers, load_layer, open_checkpoint
from swordfish.weights import dequantize
from tests.fixtures.oracles import decode_awq, decode_compressed_tensors, decode_gptq

FIXTURES = Path(__file__).parent / "fixtures"
DEMO = Path(next(iter(swordfish.__path__))) / "data" / "demo"


def folders() -> list[Path]:
    roots = [FIXTURES]
    if "SWORDFISH_CHECKPOINTS" in os.environ:
        roots.append(Path(os.environ["SWORDFISH_CHECKPOINTS"]))
    return [DEMO, *(p.parent for root in roots for p in sorted(root.glob("*/config.json")))]


def oracle(folder: Path, layer: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of a layer, float32 ``[K, N]``: with the scales as stored, and with them rounded to float16."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    every = load_file(folder / "model.safetensors")
    tensors = {k.removeprefix(layer + "."): t for k, t in every.items() if k.startswith(layer + ".")}
    half = {k: t.half() if t.is_floating_point() else t for k, t in tensors.items()}
    if config["quant_method"] == "gptq":
        args = (config["bits"], config["group_size"], 1)
        return decode_gptq(tensors, *args), decode_gptq(half, *args)
    if config["quant_method"] == "awq":
        return decode_awq(tensors, config["group_size"]), decode_awq(half, config["group_size"])
    weights = config["config_groups"]["group_0"]["weights"]
    args = (weights["num_bits"], weights["group_size"])
    return decode_compressed_tensors(tensors, *args), decode_compressed_tensors(half, *args)


@pytest.mark.parametrize("folder", folders(), ids=lambda p: p.name)
def test_every_layer_equals_the_oracle(folder: Path) -> None:
    checkpoint, names = open_checkpoint(folder), list_layers(folder)
    assert names
    for name in names:
        stored, rounded = oracle(folder, name)
        assert np.array_equal(checkpoint.layer(name).dequantize().numpy(), stored), name
        w = load_layer(folder, name, dtype=torch.float16)
        assert w.shape == stored.shape and w.bias is None
        assert np.array_equal(dequantize(w).numpy(), rounded.astype(np.float16)), name


def test_act_order_of_the_real_layer_is_a_permutation() -> None:
    w = load_layer(DEMO, "model.layers.0.mlp.down_proj")
    assert w.scheme.act_order and w.perm is not None and w.dtype == torch.bfloat16
    assert torch.equal(w.perm.sort().values, torch.arange(1536, dtype=torch.int32))
    assert not torch.equal(w.perm, torch.arange(1536, dtype=torch.int32))


def test_a_natural_g_idx_is_no_act_order_and_scales_stay_negative() -> None:
    w = load_layer(FIXTURES / "gptq-negative-scales", "model.layers.0.self_attn.k_proj")
    assert not w.scheme.act_order and w.perm is None and w.dtype == torch.float16
    assert 0.4 < (w.scales < 0).float().mean() < 0.6


def test_the_shipped_layer_is_small() -> None:
    assert sum(p.stat().st_size for p in DEMO.iterdir()) < 500_000
