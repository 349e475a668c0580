"""Checkpoint formats: one class each, found through :data:`FORMATS`. ``docs/formats.md`` describes them."""

from swordfish.formats.awq import AwqGemm
from swordfish.formats.base import FORMATS, CheckpointFormat, LayerParams, get_format, register, select_format
from swordfish.formats.compressed_tensors import PackQuantized
from swordfish.formats.direct import from_awq, from_compressed_tensors, from_gguf, from_gptq
from swordfish.formats.gguf import Q4_0, Q4_1, Q8_0
from swordfish.formats.gptq import Gptq, GptqV2
from swordfish.formats.load import list_layers, load_layer, load_layers, open_checkpoint

__all__ = [
    "FORMATS",
    "Q4_0",
    "Q4_1",
    "Q8_0",
    "AwqGemm",
    "CheckpointFormat",
    "Gptq",
    "GptqV2",
    "LayerParams",
    "PackQuantized",
    "from_awq",
    "from_compressed_tensors",
    "from_gguf",
    "from_gptq",
    "get_format",
    "list_layers",
    "load_layer",
    "load_layers",
    "open_checkpoint",
    "register",
    "select_format",
]
