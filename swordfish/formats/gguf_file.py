"""Layers of a GGUF file, read with the ``gguf`` package (the ``gguf`` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from swordfish.errors import ArgumentError, SwordfishError
from swordfish.formats.base import FORMATS, LayerParams
from swordfish.formats.gguf import GROUP
from swordfish.formats.load import Layer

__all__ = ["GgufCheckpoint"]


class GgufCheckpoint:
    """A GGUF file. Layers keep the file's names (``blk.0.ffn_gate``) and the file's row order.

    Raises ``SwordfishError`` when the ``gguf`` package is not installed.
    """

    dtype: str | None = None
    experts_per_token: int | None = None

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise SwordfishError(
                "reading a .gguf file needs the gguf package: pip install 'swordfish[gguf]'"
            ) from error
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def layers(self) -> list[str]:
        """Names of the layers whose type is Q4_0, Q4_1 or Q8_0, in the order of the file."""
        return [
            name.removesuffix(".weight")
            for name, tensor in self._tensors.items()
            if name.endswith(".weight") and self._format_name(tensor) in FORMATS and len(tensor.shape) == 2
        ]

    def layer(self, name: str, device: torch.device | str = "cpu") -> Layer:
        """One layer. Raises ``ArgumentError`` when it is missing or of a type that is not supported."""
        tensor = self._tensors.get(name + ".weight")
        if tensor is None:
            raise ArgumentError("layer", name, "a layer of the file, such as " + ", ".join(self.layers()[:3]))
        fmt = FORMATS.get(self._format_name(tensor))
        if fmt is None:
            raise ArgumentError(f"type of {name}", tensor.tensor_type.name, "Q4_0, Q4_1 or Q8_0")
        tensors = {"blocks": torch.from_numpy(tensor.data.copy()).to(device)}
        bias = self._tensors.get(name + ".bias")
        if bias is not None:
            tensors["bias"] = torch.from_numpy(bias.data.copy()).to(device)
        return Layer(fmt, LayerParams(fmt.bits[0], GROUP), tensors)

    @staticmethod
    def _format_name(tensor: Any) -> str:
        return f"gguf-{tensor.tensor_type.name.lower()}"
