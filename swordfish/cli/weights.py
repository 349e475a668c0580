"""What the arguments of a command name: weights and expert layers, as far as kernels depend on them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from swordfish.errors import ArgumentError
from swordfish.runtime import DeviceProps
from swordfish.runtime.registry import Source
from swordfish.scheme import DTYPES, Scheme, ZeroKind

if TYPE_CHECKING:
    from swordfish.experts import ExpertWeights
    from swordfish.formats.load import Checkpoint

__all__ = ["Experts", "Weight", "checkpoint_layers", "checkpoint_weights", "shape_experts", "shape_weights"]


@dataclass(frozen=True)
class Weight:
    """What kernels are specialised for: scheme, ``k`` packed rows, ``n`` columns, whether a bias is added."""

    scheme: Scheme
    k: int
    n: int
    bias: bool

    @property
    def size(self) -> str:
        """``K x N``."""
        return f"{self.k} x {self.n}"

    def sources(self, props: DeviceProps) -> list[Source]:
        """All that a product with it may launch."""
        from swordfish.dispatch import sources_for

        return sources_for(self.scheme, self.k, self.n, props, bias=self.bias)

    def __str__(self) -> str:
        return _scheme_text(self.scheme, self.bias)


@dataclass(frozen=True, eq=False)
class Experts:
    """An expert layer: both of its weights without memory, ``top_k`` experts a token out of
    ``global_experts``, and the activation between them."""

    w13: ExpertWeights
    w2: ExpertWeights
    top_k: int
    global_experts: int
    activation: str

    @property
    def size(self) -> str:
        """``E of K x N``, those of gate_up."""
        return f"{self.w13.experts} of {self.w13.shape[0]} x {self.w13.shape[1]}"

    def sources(self, props: DeviceProps) -> list[Source]:
        """All that the layer may launch."""
        from swordfish.experts.ahead import sources_for_experts

        return sources_for_experts(
            self.w13,
            self.w2,
            self.top_k,
            props,
            global_experts=self.global_experts,
            activation=self.activation,
        )

    def __str__(self) -> str:
        return f"{_scheme_text(self.w13.scheme, self.w13.bias_rows is not None)}, {self.activation}"


def shape_weights(
    shapes: Sequence[str],
    bits: int,
    group_size: int,
    zeros: ZeroKind | str,
    dtype: str | None,
    bias: bool,
    act_order: bool = False,
) -> list[Weight]:
    """Weights of the given ``KxN`` shapes; with ``bias``, each with and without one."""
    scheme = Scheme(bits, group_size, dtype or "bfloat16", zeros, act_order)  # type: ignore[arg-type]
    sizes = [_sizes(text, "--shape", "KxN, such as 4096x14336", 2) for text in shapes]
    return [Weight(scheme, k, n, b) for k, n in sizes for b in ([False, True] if bias else [False])]


def shape_experts(
    shapes: Sequence[str],
    bits: int,
    group_size: int,
    zeros: ZeroKind | str,
    dtype: str | None,
    bias: bool,
    *,
    top_k: int | None,
    activation: str,
    ranks: int,
) -> list[Experts]:
    """Expert layers of the given ``ExKxN`` shapes: experts, hidden size, columns of gate and of up; with
    ``bias``, each with and without."""
    from swordfish.experts import ExpertWeights
    from swordfish.layouts.packing import BLOCK, packed_shape
    from swordfish.packed import PackedWeight

    scheme = Scheme(bits, group_size, dtype or "bfloat16", zeros)  # type: ignore[arg-type]

    def weight(k: int, n: int, with_bias: bool) -> PackedWeight:
        def like(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=scheme.torch_dtype)

        words = torch.empty(packed_shape(k, n, bits), dtype=torch.int32)
        scales, zero_rows = (like(scheme.groups(k), words.shape[0] * BLOCK) for _ in range(2))
        return PackedWeight(
            words,
            scales,
            None if scheme.zeros == "none" else zero_rows,
            None,
            like(n) if with_bias else None,
            scheme,
            (k, n),
        )

    found = []
    for text in shapes:
        experts, k, n = _sizes(text, "--experts", "ExKxN, such as 8x4096x14336", 3)
        for with_bias in [False, True] if bias else [False]:
            half, down = weight(k, n, with_bias), weight(n, k, with_bias)
            first = ExpertWeights.stack_gated([(half, half)]), ExpertWeights.stack([down])
            found.append(_experts(first, experts, top_k, activation, ranks))
    return found


def checkpoint_weights(path: Path, dtype: str | None) -> list[Weight]:
    """The distinct weights of a checkpoint's quantised layers that are no experts.

    One layer of each combination of tensors and parameters is packed to learn its scheme; the others are only
    looked at. Raises what opening and packing a checkpoint raises.
    """
    from swordfish.experts.load import expert_layers

    checkpoint, activation_dtype = _open(path, dtype)
    return _weights(checkpoint, activation_dtype, expert_layers(checkpoint))


def checkpoint_layers(
    path: Path, dtype: str | None, *, top_k: int | None, activation: str, ranks: int
) -> list[Weight | Experts]:
    """The same, and the distinct expert layers, one expert of each packed to learn its scheme.

    ``top_k`` comes before what the config says; ``ranks`` GPUs share the experts. Raises ``ArgumentError``
    for experts without ``top_k`` as well.
    """
    from swordfish.experts.load import expert_layers, find_experts

    checkpoint, activation_dtype = _open(path, dtype)
    holders = expert_layers(checkpoint)
    found: list[Weight | Experts] = [*_weights(checkpoint, activation_dtype, holders)]
    chosen = checkpoint.experts_per_token if top_k is None else top_k
    seen: set[Hashable] = set()
    for name in holders:
        stored = find_experts(checkpoint, name, None, activation_dtype)
        kind = stored.kind()
        if kind not in seen:
            seen.add(kind)
            found.append(_experts(stored.first().pack(), len(stored), chosen, activation, ranks))
    return found


def _weights(checkpoint: Checkpoint, activation: torch.dtype, holders: Sequence[str]) -> list[Weight]:
    """Those of no layer in ``holders``."""
    from swordfish.weights import pack_weight

    inside = tuple(f"{holder}." for holder in holders)
    seen: set[Hashable] = set()
    weights: dict[Weight, None] = {}
    for name in checkpoint.layers():
        if name.startswith(inside):
            continue
        layer = checkpoint.layer(name)
        kind = layer.kind()
        if kind not in seen:
            seen.add(kind)
            packed = pack_weight(layer.read(), activation)
            weights[Weight(packed.scheme, packed.packed_k, packed.shape[1], packed.bias is not None)] = None
    return list(weights)


def _experts(
    first: tuple[ExpertWeights, ExpertWeights], experts: int, top_k: int | None, activation: str, ranks: int
) -> Experts:
    from swordfish.experts.ahead import without_memory

    if top_k is None:
        raise ArgumentError("--top-k", None, "the experts of a token", "The config does not tell.")
    here = -(-experts // ranks)
    w13, w2 = (without_memory(w, here) for w in first)
    return Experts(w13, w2, top_k, experts, activation)


def _open(path: Path, dtype: str | None) -> tuple[Checkpoint, torch.dtype]:
    """A checkpoint and the dtype of its activations."""
    from swordfish.formats.configs import pick_dtype
    from swordfish.formats.load import open_checkpoint

    checkpoint = open_checkpoint(path)
    if dtype is not None and dtype not in DTYPES:
        raise ArgumentError("--dtype", dtype, "float16 or bfloat16")
    return checkpoint, pick_dtype(DTYPES[dtype] if dtype else None, checkpoint.dtype)


def _sizes(text: str, option: str, allowed: str, count: int) -> list[int]:
    parts = re.split("[xX*,]", text.strip())
    if len(parts) != count or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ArgumentError(option, repr(text), allowed)
    return [int(part) for part in parts]


def _scheme_text(scheme: Scheme, bias: bool) -> str:
    """``int4 g128 bf16, integer zeros, bias``."""
    group = "channelwise" if scheme.group_size == -1 else f"g{scheme.group_size}"
    parts = [f"int{scheme.bits} {group} {scheme.dtype.replace('float', 'f')}"]
    if scheme.zeros != "none":
        parts.append(f"{scheme.zeros} zeros")
    if bias:
        parts.append("bias")
    return ", ".join(parts)
