"""Cases that apply a list of instructions to the same operands: an element a thread, a row an instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .case import Arg, Array, Case
from .data import Stream, bf16_bits, f16_bits, f32_bits
from .ptx import kernel

__all__ = [
    "bf16_patterns",
    "elementwise",
    "f16_patterns",
    "f16x2_patterns",
    "f32_patterns",
    "f64_patterns",
    "u32_patterns",
]

_DTYPE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NAMES = "abcdefgh"


def elementwise(
    name: str,
    ops: Sequence[str] | dict[str, str],
    operands: Callable[[Stream], Sequence[Array]],
    out_bytes: int,
    *,
    ulp: int = 0,
) -> Case:
    """``ops`` are PTX lines in which ``$d`` is the result and ``$a, $b, ...`` the operands (bit-typed registers).

    ``operands`` returns unsigned arrays of one length (a multiple of 32). The label of a row is the instruction's opcode.
    """
    table = ops if isinstance(ops, dict) else {op.split(None, 1)[0]: op for op in ops}
    assert len(table) == len(ops), f"{name}: two rows have the same label"
    values = operands(Stream(name))
    count = len(values[0])
    threads = min(count, 128)
    lines = []
    for i, v in enumerate(values):
        bits = 8 * max(v.itemsize, 2)
        load = f"ld.global.b{8 * v.itemsize}" if v.itemsize > 1 else "ld.global.u8"
        lines.append(
            f".reg .b{bits} {_NAMES[i]};\nmul.wide.u32 %rd0, gtid, {v.itemsize};\n"
            f"add.u64 %rd0, %rd0, P{i};\n{load} {_NAMES[i]}, [%rd0];"
        )
    out = len(values)
    lines.append(
        f".reg .b{8 * out_bytes} d;\nmul.wide.u32 %rd0, gtid, {out_bytes};\nadd.u64 %rd0, %rd0, P{out};"
    )
    for row, op in enumerate(table.values()):
        text = op
        for letter in ("d", *_NAMES[:out]):
            text = text.replace(f"${letter}", letter)
        lines.append(f"{text}\nst.global.b{8 * out_bytes} [%rd0+{row * count * out_bytes}], d;")
    ptx = kernel("ptr " * (out + 1), "\n".join(lines))

    def inputs() -> list[Arg]:
        return [*operands(Stream(name)), np.zeros((len(table), count), dtype=_DTYPE[out_bytes])]

    return Case(name, ptx, inputs, {out: tuple(table)}, (count // threads, 1, 1), (threads, 1, 1), ulp=ulp)


def _mix(special: Array, random: Array, stream: Stream) -> Array:
    """The special values first, in random order, then the random ones."""
    return np.concatenate([special[stream.permutation(len(special))], random[len(special) :]])


def f32_patterns(s: Stream, count: int, low: int = -149, high: int = 128) -> Array:
    """Special values, ties and random patterns whose exponent is uniform in ``[low, high]``."""
    special = np.array(
        [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x3F800000,
         0x3F800001, 0x3F7FFFFF, 0x3F000000, 0x4B000000, 0x4B000001, 0x4EFFFFFF, 0x4F000000, 0x4F800000, 0x477FE000,
         0x477FF000, 0x477FEFFF, 0x38800000, 0x387FC000, 0x33800000, 0x33000000, 0x33000001, 0x3F808000, 0x3F818000],
        dtype=np.uint32,
    )  # fmt: skip
    special = np.concatenate([special, special | np.uint32(0x80000000)])
    exponent = np.maximum(s.integers(low, high + 1, count), -149)
    mantissa = 1.0 + s.unit(count)
    mantissa = np.where(
        s.unit(count) < 0.25, 1.0 + np.floor((mantissa - 1.0) * 256 + 0.5) / 256 + 2.0**-9, mantissa
    )
    return _mix(special, f32_bits(s.signs(count) * np.ldexp(mantissa, exponent)), s)


def f64_patterns(s: Stream, count: int, low: int = -160, high: int = 140) -> Array:
    special = np.array(
        [0, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF0000000000001,
         0x7FF8000000000000, 0x47EFFFFFF0000000, 0x47EFFFFFEFFFFFFF, 0x36A0000000000000, 0x3690000000000000,
         0x3690000000000001, 0x3FF0000010000000, 0x3FF0000030000000],
        dtype=np.uint64,
    )  # fmt: skip
    special = np.concatenate([special, special | np.uint64(1 << 63)])
    value = s.signs(count) * np.ldexp(1.0 + s.unit(count), s.integers(low, high + 1, count))
    return _mix(special, value.view(np.uint64), s)


def f16_patterns(s: Stream, count: int) -> Array:
    special = np.array(
        [0, 1, 2, 0x3FF, 0x400, 0x401, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x3C00, 0x3800, 0x3801],
        dtype=np.uint16,
    )
    return _mix(np.concatenate([special, special | np.uint16(0x8000)]), s.u16(count), s)


def bf16_patterns(s: Stream, count: int) -> Array:
    special = np.array(
        [0, 1, 2, 0x7F, 0x80, 0x81, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF, 0x3F80, 0x3F00, 0x3F01],
        dtype=np.uint16,
    )
    return _mix(np.concatenate([special, special | np.uint16(0x8000)]), s.u16(count), s)


def f16x2_patterns(s: Stream, count: int, fmt: str = "f16", *, near: bool = False) -> Array:
    """Packed pairs; with ``near``, values of exponents close to 1 so that sums round instead of absorbing."""
    if near:
        bits = f16_bits if fmt == "f16" else bf16_bits
        half = bits(s.signs(2 * count) * np.ldexp(1.0 + s.unit(2 * count), s.integers(-5, 6, 2 * count)))
    else:
        half = (f16_patterns if fmt == "f16" else bf16_patterns)(s, 2 * count)
    return half[:count].astype(np.uint32) | half[count:].astype(np.uint32) << np.uint32(16)


def u32_patterns(s: Stream, count: int) -> Array:
    """Special values, then random words of every width."""
    special = np.array([0, 1, 2, 31, 32, 33, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                        0x80808080, 0x7F7F7F7F, 0xFF, 0x00FFFFFF, 0x01000001, 0x01000003], dtype=np.uint32)  # fmt: skip
    return _mix(special, s.u32(count) >> s.integers(0, 32, count).astype(np.uint32), s)
