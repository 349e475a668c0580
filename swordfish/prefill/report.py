"""The tables of ``docs/prefill.md``: ``python -m swordfish.prefill.report docs/prefill.md`` compiles and
rewrites them.

Text between ``<!-- NAME -->`` and ``<!-- end NAME -->`` is replaced. SASS is counted where ``nvdisasm`` is
found.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from swordfish.prefill.choose import choose_prefill, even_cycles
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.count import count_transform, disassemble
from swordfish.prefill.launch import source
from swordfish.prefill.model import CLOCK_MHZ, MEMORY_BYTES_PER_CLOCK, step_cycles
from swordfish.runtime.cute import CuteSource
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.registry import compile_many
from swordfish.scheme import CHANNELWISE, Scheme, ZeroKind

__all__ = ["VARIANTS", "model_table", "name", "variant_table", "write"]

_HOMES: tuple[Literal["tmem", "shared"], ...] = ("tmem", "shared")
_GPUS = (("sm_100a", "B200"), ("sm_110a", "Thor"))
_BASE = PrefillConfig(Scheme(4, 128, "bfloat16"))


def _variants() -> Iterator[PrefillConfig]:
    """Every tile with the common scheme, every scheme with the default tile."""
    for home in _HOMES:
        for tokens in (192, 32, 64, 96, 128, 160, 224, 256):
            yield replace(_BASE, tokens=tokens, home=home)
        for tokens in (32, 64, 128):
            yield replace(_BASE, tokens=tokens, ctas=1, home=home)
    yield replace(_BASE, tokens=64, slices=2)
    yield replace(_BASE, tokens=128, ctas=1, slices=2, scheme=Scheme(4, CHANNELWISE, "float16"))
    zero_kinds: tuple[ZeroKind, ...] = ("none", "integer", "offset")
    groups = (32, 64, 128, CHANNELWISE)
    for home, bits, dtype, zeros, group in itertools.product(
        _HOMES, (4, 8), ("bfloat16", "float16"), zero_kinds, groups
    ):
        yield replace(_BASE, home=home, scheme=Scheme(bits, group, dtype, zeros))


def _distinct() -> tuple[PrefillConfig, ...]:
    """Variants with a kernel of their own."""
    found: dict[CuteSource, PrefillConfig] = {}
    for config in _variants():
        found.setdefault(source(config), config)
    return tuple(found.values())


VARIANTS = _distinct()
"""The kernels of the table, each once; tests compile them for every architecture and run them."""


def name(config: PrefillConfig) -> str:
    """Scheme, tile, home and kind of a configuration in a few words."""
    s = config.scheme
    group = "channelwise" if s.group_size == CHANNELWISE else f"g{s.group_size}"
    zeros = "" if s.zeros == "none" else f" {s.zeros} zeros"
    kind = ", partial sums" if config.partial else ""
    tile = f"{128 * config.ctas} x {config.tokens}"
    return f"int{s.bits} {s.dtype} {group}{zeros}, {tile}, {config.home}{kind}"


def variant_table() -> str:
    """One row for each of :data:`VARIANTS`, from its compiled artifact.

    Raises:
        CompileError: a kernel does not compile.
    """
    titles = ["kernel", "registers", "shared bytes", "input stages", "operand stages", "TMEM columns"]
    titles += ["Transform warps", "instructions per weight"]
    rows = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    artifacts = compile_many([(source(c), "sm_100a") for c in VARIANTS], workers=1)
    for c, artifact in zip(VARIANTS, artifacts, strict=True):
        count, meta = count_transform(c, artifact, disassemble(artifact)), artifact.metadata
        cells = [name(c), meta.registers, meta.dynamic_shared_bytes, c.input_stages, c.operand_stages]
        cells += [c.tmem_columns, 4 * c.transform_groups, f"{count.per_weight:.2f} {count.kind}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def model_table() -> str:
    """Cycles per 64-deep step of the model, for the common scheme."""
    head = (
        "| tile | home | MMA | Transform issue | shared memory | bytes by TMA | bound | of the MMA's rate |"
    )
    rows = [head, "|---" * 8 + "|"]
    for tokens, home in itertools.product((64, 128, 192, 256), _HOMES):
        step = step_cycles(replace(_BASE, tokens=tokens, home=home))
        name, cycles = step.bound()
        fetched = step.weight_bytes + step.token_bytes
        rows.append(
            f"| 256 x {tokens} | {home} | {step.mma:.0f} | {step.transform:.0f} | {step.shared:.0f} | "
            f"{fetched:,.0f} | {name} | {100 * step.mma / cycles:.0f} % |"
        )
    return "\n".join(rows)


def split_table() -> str:
    """The choice for few tokens, and how much of its time an even division of all work would take."""
    rows = ["| GPU | K x N | M | tile | slices of K | us | unsplit | even |", "|---" * 8 + "|"]
    for arch, label in _GPUS:
        props = DeviceProps.for_target(arch)
        for (k, n), m in itertools.product(
            ((4096, 4096), (14336, 4096), (4096, 28672)), (64, 128, 256, 512, 1024)
        ):
            args = (m, n, k, _BASE.scheme, props)
            choice, unsplit = choose_prefill(*args), choose_prefill(*args, split=False)
            config, cycles = choice.config, choice.cycles
            others = (unsplit.cycles / cycles, even_cycles(*args) / cycles)
            rows.append(
                f"| {label} | {k} x {n} | {m} | {128 * config.ctas} x {config.tokens} | {config.slices} | "
                f"{cycles / CLOCK_MHZ[arch]:.1f} | {others[0]:.2f} | {others[1]:.2f} |"
            )
    return "\n".join(rows)


def memory_table() -> str:
    """What memory adds: cycles to fetch the weights of a step once, and the tokens at which the MMA takes
    as long."""
    rows = [
        "| GPU | bytes per SM and clock | cycles for the weights of a step | tokens at balance |",
        "|---|---|---|---|",
    ]
    step = step_cycles(_BASE)
    for arch, label in _GPUS:
        rate = MEMORY_BYTES_PER_CLOCK[arch]
        cycles = step.weight_bytes / rate
        rows.append(f"| {label} | {rate:.1f} | {cycles:.0f} | {cycles / 2:.0f} |")
    return "\n".join(rows)


def write(path: Path) -> None:
    """Rewrite the tables in a document."""
    text = path.read_text()
    tables = {
        "variants": variant_table(),
        "model": model_table(),
        "memory": memory_table(),
        "split": split_table(),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    path.write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
