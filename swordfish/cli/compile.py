"""``swordfish compile``: the kernels of a model or of single shapes, built ahead of time into the cache."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from swordfish.cli.weights import Experts, Weight
from swordfish.errors import ArgumentError
from swordfish.runtime import Artifact, DeviceProps, cache_directory, compile_many
from swordfish.runtime.registry import Source

__all__ = ["compile_command", "kernel_requests", "kernel_table", "make_console", "parse_archs"]


def parse_archs(text: str) -> list[DeviceProps]:
    """Properties of the targets in ``"sm_90a,sm_100a"``; raises ``UnsupportedDeviceError`` for an unknown
    one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ArgumentError("--arch", repr(text), "architectures separated by commas, such as sm_90a,sm_100a")
    return [DeviceProps.for_target(name) for name in dict.fromkeys(names)]


def kernel_requests(
    weights: Sequence[Weight | Experts], targets: Sequence[DeviceProps]
) -> dict[tuple[Source, str], Weight | Experts]:
    """Every kernel that the weights may launch on the targets, each once, with a weight that it serves."""
    requests: dict[tuple[Source, str], Weight | Experts] = {}
    for props in targets:
        for weight in weights:
            for source in weight.sources(props):
                requests.setdefault((source, props.arch), weight)
    return requests


def compile_command(weights: Sequence[Weight | Experts], arch: str, workers: int | None) -> int:
    """Build and print a table; raises ``ArgumentError`` if there is nothing to build."""
    targets = parse_archs(arch)
    console = make_console()
    if not weights:
        options = "--checkpoint / --shape / --experts"
        raise ArgumentError(options, "nothing", "at least one checkpoint or shape")
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


def kernel_table(built: Sequence[tuple[Weight | Experts, Artifact]]) -> Table:
    """One row for each weight, kernel and architecture: how many variants, registers, bytes spilled, compile
    time."""
    table = Table("arch", "kernel", "K x N", "scheme", box=SIMPLE_HEAD, pad_edge=False)
    for title in ("count", "registers", "spilled", "seconds"):
        table.add_column(title, justify="right")
    rows: dict[tuple[str, str, Weight | Experts], list[Artifact]] = {}
    for weight, artifact in built:
        rows.setdefault((artifact.metadata.arch, artifact.metadata.entry, weight), []).append(artifact)
    for (arch, entry, weight), artifacts in rows.items():
        facts = [artifact.metadata for artifact in artifacts]
        registers = sorted({fact.registers for fact in facts})
        table.add_row(
            arch,
            entry if len(entry) <= 24 else entry[:21] + "...",
            weight.size,
            str(weight),
            str(len(facts)),
            str(registers[0]) if len(registers) == 1 else f"{registers[0]} to {registers[-1]}",
            str(max(fact.spill_bytes for fact in facts)),
            f"{sum(fact.build_seconds for fact in facts):.2f}",
        )
    return table
