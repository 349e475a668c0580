"""Everything that a first call does, done before: compiling, loading, cuBLAS's handles and workspaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from swordfish.dispatch import overrides, plan, props_of
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.experts import MoE, plan_layer
from swordfish.experts.layer import layer_sources
from swordfish.linear import Linear
from swordfish.matmul import mm
from swordfish.packed import PackedWeight
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.registry import Source, compile_many

__all__ = ["warmup"]

Warming = tuple[list[Source], Callable[[], object]]
"""The kernels of a kind of call, and the call."""


def warmup(
    weights: PackedWeight | torch.nn.Module | Iterable[PackedWeight],
    rows: int | Iterable[int] = 512,
    *,
    top_k: int | None = None,
) -> int:
    """Make the first product with any of these row counts as quick as the later ones.

    Kernels that are not in the cache are compiled side by side; then every kind of call runs once on zeros,
    on the current stream, which loads its kernels and lets cuBLAS set up. Calls are captured into CUDA graphs
    without this as well, but then the first capture compiles.

    Args:
        weights: a packed weight, several, or a module, of which every :class:`swordfish.Linear` and
            :class:`swordfish.MoE` counts.
        rows: the row counts to expect; an int stands for all from 1 up to it.
        top_k: experts of a token, for a module with expert layers.

    Returns:
        The number of kernels involved. 0 for weights on the CPU unless a GPU is emulated.

    Raises:
        ArgumentTypeError: ``weights`` or ``rows`` hold something else.
        ArgumentError: a row count below 1; expert layers without ``top_k``.
        CompileError: a kernel does not compile.
    """
    counts = range(1, rows + 1) if isinstance(rows, int) else _sorted(rows)
    if not counts or counts[0] < 1:
        raise ArgumentError("rows", rows, "1 or more")
    requests: dict[tuple[Source, str], None] = {}
    calls = []
    seen: set[Any] = set()
    for layer in _layers(weights):
        experts = isinstance(layer, MoE)
        props = props_of(layer.w13.device if experts else layer.device)
        kind = _kind(layer)
        if props is None or kind in seen:
            continue
        seen.add(kind)
        found = _of_experts(layer, counts, top_k) if experts else _of_weight(layer, counts, props)
        for sources, call in found:
            requests.update(dict.fromkeys((source, props.arch) for source in sources))
            calls.append(call)
    compile_many(list(requests))
    with torch.no_grad():
        for call in calls:
            call()
    return len(requests)


def _sorted(rows: Any) -> list[int]:
    counts = list(rows) if isinstance(rows, Iterable) else [rows]
    for count in counts:
        if not isinstance(count, int):
            raise ArgumentTypeError("rows", type(count).__name__, "ints")
    return sorted(set(counts))


def _layers(given: Any) -> Iterator[Any]:
    """Packed weights and expert layers."""
    if isinstance(given, PackedWeight):
        yield given
    elif isinstance(given, torch.nn.Module):
        for module in given.modules():
            if isinstance(module, Linear):
                yield module.weight
            elif isinstance(module, MoE):
                yield module
    else:
        for w in given if isinstance(given, Iterable) else (given,):
            if not isinstance(w, PackedWeight):
                raise ArgumentTypeError("weights", type(w).__name__, "PackedWeights or a module")
            yield w


def _kind(layer: PackedWeight | MoE) -> tuple[object, ...]:
    """Layers of one kind need the same kernels."""
    if isinstance(layer, PackedWeight):
        return layer.scheme, layer.shape, layer.packed_k, layer.bias is not None, layer.device
    mapped = None if layer.expert_map is None else layer.expert_map.shape
    pair = [(w.scheme, w.shape, w.packed_k, w.bias_rows is not None) for w in (layer.w13, layer.w2)]
    return (*pair, layer.w13.experts, mapped, layer.activation, layer.weight_on_input, layer.w13.device)


def _of_weight(w: PackedWeight, counts: Sequence[int], props: DeviceProps) -> Iterator[Warming]:
    k, n, seen = w.packed_k, w.shape[1], set()
    for m in counts:
        chosen = plan(m, n, k, w.scheme, props, padded_rows=k != w.shape[0], wishes=overrides())
        if (chosen.path, chosen.config) in seen:
            continue
        seen.add((chosen.path, chosen.config))

        def call(m: int = m) -> object:
            return mm(torch.zeros(m, w.shape[0], dtype=w.dtype, device=w.device), w)

        yield chosen.sources(w.scheme, k, n, bias=w.bias is not None), call


def _of_experts(layer: MoE, counts: Sequence[int], top_k: int | None) -> Iterator[Warming]:
    """With ids of both types that tokens come with."""
    if top_k is None:
        raise ArgumentError("top_k", None, "the experts of a token, for a module with expert layers")
    w13, w2, seen = layer.w13, layer.w2, set()
    for m in counts:
        chosen = plan_layer(w13, w2, m, top_k, layer.expert_map)
        if chosen.kernels in seen:
            continue
        seen.add(chosen.kernels)
        for dtype in (torch.int32, torch.int64):

            def call(m: int = m, dtype: torch.dtype = dtype) -> object:
                x = torch.zeros(m, w13.shape[0], dtype=w13.dtype, device=w13.device)
                ids = torch.zeros(m, top_k, dtype=dtype, device=w13.device)
                return layer(x, torch.zeros(m, top_k, device=w13.device), ids)

            wide = dtype == torch.int64
            sources = layer_sources(
                chosen, w13, w2, layer.activation, wide_ids=wide, weight_on_input=layer.weight_on_input
            )
            yield list(sources), call
