"""The tensors of a safetensors checkpoint, single-file or sharded, read one layer at a time."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from swordfish.errors import ArgumentError

__all__ = ["TensorStore"]


class TensorStore:
    """Which file of a folder holds which tensor. Opening reads headers only.

    A ``*.safetensors.index.json`` decides when there is one; otherwise every ``*.safetensors`` file counts.
    Raises ``ArgumentError`` when there is neither, when a listed file is missing or lies outside the
    folder, or when two files hold the same tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, dict[str, str]] = {}
        for name, file in self._index(folder).items():
            layer, _, suffix = name.rpartition(".")
            self._files.setdefault(layer, {})[suffix] = file

    def suffixes(self, layer: str) -> list[str]:
        """Last parts of the names of the tensors that belong to ``layer`` itself."""
        return list(self._files.get(layer, ()))

    def layers(self, suffix: str) -> list[str]:
        """Names of all layers with a tensor called ``suffix``, in natural order (layer 2 before layer 10)."""
        return sorted((layer for layer, held in self._files.items() if suffix in held), key=_natural)

    def read(self, layer: str, suffixes: list[str], device: torch.device | str) -> dict[str, torch.Tensor]:
        """The tensors ``layer.suffix`` by suffix; nothing else is read from the files."""
        from safetensors import safe_open

        by_file: dict[str, list[str]] = {}
        for suffix in suffixes:
            by_file.setdefault(self._files[layer][suffix], []).append(suffix)
        tensors: dict[str, torch.Tensor] = {}
        for file, wanted in by_file.items():
            with safe_open(str(self.folder / file), framework="pt", device=str(device)) as reader:
                held = set(reader.keys())
                for suffix in wanted:
                    name = f"{layer}.{suffix}"
                    if name not in held:
                        raise ArgumentError("tensor", name, f"a tensor of {file}, where the index puts it")
                    tensors[suffix] = reader.get_tensor(name)
        return tensors

    @staticmethod
    def _index(folder: Path) -> dict[str, str]:
        indices = sorted(folder.glob("*.safetensors.index.json"))
        if len(indices) > 1:
            raise ArgumentError("folder", folder, f"one index, found {', '.join(p.name for p in indices)}")
        if indices:
            weight_map = json.loads(indices[0].read_text(encoding="utf-8")).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ArgumentError("folder", indices[0], "an index with a weight_map")
            for file in sorted(set(weight_map.values())):
                if Path(file).name != file or not (folder / file).is_file():
                    raise ArgumentError(
                        "folder", folder, f"a folder that holds {file!r}, named by {indices[0].name}"
                    )
            return dict(weight_map)
        return TensorStore._scan(folder)

    @staticmethod
    def _scan(folder: Path) -> dict[str, str]:
        from safetensors import safe_open

        files: dict[str, str] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(str(path), framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118
                    if name in files:
                        raise ArgumentError(
                            "folder", folder, f"one file with {name}, found {files[name]} and {path.name}"
                        )
                    files[name] = path.name
        if not files:
            raise ArgumentError("folder", folder, "a folder with *.safetensors files")
        return files


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]
