"""Everything that a first call does, done before: compiling, loading, cuBLAS's handles and workspaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from swordfish.dispatch import Plan, overrides, plan, props_of
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.linear import Linear
from swordfish.matmul import mm
from swordfish.packed import PackedWeight
from swordfish.runtime.registry import compile_many

__all__ = ["warmup"]


def warmup(
    weights: PackedWeight | torch.nn.Module | Iterable[PackedWeight], rows: int | Iterable[int] = 512
) -> int:
    """Make the first ``sf.mm`` with any of these row counts as quick as the later ones.

    Kernels that are not in the cache are compiled side by side; then every kind of call runs once on zeros,
    on the current stream, which loads its kernels and lets cuBLAS set up. Calls are captured into CUDA graphs
    without this as well, but then the first capture compiles.

    Args:
        weights: a packed weight, several, or a module, of which every :class:`swordfish.Linear` counts.
        rows: the row counts to expect; an int stands for all from 1 up to it.

    Returns:
        The number of kernels involved. 0 for weights on the CPU unless a GPU is emulated.

    Raises:
        ArgumentTypeError: ``weights`` holds something else.
        ArgumentError: a row count below 1.
        CompileError: a kernel does not compile.
    """
    counts = range(1, rows + 1) if isinstance(rows, int) else sorted(set(rows))
    if not counts or counts[0] < 1:
        raise ArgumentError("rows", rows, "1 or more")
    calls: list[tuple[PackedWeight, int]] = []
    requests: dict[Any, None] = {}
    seen: set[Any] = set()
    for w in _weights(weights):
        props = props_of(w.device)
        kind = (w.scheme, w.shape, w.packed_k, w.bias is not None, w.device, props)
        if props is None or kind in seen:
            continue
        seen.add(kind)
        k, n, padded = w.packed_k, w.shape[1], w.packed_k != w.shape[0]
        plans: dict[Any, tuple[int, Plan]] = {}
        for m in counts:
            chosen = plan(m, n, k, w.scheme, props, padded_rows=padded, wishes=overrides())
            plans.setdefault((chosen.path, chosen.config), (m, chosen))
        for m, chosen in plans.values():
            calls.append((w, m))
            sources = chosen.sources(w.scheme, k, n, bias=w.bias is not None)
            requests.update(dict.fromkeys((source, props.arch) for source in sources))
    compile_many(list(requests))
    with torch.no_grad():
        for w, m in calls:
            mm(torch.zeros(m, w.shape[0], dtype=w.dtype, device=w.device), w)
    return len(requests)


def _weights(given: Any) -> Iterator[PackedWeight]:
    if isinstance(given, PackedWeight):
        yield given
    elif isinstance(given, torch.nn.Module):
        yield from (module.weight for module in given.modules() if isinstance(module, Linear))
    else:
        for w in given:
            if not isinstance(w, PackedWeight):
                raise ArgumentTypeError("weights", type(w).__name__, "PackedWeights or a module")
            yield w
