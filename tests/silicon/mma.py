"""mma.sync with float16 and bfloat16 operands: one warp a problem, registers in, registers out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Case
from .fragments import pack_a, pack_b, pack_c16, pack_c32
from .matmul_data import KINDS, operands
from .ptx import kernel, registers

__all__ = ["cases", "load_registers"]

_BATCH = 8


def load_registers(prefix: str, start: int, count: int, pointer: str) -> str:
    """Registers ``start ...`` of this thread from ``pointer[gtid][count]``."""
    lines = [f"mul.wide.u32 %rd0, gtid, {4 * count};", f"add.u64 %rd0, %rd0, {pointer};"]
    lines += [f"ld.global.b32 {prefix}{start + i}, [%rd0+{4 * i}];" for i in range(count)]
    return "\n".join(lines)


def mma_ptx(k: int, fmt: str, acc: str) -> str:
    ra, rb, rc = k // 4, k // 8, 4 if acc == "f32" else 2
    prefix = "%f" if acc == "f32" else "%r"
    start = 0 if acc == "f32" else 10
    c = registers(prefix, rc, start)
    body = [
        load_registers("%r", 0, ra, "P0"),
        load_registers("%r", 4, rb, "P1"),
        load_registers(prefix, start, rc, "P2"),
        f"mma.sync.aligned.m16n8k{k}.row.col.{acc}.{fmt}.{fmt}.{acc} {c}, {registers('%r', ra)}, {registers('%r', rb, 4)}, {c};",
        f"mul.wide.u32 %rd0, gtid, {4 * rc};\nadd.u64 %rd0, %rd0, P3;",
        *[f"st.global.b32 [%rd0+{4 * i}], {prefix}{start + i};" for i in range(rc)],
    ]
    return kernel("ptr ptr ptr ptr", "\n".join(body))


def cases() -> Iterator[Case]:
    for k, fmt, acc in (
        (16, "f16", "f32"),
        (16, "bf16", "f32"),
        (16, "f16", "f16"),
        (8, "f16", "f32"),
        (8, "f16", "f16"),
        (8, "bf16", "f32"),
    ):
        for kind in KINDS:
            yield _case(k, fmt, acc, kind)


def _case(k: int, fmt: str, acc: str, kind: str) -> Case:
    name = f"mma/m16n8k{k}.{acc}.{fmt}.{kind}"

    def inputs() -> list[Arg]:
        a, b, c = operands(kind, fmt, acc, _BATCH, 16, 8, k, name=name)
        packed = pack_c32(c) if acc == "f32" else pack_c16(c)
        return [pack_a(a), pack_b(b), packed, np.zeros_like(packed)]

    return Case(name, mma_ptx(k, fmt, acc), inputs, {3: ()}, grid=(_BATCH, 1, 1))
