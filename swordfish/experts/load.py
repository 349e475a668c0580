"""The experts of a checkpoint's layer, whether it stores them one by one or stacked."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from swordfish.errors import ArgumentError
from swordfish.experts.weights import ExpertWeights
from swordfish.formats.configs import pick_dtype
from swordfish.formats.load import Checkpoint, Layer, open_checkpoint
from swordfish.weights import PackedWeight, pack_weight

__all__ = ["StoredExperts", "expert_layers", "find_experts", "load_experts"]

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
    of up. With act-order they come in the row order of down (:meth:`ExpertWeights.stack_layer`).

    Raises:
        ArgumentError: there are no experts of that name, an expert is missing, or experts differ in shape or
            scheme.
    """
    checkpoint = open_checkpoint(folder)
    return find_experts(checkpoint, layer, experts, pick_dtype(dtype, checkpoint.dtype), device).pack()


@dataclass(frozen=True)
class StoredExperts:
    """Experts of a layer, and what their projections are called: gate and up (one name: joined), down."""

    source: _Separate | _Stacked
    gate_up: Sequence[str]
    down: str

    def __len__(self) -> int:
        return len(self.source)

    def kind(self) -> Hashable:
        """Equal for experts that are packed alike."""
        return len(self), self.source.kind((*self.gate_up, self.down))

    def first(self) -> StoredExperts:
        """The first one alone."""
        return StoredExperts(self.source.first(), self.gate_up, self.down)

    def pack(self) -> tuple[ExpertWeights, ExpertWeights]:
        """w13 and w2."""
        source, names = self.source, self.gate_up
        down = source.weights(self.down)
        if len(names) == 1:
            return ExpertWeights.stack_layer(source.weights(names[0]), down, len(self))
        pairs = zip(source.weights(names[0]), source.weights(names[1]), strict=True)
        return ExpertWeights.stack_layer(pairs, down, len(self))


def expert_layers(checkpoint: Checkpoint) -> list[str]:
    """The modules that hold quantised experts, in the order of the checkpoint."""
    downs = {down for _, down in _ROLES}
    found: dict[str, None] = {}
    for name in checkpoint.layers():
        module, _, leaf = name.rpartition(".")
        if leaf in downs:
            parent, _, last = module.rpartition(".")
            holder = parent if last.isdigit() else module
            if holder.rpartition(".")[2] == "experts":
                found[holder] = None
    return list(found)


def find_experts(
    checkpoint: Checkpoint,
    layer: str,
    experts: Sequence[int] | None,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> StoredExperts:
    """The experts of a layer, or those named, as they are stored; see :func:`load_experts`."""
    held = checkpoint.layers()
    for prefix in (layer, f"{layer}.experts"):
        for gate_up, down in _ROLES:
            names = (*gate_up, down)
            if all(f"{prefix}.{name}" in held for name in names):
                parts = {name: checkpoint.layer(f"{prefix}.{name}", device) for name in names}
                return StoredExperts(_stacked(parts, experts, dtype), gate_up, down)
            found = _numbers(held, prefix, down)
            if found:
                places = found if experts is None else list(experts)
                return StoredExperts(_Separate(checkpoint, prefix, places, dtype, device), gate_up, down)
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

    def first(self) -> _Separate:
        """The first expert alone."""
        return _Separate(self.checkpoint, self.prefix, self.places[:1], self.dtype, self.device)

    def kind(self, names: Sequence[str]) -> Hashable:
        """What the first expert's projections look like, unread."""
        parts = [self.checkpoint.layer(f"{self.prefix}.{self.places[0]}.{name}") for name in names]
        return tuple(part.kind() for part in parts)

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

    def first(self) -> _Stacked:
        """The first expert alone."""
        return _Stacked(self.parts, self.places[:1], self.dtype)

    def kind(self, names: Sequence[str]) -> Hashable:
        """What the projections look like, unread."""
        return tuple(self.parts[name].kind() for name in names)

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
