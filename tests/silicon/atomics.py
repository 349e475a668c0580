"""atom and red on global and shared memory: returned values, results, rounding and packed 16-bit adds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Array, Case
from .data import Stream
from .elementwise import f16x2_patterns, f32_patterns, f64_patterns, u32_patterns
from .ptx import kernel

__all__ = ["cases"]

_COUNT = 256
_INTEGER = [
    ("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "u32"), ("min", "s32"), ("min", "u64"), ("min", "s64"),
    ("max", "u32"), ("max", "s32"), ("max", "s64"), ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32"),
    ("and", "b64"), ("or", "b64"), ("xor", "b64"), ("exch", "b32"), ("exch", "b64"), ("cas", "b16"), ("cas", "b32"), ("cas", "b64"),
]  # fmt: skip
_FLOAT = [
    ("add", "f32"),
    ("add", "f64"),
    ("add.noftz", "f16"),
    ("add.noftz", "bf16"),
    ("add.noftz", "f16x2"),
    ("add.noftz", "bf16x2"),
]


def cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        for op, kind in _INTEGER + _FLOAT:
            yield _atom(space, op, kind)
    for op, kind in _INTEGER + _FLOAT:
        if op not in ("exch", "cas"):
            yield _red(op, kind)
    for op, count, kind in (("add", 2, "f32"), ("add", 4, "f32"), ("add.noftz", 8, "f16"), ("add.noftz", 2, "f16"), ("add.noftz", 4, "f16x2"),
                            ("min.noftz", 4, "f16"), ("max.noftz", 8, "bf16"), ("add.noftz", 2, "bf16x2")):  # fmt: skip
        yield _vector_red(op, count, kind)
    yield _contended()
    yield _sequence_of_adds()


def _size(kind: str) -> int:
    """Bytes of a type such as ``u32``, ``bf16`` or ``f16x2``."""
    return int(kind.removesuffix("x2").lstrip("usbf")) // 8 * (2 if kind.endswith("x2") else 1)


def _operands(s: Stream, op: str, kind: str, count: int = _COUNT) -> Array:
    """Patterns of ``kind``; float ones near 1 in the first half, special and wide in the second."""
    half = count // 2
    if kind == "f32":
        return np.concatenate([f32_patterns(s, half + 60, -8, 8)[60:], f32_patterns(s, half)])
    if kind == "f64":
        return f64_patterns(s, count, -6, 6)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        fmt = kind.removesuffix("x2")
        both = np.concatenate([f16x2_patterns(s, half, fmt, near=True), f16x2_patterns(s, half, fmt)])
        return both if kind.endswith("x2") else (both & np.uint32(0xFFFF)).astype(np.uint16)
    if _size(kind) == 8:
        return s.u64(count) >> s.integers(0, 64, count).astype(np.uint64)
    if _size(kind) == 2:
        return s.u16(count) & np.uint16(3)
    if op in ("inc", "dec", "cas"):
        return s.u32(count) & np.uint32(3)
    return u32_patterns(s, count)


def _prologue(size: int) -> str:
    lines = [f"mul.wide.u32 %rd0, gtid, {size};"]
    lines += [f"add.u64 P{i}, P{i}, %rd0;" for i in range(4)]
    return "\n".join(lines)


def _atom(space: str, op: str, kind: str) -> Case:
    """One location a thread: arguments memory, operand, old value, second operand of cas."""
    size = _size(kind)
    name = f"atom/{space}.{op}.{kind}"
    bits = 8 * size
    body = [
        f".reg .b{bits} v, w, old;",
        _prologue(size),
        f"ld.global.b{bits} v, [P1];\nld.global.b{bits} w, [P3];",
    ]
    extra = ", w" if op == "cas" else ""
    if space == "global":
        body.append(f"atom.global.{op}.{kind} old, [P0], v{extra};")
    else:
        body.append(
            f"mad.lo.u32 %r0, tid, {size}, smem;\nld.global.b{bits} old, [P0];\n"
            f"st.shared.b{bits} [%r0], old;\n"
            f"atom.shared.{op}.{kind} old, [%r0], v{extra};\nld.shared.b{bits} w, [%r0];\n"
            f"st.global.b{bits} [P0], w;"
        )
    body.append(f"st.global.b{bits} [P2], old;")

    def inputs() -> list[Arg]:
        s = Stream(name)
        memory, value, other = (_operands(s, op, kind) for _ in range(3))
        if op == "cas" and size == 8:
            memory = np.where(s.unit(_COUNT) < 0.5, value, memory)
        return [memory, value, np.zeros_like(memory), other]

    return Case(
        name,
        kernel("ptr ptr ptr ptr", "\n".join(body)),
        inputs,
        {0: (), 2: ()},
        block=(_COUNT, 1, 1),
        shared_bytes=_COUNT * size,
    )


def _red(op: str, kind: str) -> Case:
    size = _size(kind)
    name = f"red/global.{op}.{kind}"
    body = (
        f".reg .b{8 * size} v;\nmul.wide.u32 %rd0, gtid, {size};\nadd.u64 P0, P0, %rd0;\n"
        f"add.u64 P1, P1, %rd0;\nld.global.b{8 * size} v, [P1];\n"
        f"red.global.{op}.{kind} [P0], v;"
    )

    def inputs() -> list[Arg]:
        s = Stream(name)
        return [_operands(s, op, kind), _operands(s, op, kind)]

    return Case(name, kernel("ptr ptr", body), inputs, {0: ()}, block=(_COUNT, 1, 1))


def _vector_red(op: str, count: int, kind: str) -> Case:
    name = f"red/global.v{count}.{op}.{kind}"
    size = _size(kind)
    threads = 32
    regs = ", ".join(f"v{i}" for i in range(count))
    opcode = f"red.global.{op}.v{count}.{kind}"
    body = [
        f".reg .b{8 * size} v<{count}>;",
        f"mul.wide.u32 %rd0, gtid, {size * count};\nadd.u64 P0, P0, %rd0;\nadd.u64 P1, P1, %rd0;",
    ]
    body += [f"ld.global.b{8 * size} v{i}, [P1+{size * i}];" for i in range(count)]
    body.append(f"{opcode} [P0], {{{regs}}};")

    def inputs() -> list[Arg]:
        s = Stream(name)
        return [_operands(s, op, kind, threads * count), _operands(s, op, kind, threads * count)]

    return Case(name, kernel("ptr ptr", "\n".join(body)), inputs, {0: ()}, block=(threads, 1, 1))


def _contended() -> Case:
    """Integer reductions of 512 threads on 8 words: the result does not depend on the order."""
    body = [
        "mul.wide.u32 %rd0, gtid, 4;\nadd.u64 %rd0, %rd0, P1;\nld.global.u32 %r1, [%rd0];\n"
        "and.b32 %r2, gtid, 7;\nmul.wide.u32 %rd1, %r2, 4;\nadd.u64 %rd1, %rd1, P0;",
        *[
            f"red.global.{op} [%rd1+{32 * i}], %r1;"
            for i, op in enumerate(("add.u32", "min.s32", "max.u32", "xor.b32", "and.b32", "or.b32"))
        ],
        "red.relaxed.gpu.global.add.u32 [%rd1+192], 1;\n"
        "red.release.sys.global.inc.u32 [%rd1+224], 20;\n"
        "atom.acq_rel.gpu.global.dec.u32 %r3, [%rd1+256], 9;",
    ]

    def inputs() -> list[Arg]:
        s = Stream("contended")
        return [s.u32(9, 8), s.u32(512) | np.uint32(0x100)]

    return Case("atom/contended", kernel("ptr ptr", "\n".join(body)), inputs, {0: ()}, (4, 1, 1), (128, 1, 1))


def _sequence_of_adds() -> Case:
    """Each thread adds eight float32 values to its own word one after the other and keeps every old value."""
    body = [
        "mul.wide.u32 %rd0, gtid, 4;\nadd.u64 P0, P0, %rd0;\nadd.u64 P1, P1, %rd0;\nadd.u64 P2, P2, %rd0;"
    ]
    body += [
        f"ld.global.b32 %f0, [P1+{256 * i}];\natom.global.add.f32 %f1, [P0], %f0;\n"
        f"st.global.b32 [P2+{256 * i}], %f1;"
        for i in range(8)
    ]

    def inputs() -> list[Arg]:
        s = Stream("sequence")
        return [f32_patterns(s, 64, -4, 4), f32_patterns(s, 512, -10, 10), np.zeros((8, 64), dtype=np.uint32)]

    return Case(
        "atom/sequence.f32", kernel("ptr ptr ptr", "\n".join(body)), inputs, {0: (), 2: ()}, block=(64, 1, 1)
    )
