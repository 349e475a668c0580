"""``swordfish compile``: the kernels of a model or of single shapes, built ahead of time into the cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from swordfish.errors import ArgumentError
from swordfish.runtime import Artifact, DeviceProps, cache_directory, compile_many
from swordfish.runtime.registry import Source
from swordfish.scheme import DTYPES, Scheme, ZeroKind

__all__ = [
    "Weight",
    "checkpoint_weights",
    "compile_command",
    "kernel_requests",
    "kernel_table",
    "make_console",
    "parse_archs",
    "shape_weights",
]


@dataclass(frozen=True)
class Weight:
    """What kernels are specialised for: scheme, ``k`` packed rows, ``n`` columns, whether a bias is added."""

    scheme: Scheme
    k: int
    n: int
    bias: bool


def parse_archs(text: str) -> list[DeviceProps]:
    """Properties of the targets in ``"sm_90a,sm_100a"``; raises ``UnsupportedDeviceError`` for an unknown
    one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ArgumentError("--arch", repr(text), "architectures separated by commas, such as sm_90a,sm_100a")
    return [DeviceProps.for_target(name) for name in dict.fromkeys(names)]


def shape_weights(
    shapes: Sequence[str], bits: int, group_size: int, zeros: ZeroKind | str, dtype: str | None, bias: bool
) -> list[Weight]:
    """Weights of the given ``KxN`` shapes; with ``bias``, each with and without one."""
    scheme = Scheme(bits, group_size, dtype or "bfloat16", zeros)  # type: ignore[arg-type]
    weights = []
    for text in shapes:
        match = re.fullmatch(r"(\d+)[xX*,](\d+)", text.strip())
        if match is None or min(int(match[1]), int(match[2])) < 1:
            raise ArgumentError("--shape", repr(text), "KxN, such as 4096x14336")
        weights += [
            Weight(scheme, int(match[1]), int(match[2]), b) for b in ([False, True] if bias else [False])
        ]
    return weights


def checkpoint_weights(path: Path, dtype: str | None) -> list[Weight]:
    """The distinct weights of a checkpoint's quantised layers.

    One layer of each combination of tensors and parameters is packed to learn its scheme; the others are only
    looked at. Raises what opening and packing a checkpoint raises.
    """
    from swordfish.formats.configs import pick_dtype
    from swordfish.formats.load import open_checkpoint
    from swordfish.weights import pack_weight

    checkpoint = open_checkpoint(path)
    if dtype is not None and dtype not in DTYPES:
        raise ArgumentError("--dtype", dtype, "float16 or bfloat16")
    activation = pick_dtype(DTYPES[dtype] if dtype else None, checkpoint.dtype)
    seen: set[Any] = set()
    weights: dict[Weight, None] = {}
    for name in checkpoint.layers():
        layer = checkpoint.layer(name)
        tensors = tuple(sorted((key, tuple(t.shape), t.dtype) for key, t in layer.tensors.items()))
        kind = (layer.format.name, layer.params, tensors)
        if kind in seen:
            continue
        seen.add(kind)
        packed = pack_weight(layer.read(), activation)
        weights[Weight(packed.scheme, packed.packed_k, packed.shape[1], packed.bias is not None)] = None
    return list(weights)


def kernel_requests(
    weights: Sequence[Weight], targets: Sequence[DeviceProps]
) -> dict[tuple[Source, str], Weight]:
    """Every kernel that the weights may launch on the targets, each once, with a weight that it serves."""
    from swordfish.dispatch import sources_for

    requests: dict[tuple[Source, str], Weight] = {}
    for props in targets:
        for weight in weights:
            for source in sources_for(weight.scheme, weight.k, weight.n, props, bias=weight.bias):
                requests.setdefault((source, props.arch), weight)
    return requests


def compile_command(weights: Sequence[Weight], arch: str, workers: int | None) -> int:
    """Build and print a table; 1 if there is nothing to build."""
    targets = parse_archs(arch)
    console = make_console()
    if not weights:
        raise ArgumentError("--checkpoint / --shape", "nothing", "at least one checkpoint or shape")
    requests = kernel_requests(weights, targets)
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("compiling", total=len(requests))
        artifacts = compile_many(requests, workers=workers, done=lambda *_: progress.advance(task))
    console.print(kernel_table(list(zip(requests.values(), artifacts, strict=True))))
    console.print(f"{len(artifacts)} kernels in {cache_directory()}", soft_wrap=True)
    return 0


def make_console() -> Console:
    """A console whose tables fit a terminal and are not squeezed in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def kernel_table(built: Sequence[tuple[Weight, Artifact]]) -> Table:
    """One row for each weight, kernel and architecture: how many variants, registers, bytes spilled, compile
    time."""
    table = Table("arch", "kernel", "K x N", "scheme", box=SIMPLE_HEAD, pad_edge=False)
    for title in ("count", "registers", "spilled", "seconds"):
        table.add_column(title, justify="right")
    rows: dict[tuple[str, str, Weight], list[Artifact]] = {}
    for weight, artifact in built:
        rows.setdefault((artifact.metadata.arch, artifact.metadata.entry, weight), []).append(artifact)
    for (arch, entry, weight), artifacts in rows.items():
        facts = [artifact.metadata for artifact in artifacts]
        registers = sorted({fact.registers for fact in facts})
        table.add_row(
            arch,
            entry if len(entry) <= 24 else entry[:21] + "...",
            f"{weight.k} x {weight.n}",
            describe(weight),
            str(len(facts)),
            str(registers[0]) if len(registers) == 1 else f"{registers[0]} to {registers[-1]}",
            str(max(fact.spill_bytes for fact in facts)),
            f"{sum(fact.build_seconds for fact in facts):.2f}",
        )
    return table


def describe(weight: Weight) -> str:
    """Short text of a scheme: ``int4 g128 bf16, integer zeros, bias``."""
    scheme = weight.scheme
    group = "channelwise" if scheme.group_size == -1 else f"g{scheme.group_size}"
    parts = [f"int{scheme.bits} {group} {scheme.dtype.replace('float', 'f')}"]
    if scheme.zeros != "none":
        parts.append(f"{scheme.zeros} zeros")
    if weight.bias:
        parts.append("bias")
    return ", ".join(parts)
