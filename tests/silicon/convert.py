"""Conversions between floating-point and integer types in every rounding mode, special and random patterns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case
from .elementwise import (
    bf16_patterns,
    elementwise,
    f16_patterns,
    f16x2_patterns,
    f32_patterns,
    f64_patterns,
    u32_patterns,
)

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    yield from _from_f32()
    yield from _to_f32()
    yield from _integers()
    yield from _packed()


def _from_f32() -> Iterator[Case]:
    narrow = [
        f"cvt.{mode}.{to}.f32 $d, $a;"
        for to in ("f16", "bf16")
        for mode in ("rn", "rz", "rn.relu", "rz.relu")
    ]
    narrow += [
        f"cvt.{mode}.f16.f32 $d, $a;"
        for mode in ("rm", "rp", "rn.ftz", "rn.sat", "rn.satfinite", "rz.satfinite")
    ]
    narrow += ["cvt.rm.bf16.f32 $d, $a;", "cvt.rp.bf16.f32 $d, $a;", "cvt.rn.satfinite.bf16.f32 $d, $a;"]
    yield elementwise("convert/f32.half.near", narrow, lambda s: [f32_patterns(s, 384, -28, 17)], 2)
    yield elementwise("convert/f32.half.wide", narrow, lambda s: [f32_patterns(s, 384)], 2)
    itself = [
        f"cvt.{mode}.f32.f32 $d, $a;"
        for mode in ("rni", "rzi", "rmi", "rpi", "sat", "ftz", "sat.ftz", "rni.ftz")
    ]
    itself += ["abs.f32 $d, $a;", "neg.f32 $d, $a;", "abs.ftz.f32 $d, $a;", "neg.ftz.f32 $d, $a;"]
    yield elementwise("convert/f32.f32", itself, lambda s: [f32_patterns(s, 256, -30, 30)], 4)
    tf32 = ["cvt.rna.tf32.f32 $d, $a;"]
    yield elementwise("convert/f32.tf32", tf32, lambda s: [f32_patterns(s, 256)], 4)
    whole = [
        f"cvt.{mode}.{to}.f32 $d, $a;"
        for to in ("s32", "u32")
        for mode in ("rni", "rzi", "rmi", "rpi", "rzi.ftz")
    ]
    whole += [f"cvt.{mode}.sat.s32.f32 $d, $a;" for mode in ("rni",)]
    yield elementwise("convert/f32.integer", whole, lambda s: [f32_patterns(s, 384, -3, 34)], 4)
    short = [f"cvt.{mode}.{to}.f32 $d, $a;" for to in ("s16", "u16") for mode in ("rni", "rzi")]
    yield elementwise("convert/f32.short", short, lambda s: [f32_patterns(s, 256, -3, 18)], 2)
    byte = [f"cvt.rni.{to}.f32 $d, $a;" for to in ("s8", "u8")]
    byte += [f"cvt.rni.sat.{to}.f32 $d, $a;" for to in ("s8", "u8")]
    yield elementwise("convert/f32.byte", byte, lambda s: [f32_patterns(s, 256, -3, 10)], 4)
    long = [f"cvt.{mode}.{to}.f32 $d, $a;" for to in ("s64", "u64") for mode in ("rni", "rzi", "rmi")]
    yield elementwise("convert/f32.long", long, lambda s: [f32_patterns(s, 256, -3, 67)], 8)
    yield elementwise("convert/f32.f64", ["cvt.f64.f32 $d, $a;"], lambda s: [f32_patterns(s, 256)], 8)


def _to_f32() -> Iterator[Case]:
    yield elementwise(
        "convert/f16.f32",
        ["cvt.f32.f16 $d, $a;", "cvt.ftz.f32.f16 $d, $a;"],
        lambda s: [f16_patterns(s, 1024)],
        4,
    )
    yield elementwise("convert/bf16.f32", ["cvt.f32.bf16 $d, $a;"], lambda s: [bf16_patterns(s, 512)], 4)
    whole = [f"cvt.{mode}.{to}.f16 $d, $a;" for to in ("s32", "u32") for mode in ("rni", "rzi", "rmi", "rpi")]
    yield elementwise("convert/f16.integer", whole, lambda s: [f16_patterns(s, 256)], 4)
    own = [f"cvt.{mode}.f16.f16 $d, $a;" for mode in ("rni", "rzi", "rmi", "rpi", "sat")]
    own += ["abs.f16 $d, $a;", "neg.f16 $d, $a;"]
    yield elementwise("convert/f16.f16", own, lambda s: [f16_patterns(s, 512)], 2)
    between = ["cvt.rn.bf16.f16 $d, $a;", "cvt.rz.bf16.f16 $d, $a;"]
    yield elementwise("convert/f16.bf16", between, lambda s: [f16_patterns(s, 512)], 2)
    back = ["cvt.rn.f16.bf16 $d, $a;", "cvt.rz.f16.bf16 $d, $a;", "abs.bf16 $d, $a;", "neg.bf16 $d, $a;"]
    back += [f"cvt.{mode}.bf16.bf16 $d, $a;" for mode in ("rni", "rzi", "rmi", "rpi")]
    yield elementwise("convert/bf16.f16", back, lambda s: [bf16_patterns(s, 512)], 2)
    whole = [f"cvt.{mode}.{to}.bf16 $d, $a;" for to in ("s32", "u32") for mode in ("rni", "rzi")]
    yield elementwise("convert/bf16.integer", whole, lambda s: [bf16_patterns(s, 256)], 4)
    double = [f"cvt.{mode}.f32.f64 $d, $a;" for mode in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat")]
    double += [f"cvt.{mode}.s32.f64 $d, $a;" for mode in ("rni", "rzi")]
    yield elementwise("convert/f64.f32", double, lambda s: [f64_patterns(s, 256)], 4)
    yield elementwise(
        "convert/f64.half", ["cvt.rn.f16.f64 $d, $a;"], lambda s: [f64_patterns(s, 256, -28, 17)], 2
    )


def _integers() -> Iterator[Case]:
    to_float = [f"cvt.{mode}.f32.{of} $d, $a;" for of in ("s32", "u32") for mode in ("rn", "rz", "rm", "rp")]
    yield elementwise("convert/integer.f32", to_float, lambda s: [u32_patterns(s, 256)], 4)
    to_half = [
        f"cvt.{mode}.{to}.{of} $d, $a;"
        for of in ("s32", "u32")
        for to in ("f16", "bf16")
        for mode in ("rn", "rz")
    ]
    yield elementwise("convert/integer.half", to_half, lambda s: [u32_patterns(s, 256)], 2)
    to_double = ["cvt.rn.f64.s32 $d, $a;", "cvt.rn.f64.u32 $d, $a;"]
    yield elementwise("convert/integer.f64", to_double, lambda s: [u32_patterns(s, 128)], 8)
    long = [f"cvt.{mode}.f32.{of} $d, $a;" for of in ("s64", "u64") for mode in ("rn", "rz", "rm")]
    yield elementwise(
        "convert/long.f32", long, lambda s: [s.u64(256) >> s.integers(0, 64, 256).astype(np.uint64)], 4
    )
    widths = [f"cvt.{to}.{of} $d, $a;" for of in ("s32", "u32") for to in ("s8", "u8", "s16", "u16")]
    widths = [op.replace("$d, $a;", "t, $a; cvt.s32.s16 $d, t;") for op in widths]
    table = {op.split(" ")[0]: "{ .reg .b16 t; " + op + " }" for op in widths}
    table |= {
        f"cvt.sat.{to}.{of}": f"{{ .reg .b16 t; cvt.sat.{to}.{of} t, $a; cvt.s32.s16 $d, t; }}"
        for to, of in (
            ("s8", "s32"),
            ("u8", "s32"),
            ("s16", "s32"),
            ("u16", "s32"),
            ("u8", "u32"),
            ("s8", "u32"),
        )
    }
    yield elementwise("convert/integer.narrow", table, lambda s: [u32_patterns(s, 256)], 4)
    widen = {
        f"cvt.{to}.{of}": f"{{ .reg .b16 t; cvt.u16.u32 t, $a; cvt.{to}.{of} $d, t; }}"
        for to in ("s32", "u32") for of in ("s8", "u8", "s16", "u16")
    }  # fmt: skip
    yield elementwise("convert/integer.widen", widen, lambda s: [u32_patterns(s, 256)], 4)
    yield elementwise(
        "convert/integer.long",
        ["cvt.s64.s32 $d, $a;", "cvt.u64.u32 $d, $a;"],
        lambda s: [u32_patterns(s, 64)],
        8,
    )
    half = [f"cvt.rn.{to}.{of} $d, $a;" for of in ("s16", "u16") for to in ("f16", "bf16")]
    yield elementwise("convert/short.half", half, lambda s: [s.u16(256)], 2)
    table = {
        f"cvt.rn.f32.{s}8": f"{{ .reg .b32 t; cvt.{s}32.{s}8 t, $a; cvt.rn.f32.{s}32 $d, t; }}"
        for s in ("s", "u")
    }
    yield elementwise("convert/byte.f32", table, lambda s: [s.u16(128)], 4)


def _packed() -> Iterator[Case]:
    pairs = [
        f"cvt.{mode}.{to}.f32 $d, $a, $b;"
        for to in ("f16x2", "bf16x2")
        for mode in ("rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite")
    ]
    yield elementwise(
        "convert/f32.pair", pairs, lambda s: [f32_patterns(s, 256, -28, 17), f32_patterns(s, 256)], 4
    )
    fp8 = [f"cvt.rn.satfinite.{to}.f32 $d, $a, $b;" for to in ("e4m3x2", "e5m2x2")]
    fp8 += [f"cvt.rn.satfinite.relu.{to}.f32 $d, $a, $b;" for to in ("e4m3x2", "e5m2x2")]
    yield elementwise(
        "convert/f32.fp8", fp8, lambda s: [f32_patterns(s, 256, -20, 17), f32_patterns(s, 256)], 2
    )
    to_fp8 = [f"cvt.rn.satfinite.{to}.f16x2 $d, $a;" for to in ("e4m3x2", "e5m2x2")]
    yield elementwise("convert/f16x2.fp8", to_fp8, lambda s: [f16x2_patterns(s, 256)], 2)
    of_fp8 = [f"cvt.rn.{relu}f16x2.{of} $d, $a;" for of in ("e4m3x2", "e5m2x2") for relu in ("", "relu.")]
    yield elementwise("convert/fp8.f16x2", of_fp8, lambda s: [s.u16(256)], 4)
