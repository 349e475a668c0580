"""mma.sync with tf32, 8-bit floating-point and 8-bit integer operands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Array, Case
from .data import Stream, f32_bits
from .mma import load_registers
from .ptx import kernel, registers

__all__ = ["cases"]

_BATCH = 8


def cases() -> Iterator[Case]:
    for k in (4, 8):
        for kind in ("near", "wide", "raw"):
            yield _case(f"m16n8k{k}.f32.tf32.{kind}", k, 4, "tf32", "tf32", "f32", kind)
    for a, b in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2")):
        for kind in ("near", "wide"):
            yield _case(f"m16n8k32.f32.{a}.{b}.{kind}", 32, 1, a, b, "f32", kind)
    for a, b, tail in (("s8", "s8", ""), ("u8", "u8", ""), ("s8", "u8", ""), ("s8", "s8", ".satfinite")):
        for k in (16, 32):
            yield _case(f"m16n8k{k}.s32.{a}.{b}{tail}", k, 1, a, b, "s32", "wide", tail)


def _case(name: str, k: int, size: int, a: str, b: str, acc: str, kind: str, tail: str = "") -> Case:
    """``size`` is the bytes of an element: A has ``16 k`` of them in 32 lanes, B ``8 k``."""
    ra, rb = 16 * k * size // 128, 8 * k * size // 128
    prefix, start = ("%f", 0) if acc == "f32" else ("%r", 10)
    d = registers(prefix, 4, start)
    left, right = registers("%r", ra), registers("%r", rb, 4)
    body = [
        load_registers("%r", 0, ra, "P0"),
        load_registers("%r", 4, rb, "P1"),
        load_registers(prefix, start, 4, "P2"),
        f"mma.sync.aligned.m16n8k{k}.row.col{tail}.{acc}.{a}.{b}.{acc} {d}, {left}, {right}, {d};",
        "mul.wide.u32 %rd0, gtid, 16;\nadd.u64 %rd0, %rd0, P3;",
        *[f"st.global.b32 [%rd0+{4 * i}], {prefix}{start + i};" for i in range(4)],
    ]

    def inputs() -> list[Arg]:
        s = Stream(name)
        lanes = 32 * _BATCH
        c = _sums(s, lanes, kind) if acc == "f32" else _counts(s, lanes, tail)
        return [
            _words(s, a, kind, lanes * ra),
            _words(s, b, kind, lanes * rb),
            c,
            np.zeros((lanes, 4), dtype=np.uint32),
        ]

    return Case(
        f"mma/{name}", kernel("ptr ptr ptr ptr", "\n".join(body)), inputs, {3: ()}, grid=(_BATCH, 1, 1)
    )


def _words(s: Stream, kind_of: str, kind: str, count: int) -> Array:
    """Registers of random operands; ``near`` keeps exponents within a factor of 16, ``raw`` leaves low tf32 bits set."""
    if kind_of in ("s8", "u8"):
        return s.u32(count)
    if kind_of == "tf32":
        span = 3 if kind == "near" else 40
        bits = f32_bits(s.signs(count) * np.ldexp(1.0 + s.unit(count), s.integers(-span, span + 1, count)))
        return bits if kind == "raw" else bits & np.uint32(0xFFFFE000)
    exponents, mantissa = (16, 3) if kind_of == "e4m3" else (31, 2)
    middle = exponents // 2
    low, high = (middle - 2, middle + 2) if kind == "near" else (0, exponents - 1)
    code = s.integers(low, high + 1, 4 * count) << mantissa | s.integers(0, 1 << mantissa, 4 * count)
    top = (exponents << mantissa) - 1
    code = np.where(code == top, 0, code) if kind_of == "e4m3" else code
    return (code | s.integers(0, 2, 4 * count) << 7).astype(np.uint8).view(np.uint32)


def _sums(s: Stream, lanes: int, kind: str) -> Array:
    span = 6 if kind == "near" else 24
    return f32_bits(s.signs(lanes, 4) * np.ldexp(1.0 + s.unit(lanes, 4), s.integers(-span, span, lanes, 4)))


def _counts(s: Stream, lanes: int, tail: str) -> Array:
    """Accumulators; with saturation half of them are close to the limits."""
    c = s.u32(lanes, 4)
    limits = s.choose(np.array([0x7FFFF000, 0x80001000], dtype=np.uint32), lanes, 4)
    return np.where(s.unit(lanes, 4) < 0.5, limits, c) if tail else c
