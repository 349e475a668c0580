"""ldmatrix, stmatrix and movmatrix: every count, plain and transposed, with rows at scattered addresses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Case
from .data import Stream
from .ptx import copy_in, copy_out, kernel, registers

__all__ = ["cases"]

_ROWS = 64


def cases() -> Iterator[Case]:
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            yield _load(count, trans)
            yield _store(count, trans)
    body = (
        "mul.wide.u32 %rd0, tid, 4;\nadd.u64 P0, P0, %rd0;\nadd.u64 P1, P1, %rd0;\nld.global.b32 %r0, [P0];\n"
        "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;\nst.global.b32 [P1], %r1;"
    )

    def inputs() -> list[Arg]:
        return [Stream("movmatrix").u32(32), np.zeros(32, dtype=np.uint32)]

    yield Case("matrix/movmatrix", kernel("ptr ptr", body), inputs, {1: ()})


def _row_address() -> str:
    return (
        "mul.wide.u32 %rd0, tid, 4;\nadd.u64 %rd0, %rd0, P1;\nld.global.b32 %r8, [%rd0];\n"
        "add.u32 %r8, %r8, smem;"
    )


def _load(count: int, trans: str) -> Case:
    name = f"matrix/ldmatrix.x{count}{trans}"
    body = [
        copy_in("P0", _ROWS * 4, 32),
        _row_address(),
        "bar.sync 0;",
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers('%r', count)}, [%r8];",
        f"mul.wide.u32 %rd0, tid, {4 * count};\nadd.u64 %rd0, %rd0, P2;",
        *[f"st.global.b32 [%rd0+{4 * i}], %r{i};" for i in range(count)],
    ]

    def inputs() -> list[Arg]:
        s = Stream(name)
        rows = s.permutation(_ROWS)[:32].astype(np.uint32) * np.uint32(16)
        return [s.u32(_ROWS * 4), rows, np.zeros((32, count), dtype=np.uint32)]

    return Case(name, kernel("ptr ptr ptr", "\n".join(body)), inputs, {2: ()}, shared_bytes=_ROWS * 16)


def _store(count: int, trans: str) -> Case:
    name = f"matrix/stmatrix.x{count}{trans}"
    body = [
        copy_in("P2", _ROWS * 4, 32),
        _row_address(),
        f"mul.wide.u32 %rd0, tid, {4 * count};\nadd.u64 %rd0, %rd0, P0;",
        *[f"ld.global.b32 %r{i}, [%rd0+{4 * i}];" for i in range(count)],
        "bar.sync 0;",
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r8], {registers('%r', count)};",
        "bar.sync 0;",
        copy_out("P2", _ROWS * 4, 32),
    ]

    def inputs() -> list[Arg]:
        s = Stream(name)
        rows = s.permutation(_ROWS)[:32].astype(np.uint32) * np.uint32(16)
        return [s.u32(32, count), rows, np.full(_ROWS * 4, 0xEEEEEEEE, dtype=np.uint32)]

    return Case(name, kernel("ptr ptr ptr", "\n".join(body)), inputs, {2: ()}, shared_bytes=_ROWS * 16)
