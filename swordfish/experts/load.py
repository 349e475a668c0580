"""The experts of a checkpoint's layer, whether it stores them one by one or stacked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import torch

from swordfish.errors import ArgumentError
from swordfish.experts.weights import ExpertWeights
from swordfish.formats.configs import pick_dtype
from swordfish.formats.load import Checkpoint, Layer, open_checkpoint
from swordfish.weights import PackedWeight, pack_weight

__all__ = ["load_experts"]

_ROLES = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("gate_up_proj",), "down_proj"),
    (("w1", "w3"), "w2"),
    (("w13",), "w2"),
)
"""What checkpoints call gate and up (one name: joined, gate first) and down."""


def load_experts(
    folder: str | os.PathLike[str],
    layer: str,
    *,
    experts: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> tuple[ExpertWeights, ExpertWeights]:
    """w13 and w2 of an expert layer, packed one expert at a time.

    Args:
        folder: a checkpoint folder, see :func:`swordfish.load_layer`.
        layer: the module that holds the experts (``model.layers.0.mlp.experts``), or its parent.
        experts: which ones, in the order of their places (expert parallelism); default: all.
        dtype: the activation dtype; default: the model's own if that is float16 or bfloat16, else bfloat16.

    The experts are layers of their own (``experts.7.gate_proj``, ``up_proj``, ``down_proj``; or ``w1``,
    ``w3``,
    ``w2``; or joined as ``gate_up_proj``), or their tensors are stacked along a first dimension
    (``experts.gate_up_proj.qweight`` ``[E, ...]``). Columns of a joined gate_up are all of gate, then all
    of up.

    Raises:
        ArgumentError: there are no experts of that name, an expert is missing, or experts differ in shape or
            scheme.
    """
    checkpoint = open_checkpoint(folder)
    activation = pick_dtype(dtype, checkpoint.dtype)
    held = checkpoint.layers()
    for prefix in (layer, f"{layer}.experts"):
        for gate_up, down in _ROLES:
            names = (*gate_up, down)
            if all(f"{prefix}.{name}" in held for name in names):
                parts = {name: checkpoint.layer(f"{prefix}.{name}", device) for name in names}
                return _load(_stacked(parts, experts, activation), gate_up, down)
            found = _numbers(held, prefix, down)
            if found:
                places = found if experts is None else list(experts)
                return _load(_Separate(checkpoint, prefix, places, activation, device), gate_up, down)
    hint = "See list_layers(folder)."
    raise ArgumentError("layer", layer, "a module with quantised experts (experts.0.down_proj, ...)", hint)


def _numbers(held: Sequence[str], prefix: str, leaf: str) -> list[int]:
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.{re.escape(leaf)}")
    return sorted(int(match[1]) for name in held if (match := pattern.fullmatch(name)))


class _Separate:
    """Experts that are layers of their own."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prefix: str,
        places: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.checkpoint, self.prefix, self.places = checkpoint, prefix, places
        self.dtype, self.device = dtype, device

    def __len__(self) -> int:
        return len(self.places)

    def weights(self, name: str) -> Iterator[PackedWeight]:
        """The named projection of each expert."""
        for place in self.places:
            layer = self.checkpoint.layer(f"{self.prefix}.{place}.{name}", self.device)
            yield pack_weight(layer.read(), self.dtype)


class _Stacked:
    """Experts along the first dimension of a layer's tensors."""

    def __init__(self, parts: dict[str, Layer], places: Sequence[int], dtype: torch.dtype) -> None:
        self.parts, self.places, self.dtype = parts, places, dtype

    def __len__(self) -> int:
        return len(self.places)

    def weights(self, name: str) -> Iterator[PackedWeight]:
        """The named projection of each expert."""
        part = self.parts[name]
        for place in self.places:
            # What describes the shape may be there once for all.
            tensors = {
                key: t if key == "weight_shape" and t.ndim == 1 else t[place]
                for key, t in part.tensors.items()
            }
            yield pack_weight(part.format.read(tensors, part.params), self.dtype)


def _stacked(parts: dict[str, Layer], experts: Sequence[int] | None, dtype: torch.dtype) -> _Stacked:
    sizes = {}
    for name, part in parts.items():
        marker = part.tensors[part.format.required[0]]
        if marker.ndim != 3:
            raise ArgumentError(
                f"{name}.shape", tuple(marker.shape), "[experts, ...]: tensors of all experts"
            )
        sizes[name] = marker.shape[0]
    count = next(iter(sizes.values()))
    if set(sizes.values()) != {count}:
        raise ArgumentError("experts", sizes, "as many in each projection")
    places = range(count) if experts is None else experts
    for place in places:
        if not 0 <= place < count:
            raise ArgumentError("experts", place, f"0 to {count - 1}")
    return _Stacked(parts, list(places), dtype)


def _load(
    source: _Separate | _Stacked, gate_up: Sequence[str], down: str
) -> tuple[ExpertWeights, ExpertWeights]:
    if len(gate_up) == 1:
        first = ExpertWeights.stack_gated(source.weights(gate_up[0]), len(source))
    else:
        pairs = zip(source.weights(gate_up[0]), source.weights(gate_up[1]), strict=True)
        first = ExpertWeights.stack_gated(pairs, len(source))
    return first, ExpertWeights.stack(source.weights(down), len(source))
