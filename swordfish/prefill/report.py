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

from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.count import count_transform, disassemble
from swordfish.prefill.launch import source
from swordfish.prefill.model import MEMORY_BYTES_PER_CLOCK, step_cycles
from swordfish.runtime.registry import compile_many
from swordfish.scheme import Scheme, ZeroKind

__all__ = ["ARCHITECTURES", "VARIANTS", "model_table", "variant_table", "write"]

ARCHITECTURES = tuple(MEMORY_BYTES_PER_CLOCK)
_HOMES: tuple[Literal["tmem", "shared"], ...] = ("tmem", "shared")
_BASE = PrefillConfig(Scheme(4, 128, "bfloat16"))


def _variants() -> Iterator[PrefillConfig]:
    """Every tile with the common scheme, every scheme with the default tile."""
    for home in _HOMES:
        for tokens in (192, 32, 64, 96, 128, 160, 224, 256):
            yield replace(_BASE, tokens=tokens, home=home)
    for tokens in (32, 64, 128):
        yield replace(_BASE, tokens=tokens, ctas=1)
    yield replace(_BASE, tokens=128, slices=2)
    zero_kinds: tuple[ZeroKind, ...] = ("none", "integer", "offset")
    for bits, dtype, zeros, group in itertools.product(
        (4, 8), ("bfloat16", "float16"), zero_kinds, (32, 64, 128, -1)
    ):
        # A channelwise kernel differs from group 128 in one coordinate; 64 lies between its neighbours.
        if group in (32, 128) or (bits, zeros) == (4, "none"):
            yield replace(_BASE, scheme=Scheme(bits, group, dtype, zeros))
    for dtype, zeros in itertools.product(("bfloat16", "float16"), zero_kinds):
        yield replace(_BASE, home="shared", scheme=Scheme(4, 128, dtype, zeros))
        yield replace(_BASE, home="shared", scheme=Scheme(8, 128, dtype, zeros))


VARIANTS: tuple[PrefillConfig, ...] = tuple(dict.fromkeys(_variants()))
"""The kernels of the table, and those that tests compile for every architecture."""


def variant_table(
    configs: tuple[PrefillConfig, ...] = VARIANTS, arch: str = "sm_100a", workers: int = 1
) -> str:
    """One row per kernel, from its compiled artifact.

    Raises:
        CompileError: a kernel does not compile.
    """
    names = ["scheme", "tile", "home", "extra", "registers", "shared bytes", "input stages", "operand stages"]
    names += ["TMEM columns", "Transform warps", "instructions per weight"]
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    artifacts = compile_many([(source(c), arch) for c in configs], workers=workers)
    for c, artifact in zip(configs, artifacts, strict=True):
        count = count_transform(c, artifact, disassemble(artifact))
        s, meta = c.scheme, artifact.metadata
        group = "channelwise" if s.group_size == -1 else f"g{s.group_size}"
        zeros = "" if s.zeros == "none" else f" {s.zeros} zeros"
        extra = "partial sums" if c.partial else ""
        cells = [
            f"int{s.bits} {s.dtype} {group}{zeros}",
            f"{128 * c.ctas} x {c.tokens}",
            c.home,
            extra,
            meta.registers,
            meta.dynamic_shared_bytes,
            c.input_stages,
            c.operand_stages,
            c.tmem_columns,
            4 * c.transform_groups,
            f"{count.per_weight:.2f} {count.kind}",
        ]
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


def memory_table() -> str:
    """What memory adds: cycles to fetch the weights of a step once, and the tokens at which the MMA takes
    as long."""
    rows = [
        "| GPU | bytes per SM and clock | cycles for the weights of a step | tokens at balance |",
        "|---|---|---|---|",
    ]
    step = step_cycles(_BASE)
    for arch, name in (("sm_100a", "B200"), ("sm_110a", "Thor")):
        rate = MEMORY_BYTES_PER_CLOCK[arch]
        cycles = step.weight_bytes / rate
        rows.append(f"| {name} | {rate:.1f} | {cycles:.0f} | {cycles / 2:.0f} |")
    return "\n".join(rows)


def write(path: Path) -> None:
    """Rewrite the tables in a document."""
    text = path.read_text()
    for name, table in (("variants", variant_table()), ("model", model_table()), ("memory", memory_table())):
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    path.write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
