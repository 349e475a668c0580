"""Loading layers of a checkpoint by name, as its own quantisation config says."""

from __future__ import annotations

import difflib
import os
from collections.abc import Hashable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import torch

from swordfish.errors import ArgumentError
from swordfish.formats.base import CheckpointFormat, LayerParams, Tensors, select_format
from swordfish.formats.configs import pick_dtype, read_config
from swordfish.formats.modules import fused_parts
from swordfish.formats.store import TensorStore
from swordfish.weights import PackedWeight, QuantizedWeight, pack_weight

__all__ = ["Checkpoint", "Layer", "list_layers", "load_layer", "load_layers", "open_checkpoint"]


class Layer:
    """One quantised layer as stored: its format, parameters and tensors."""

    def __init__(self, fmt: CheckpointFormat, params: LayerParams, tensors: Tensors) -> None:
        self.format, self.params, self.tensors = fmt, params, tensors

    def kind(self) -> Hashable:
        """What layers have in common that are packed alike: format, parameters, shapes and dtypes."""
        tensors = tuple(sorted((key, tuple(t.shape), t.dtype) for key, t in self.tensors.items()))
        return self.format.name, self.params, tensors

    def read(self) -> QuantizedWeight:
        """The layer in canonical form."""
        return self.format.read(self.tensors, self.params)

    def dequantize(self) -> torch.Tensor:
        """Reference values, float32 ``[K, N]``."""
        return self.format.dequantize(self.tensors, self.params)


class Checkpoint(Protocol):
    """Something that holds named quantised layers."""

    dtype: str | None
    """The model's dtype as its config writes it."""

    experts_per_token: int | None
    """Of a mixture of experts, as its config writes it."""

    def layers(self) -> list[str]:
        """Names of all quantised layers."""

    def layer(self, name: str, device: torch.device | str = "cpu") -> Layer:
        """One layer. Raises ``ArgumentError`` when there is none of that name or it is not quantised."""


class FolderCheckpoint:
    """A folder of safetensors files with a quantisation config."""

    def __init__(self, folder: Path) -> None:
        config = read_config(folder)
        self.dtype, self.experts_per_token = config.dtype, config.experts_per_token
        self._config = config
        self._format = select_format(config.quantization)
        self._store = TensorStore(folder)

    def layers(self) -> list[str]:
        """Names of all quantised layers, in natural order."""
        return self._store.layers(self._format.required[0])

    def layer(self, name: str, device: torch.device | str = "cpu") -> Layer:
        """One layer; see :class:`Checkpoint`. Config and tensors must agree on whether it is quantised."""
        fmt, held = self._format, self._store.suffixes(name)
        params = fmt.layer_params(self._config.quantization, name)
        quantised = fmt.required[0] in held
        self._check_head(name, quantised)
        if not held:
            close = difflib.get_close_matches(name, self.layers(), n=3, cutoff=0.5)
            hint = f"Close to it: {', '.join(close)}." if close else "list_layers(folder) names them."
            raise ArgumentError("layer", name, "a quantised layer of the checkpoint", hint)
        if not quantised:
            why = "its config excludes it" if params is None else "though its config does not exclude it"
            hint = f"The checkpoint holds {', '.join(sorted(held))} for it; {why}."
            raise ArgumentError(
                "layer", name, f"a layer with {fmt.required[0]} ({fmt.name}); it is not quantised", hint
            )
        if params is None:
            hint = "Config and tensors disagree."
            raise ArgumentError(
                "layer", name, f"one that the config excludes to have no {fmt.required[0]}", hint
            )
        missing = [suffix for suffix in fmt.required if suffix not in held]
        if missing:
            raise ArgumentError(
                "layer", name, f"one with the tensors {', '.join(fmt.required)}", f"Missing: {missing[0]}."
            )
        wanted = [suffix for suffix in (*fmt.required, *fmt.optional) if suffix in held]
        return Layer(fmt, params, self._store.read(name, wanted, device))

    def _check_head(self, name: str, quantised: bool) -> None:
        """The output head may be quantised only where the config does not deny it."""
        if name.rpartition(".")[2] != "lm_head":
            return
        stated = self._config.quantization.get("lm_head")
        if stated is True and not quantised:
            raise ArgumentError("layer", name, "a quantised head, since the config says lm_head: true")
        if self._config.tied_head and stated is not True:
            found = (
                "it has quantised tensors of its own"
                if quantised
                else "it has no quantised weight of its own"
            )
            raise ArgumentError(
                "layer", name, f"a head not tied to the embedding (tie_word_embeddings); {found}"
            )


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint folder, or a ``.gguf`` file (with the ``gguf`` extra).

    Raises ``ArgumentError`` when there is nothing of the kind at ``path``, or its config cannot be used.
    """
    place = Path(path)
    if place.is_file() and place.suffix == ".gguf":
        from swordfish.formats.gguf_file import GgufCheckpoint

        return GgufCheckpoint(place)
    if not place.is_dir():
        raise ArgumentError("folder", path, "an existing checkpoint folder or .gguf file")
    return FolderCheckpoint(place)


def list_layers(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the quantised layers of a checkpoint, layer 2 before layer 10."""
    return open_checkpoint(folder).layers()


def load_layer(
    folder: str | os.PathLike[str],
    layer: str | Sequence[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> PackedWeight:
    """Load and pack one layer of a checkpoint; only its tensors are read.

    ``layer`` is the name without the tensor's suffix (``model.layers.0.mlp.gate_proj``), a list of names to
    be joined along the output dimension, or a fused name (``...qkv_proj``, ``...gate_up_proj``) whose parts
    the checkpoint holds. ``dtype`` is the activation dtype; default: the model's own if that is float16 or
    bfloat16, else bfloat16.

    Raises ``ArgumentError`` when the layer does not exist, is not quantised, is stored in a way that is not
    supported, or when the parts of a fused layer differ in bits, group size, zero points or row order.
    """
    checkpoint = open_checkpoint(folder)
    return _load(checkpoint, layer, pick_dtype(dtype, checkpoint.dtype), device)


def load_layers(
    folder: str | os.PathLike[str],
    pattern: str = "*",
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, PackedWeight]]:
    """Load and pack the layers whose name matches a shell pattern, one after the other: ``(name, weight)``.

    Raises as :func:`load_layer`, and ``ArgumentError`` when the pattern matches no quantised layer.
    """
    checkpoint = open_checkpoint(folder)
    names = [name for name in checkpoint.layers() if fnmatchcase(name, pattern)]
    if not names:
        raise ArgumentError(
            "pattern", pattern, "a pattern that matches a quantised layer", "See list_layers(folder)."
        )
    activation = pick_dtype(dtype, checkpoint.dtype)
    for name in names:
        yield name, _load(checkpoint, name, activation, device)


def _load(
    checkpoint: Checkpoint, layer: str | Sequence[str], dtype: torch.dtype, device: torch.device | str
) -> PackedWeight:
    names = _parts(checkpoint, layer)
    layers = [checkpoint.layer(name, device) for name in names]
    for name, part in zip(names[1:], layers[1:], strict=True):
        for field in ("bits", "group_size"):
            seen, expected = getattr(part.params, field), getattr(layers[0].params, field)
            if seen != expected:
                raise ArgumentError(
                    f"{field} of {name}", seen, f"{expected} like {names[0]}, to be fused with it"
                )
    weights = [pack_weight(part.read(), dtype) for part in layers]
    return weights[0] if len(weights) == 1 else PackedWeight.cat(weights, "n")


def _parts(checkpoint: Checkpoint, layer: str | Sequence[str]) -> list[str]:
    if not isinstance(layer, str):
        if not layer:
            raise ArgumentError("layer", layer, "at least one name")
        return list(layer)
    parts = fused_parts(layer)
    if parts:
        held = set(checkpoint.layers())
        if layer not in held and any(part in held for part in parts):
            return list(parts)
    return [layer]
