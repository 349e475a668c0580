"""Swordfish: int4/int8 weights times fp16/bf16 activations on NVIDIA Hopper and datacenter Blackwell.

    import swordfish as sf

    w = sf.load_layer("checkpoint", "model.layers.0.mlp.gate_proj")
    y = sf.mm(x, w)

Importing this package imports torch and nothing heavier; compilers and drivers load when a kernel is first
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swordfish.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompileError,
    SwordfishError,
    UnsupportedDeviceError,
)
from swordfish.scheme import Scheme

if TYPE_CHECKING:
    from swordfish.dispatch import Plan, explain
    from swordfish.experts import Activation, ExpertWeights, MoE, load_experts, moe
    from swordfish.fold import fold_act_order
    from swordfish.formats import (
        from_awq,
        from_compressed_tensors,
        from_gguf,
        from_gptq,
        list_layers,
        load_layer,
        load_layers,
    )
    from swordfish.linear import Linear
    from swordfish.matmul import mm
    from swordfish.packed import PackedWeight
    from swordfish.runtime.backend import emulate
    from swordfish.warm import warmup
    from swordfish.weights import QuantizedWeight, dequantize, pack, pack_weight

__version__ = "0.1.0"

_LAZY = {
    "Activation": "experts",
    "ExpertWeights": "experts",
    "Linear": "linear",
    "MoE": "experts",
    "PackedWeight": "packed",
    "Plan": "dispatch",
    "QuantizedWeight": "weights",
    "dequantize": "weights",
    "emulate": "runtime.backend",
    "explain": "dispatch",
    "fold_act_order": "fold",
    "from_awq": "formats",
    "from_compressed_tensors": "formats",
    "from_gguf": "formats",
    "from_gptq": "formats",
    "list_layers": "formats",
    "load_experts": "experts",
    "load_layer": "formats",
    "load_layers": "formats",
    "mm": "matmul",
    "moe": "experts",
    "pack": "weights",
    "pack_weight": "weights",
    "warmup": "warm",
}

__all__ = [
    "Activation",
    "ArgumentError",
    "ArgumentTypeError",
    "CompileError",
    "ExpertWeights",
    "Linear",
    "MoE",
    "PackedWeight",
    "Plan",
    "QuantizedWeight",
    "Scheme",
    "SwordfishError",
    "UnsupportedDeviceError",
    "__version__",
    "dequantize",
    "emulate",
    "explain",
    "fold_act_order",
    "from_awq",
    "from_compressed_tensors",
    "from_gguf",
    "from_gptq",
    "list_layers",
    "load_experts",
    "load_layer",
    "load_layers",
    "mm",
    "moe",
    "pack",
    "pack_weight",
    "warmup",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'swordfish' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"swordfish.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
