"""Floating-point arithmetic in float32, float16x2, bfloat16x2 and float64: rounding, subnormals, NaN, order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Array, Case
from .data import Stream, f32_bits, f32_value
from .elementwise import bf16_patterns, elementwise, f16_patterns, f16x2_patterns, f32_patterns, f64_patterns

__all__ = ["cases"]

_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def cases() -> Iterator[Case]:
    yield from _single()
    yield from _packed()
    yield from _scalar_half()
    yield from _comparisons()
    yield from _mixed()
    yield from _double()
    yield from _approximate()


def _single() -> Iterator[Case]:
    rounds = ("rn", "rz", "rm", "rp")
    two = [f"{op}.{mode}.f32 $d, $a, $b;" for op in ("add", "sub", "mul") for mode in rounds]
    two += [f"{op}.rn.{tail}.f32 $d, $a, $b;" for op in ("add", "mul") for tail in ("ftz", "sat", "ftz.sat")]
    yield elementwise(
        "arith/f32.two.near", two, lambda s: [f32_patterns(s, 192, -6, 6), f32_patterns(s, 192, -6, 6)], 4
    )
    yield elementwise(
        "arith/f32.two.tiny",
        two,
        lambda s: [f32_patterns(s, 128, -149, -120), f32_patterns(s, 128, -149, 2)],
        4,
    )
    yield elementwise("arith/f32.two.wide", two, lambda s: [f32_patterns(s, 128), f32_patterns(s, 128)], 4)
    three = [f"fma.{mode}.f32 $d, $a, $b, $c;" for mode in (*rounds, "rn.ftz", "rn.sat", "rz.ftz")]
    yield elementwise(
        "arith/f32.fma.near", three, lambda s: [f32_patterns(s, 192, -6, 6) for _ in range(3)], 4
    )
    yield elementwise("arith/f32.fma.cancel", three, _cancelling, 4)
    yield elementwise("arith/f32.fma.tiny", three, _tiny, 4)
    yield elementwise("arith/f32.fma.wide", three, lambda s: [f32_patterns(s, 192) for _ in range(3)], 4)
    extremes = [f"{op}{tail}.f32 $d, $a, $b;" for op in ("min", "max")
                for tail in ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs")]  # fmt: skip
    yield elementwise("arith/f32.extremes", extremes, _ordered_pair, 4)
    divide = [f"{op}.f32 $d, $a, $b;" for op in ("div.rn", "div.rz")] + ["copysign.f32 $d, $a, $b;"]
    yield elementwise(
        "arith/f32.divide",
        divide,
        lambda s: [f32_patterns(s, 256, -60, 60), f32_patterns(s, 256, -80, 80)],
        4,
    )
    one = [f"{op}.{mode}.f32 $d, $a;" for op in ("rcp", "sqrt") for mode in ("rn", "rz", "rm", "rp")]
    yield elementwise("arith/f32.root", one, lambda s: [f32_patterns(s, 256)], 4)


def _cancelling(s: Stream) -> list[Array]:
    """c is near -a b, so that the bits under the product's rounding decide."""
    a, b = f32_patterns(s, 192, -6, 6), f32_patterns(s, 192, -6, 6)
    with np.errstate(all="ignore"):
        c = f32_bits(-f32_value(a) * f32_value(b)) + s.integers(-2, 3, 192).astype(np.uint32)
    return [a, b, c]


def _tiny(s: Stream) -> list[Array]:
    """Products and addends around float32's subnormals."""
    return [f32_patterns(s, 192, -80, -60), f32_patterns(s, 192, -80, -50), f32_patterns(s, 192, -149, -125)]


def _ordered_pair(s: Stream) -> list[Array]:
    """Random pairs, equal pairs, pairs that differ in sign, zeros of both signs."""
    a, b = f32_patterns(s, 192), f32_patterns(s, 192)
    pick = s.integers(0, 4, 192)
    return [a, np.where(pick == 0, a, np.where(pick == 1, a ^ np.uint32(0x80000000), b))]


def _packed() -> Iterator[Case]:
    for fmt in ("f16", "bf16"):
        two = [f"{op}.{fmt}x2 $d, $a, $b;" for op in ("add.rn", "sub.rn", "mul.rn")]
        if fmt == "f16":
            two += [
                f"{op}.rn{tail}.f16x2 $d, $a, $b;"
                for op in ("add", "mul")
                for tail in (".ftz", ".sat", ".ftz.sat")
            ]
        tails = ("", ".NaN", ".xorsign.abs") + ((".ftz", ".ftz.NaN") if fmt == "f16" else ())
        two += [f"{op}{tail}.{fmt}x2 $d, $a, $b;" for op in ("min", "max") for tail in tails]
        three = [f"fma.rn{tail}.{fmt}x2 $d, $a, $b, $c;" for tail in ("", ".relu")]
        if fmt == "f16":
            three += [f"fma.rn{tail}.f16x2 $d, $a, $b, $c;" for tail in (".ftz", ".sat", ".ftz.relu")]
        one = [f"{op}.{fmt}x2 $d, $a;" for op in ("abs", "neg")]
        for near in (False, True):
            tail = "near" if near else "wide"

            def some(s: Stream, count: int, fmt: str = fmt, near: bool = near) -> list[Array]:
                return [f16x2_patterns(s, 192, fmt, near=near) for _ in range(count)]

            yield elementwise(f"arith/{fmt}x2.two.{tail}", two, lambda s, some=some: some(s, 2), 4)
            yield elementwise(f"arith/{fmt}x2.fma.{tail}", three, lambda s, some=some: some(s, 3), 4)
        yield elementwise(f"arith/{fmt}x2.one", one, lambda s, fmt=fmt: [f16x2_patterns(s, 96, fmt)], 4)


def _scalar_half() -> Iterator[Case]:
    f16 = ["add.rn.f16 $d, $a, $b;", "sub.rn.f16 $d, $a, $b;", "mul.rn.f16 $d, $a, $b;", "min.f16 $d, $a, $b;", "max.NaN.f16 $d, $a, $b;",
           "add.rn.sat.f16 $d, $a, $b;", "fma.rn.f16 $d, $a, $b, $c;", "fma.rn.relu.f16 $d, $a, $b, $c;", "fma.rn.sat.f16 $d, $a, $b, $c;"]  # fmt: skip
    yield elementwise("arith/f16", f16, lambda s: [f16_patterns(s, 192) for _ in range(3)], 2)
    bf16 = [op.replace("f16", "bf16") for op in f16 if ".sat" not in op]
    yield elementwise("arith/bf16", bf16, lambda s: [bf16_patterns(s, 192) for _ in range(3)], 2)


def _comparisons() -> Iterator[Case]:
    rows = {
        f"setp.{c}{ftz}.f32": f"{{ .reg .pred q; setp.{c}{ftz}.f32 q, $a, $b; selp.u32 $d, 1, 0, q; }}"
        for c in _COMPARE
        for ftz in ("", ".ftz")
    }
    yield elementwise("compare/f32", rows, _ordered_pair, 4)
    rows = {}
    for c in ("eq", "ne", "lt", "ge", "leu", "nan"):
        for fmt in ("f16x2", "bf16x2"):
            rows[f"set.{c}.{fmt}"] = f"set.{c}.{fmt}.{fmt} $d, $a, $b;"
            rows[f"set.{c}.u32.{fmt}"] = f"set.{c}.u32.{fmt} $d, $a, $b;"
            rows[f"setp.{c}.{fmt}"] = (
                f"{{ .reg .pred q, r; .reg .b32 t; setp.{c}.{fmt} q|r, $a, $b; selp.u32 $d, 1, 0, q; selp.u32 t, 2, 0, r; add.u32 $d, $d, t; }}"
            )
    yield elementwise("compare/half2", rows, lambda s: [f16x2_patterns(s, 128), f16x2_patterns(s, 128)], 4)
    rows = {
        f"set.{c}.{to}.f32": f"set.{c}.{to}.f32 $d, $a, $b;"
        for c in ("lt", "equ", "num")
        for to in ("u32", "s32", "f32")
    }
    rows["slct.u32.f32"] = "slct.u32.f32 $d, $a, $b, $b;"
    rows["testp.finite"] = "{ .reg .pred q; testp.finite.f32 q, $a; selp.u32 $d, 1, 0, q; }"
    for kind in ("infinite", "number", "notanumber", "normal", "subnormal"):
        rows[f"testp.{kind}"] = f"{{ .reg .pred q; testp.{kind}.f32 q, $a; selp.u32 $d, 1, 0, q; }}"
    rows["set.and"] = "{ .reg .pred q; setp.gt.f32 q, $a, 0f3F800000; set.lt.and.u32.f32 $d, $a, $b, q; }"
    rows["setp.or"] = (
        "{ .reg .pred q; setp.gt.f32 q, $a, 0f3F800000; setp.lt.or.f32 q, $a, $b, !q; selp.u32 $d, 1, 0, q; }"
    )
    rows["setp.xor"] = (
        "{ .reg .pred q, r; setp.gt.f32 q, $a, 0f3F800000; setp.lt.xor.f32 q|r, $a, $b, q; selp.u32 $d, 1, 0, q; @r add.u32 $d, $d, 2; }"
    )
    yield elementwise("compare/set", rows, _ordered_pair, 4)


def _mixed() -> Iterator[Case]:
    """float16 and bfloat16 scalars through float32, as dequantisation uses them."""
    rows = {
        "ex2.approx.f16x2.exact": "{ .reg .b32 t; and.b32 t, $a, 0x80008000; ex2.approx.f16x2 $d, t; }",
        "mul.bf16x2.scale": "{ .reg .b32 k; mov.b32 k, 0x3E003E00; mul.rn.bf16x2 $d, $a, k; }",
        "fma.f16x2.magic": "{ .reg .b32 t; lop3.b32 t, $a, 0x000F000F, 0x64006400, 0xEA; .reg .b32 k; mov.b32 k, 0x64086408; sub.rn.f16x2 $d, t, k; }",
        "fma.bf16x2.magic": "{ .reg .b32 t; lop3.b32 t, $a, 0x000F000F, 0x43004300, 0xEA; .reg .b32 k; mov.b32 k, 0x43084308; sub.rn.bf16x2 $d, t, k; }",
    }
    yield elementwise("arith/dequantise", rows, lambda s: [s.u32(128)], 4)


def _double() -> Iterator[Case]:
    two = [f"{op}.{mode}.f64 $d, $a, $b;" for op in ("add", "mul") for mode in ("rn", "rz", "rm", "rp")]
    two += ["sub.rn.f64 $d, $a, $b;", "min.f64 $d, $a, $b;", "max.f64 $d, $a, $b;", "div.rn.f64 $d, $a, $b;"]
    two += ["fma.rn.f64 $d, $a, $b, $a;", "sqrt.rn.f64 $d, $a;", "abs.f64 $d, $a;", "neg.f64 $d, $a;"]
    yield elementwise(
        "arith/f64", two, lambda s: [f64_patterns(s, 64, -40, 40), f64_patterns(s, 64, -40, 40)], 8
    )


def _approximate() -> Iterator[Case]:
    """Functions that PTX bounds by an error, not bit by bit; the bound in units in the last place is the case's."""
    wide = ["rcp.approx.f32 $d, $a;", "rcp.approx.ftz.f32 $d, $a;"]
    yield elementwise("approx/rcp", wide, lambda s: [f32_patterns(s, 256, -125, 125)], 4, ulp=1)
    yield elementwise(
        "approx/sqrt",
        ["sqrt.approx.f32 $d, $a;", "sqrt.approx.ftz.f32 $d, $a;"],
        lambda s: [f32_patterns(s, 256)],
        4,
        ulp=2,
    )
    yield elementwise(
        "approx/rsqrt",
        ["rsqrt.approx.f32 $d, $a;", "rsqrt.approx.ftz.f32 $d, $a;"],
        lambda s: [f32_patterns(s, 256)],
        4,
        ulp=2,
    )
    yield elementwise(
        "approx/ex2",
        ["ex2.approx.f32 $d, $a;", "ex2.approx.ftz.f32 $d, $a;"],
        lambda s: [f32_patterns(s, 256, -12, 8)],
        4,
        ulp=2,
    )
    yield elementwise(
        "approx/lg2",
        ["lg2.approx.f32 $d, $a;", "lg2.approx.ftz.f32 $d, $a;"],
        lambda s: [_away_from_one(s)],
        4,
        ulp=2,
    )
    yield elementwise("approx/div", ["div.approx.f32 $d, $a, $b;", "div.full.f32 $d, $a, $b;"],
                      lambda s: [f32_patterns(s, 256, -20, 20), f32_patterns(s, 256, -20, 20)], 4, ulp=2)  # fmt: skip
    yield elementwise(
        "approx/sin",
        ["sin.approx.f32 $d, $a;", "cos.approx.f32 $d, $a;"],
        lambda s: [_angles(s)],
        4,
        ulp=24,
    )
    yield elementwise(
        "approx/tanh", ["tanh.approx.f32 $d, $a;"], lambda s: [f32_patterns(s, 256, -12, 5)], 4, ulp=1 << 13
    )


def _away_from_one(s: Stream) -> Array:
    """Near 1 the logarithm's error is bounded in absolute terms, so units in the last place say nothing there."""
    bits = f32_patterns(s, 256)
    return np.where((bits > 0x3F400000) & (bits < 0x3FC00000), bits ^ np.uint32(0x01000000), bits)


def _angles(s: Stream) -> Array:
    """In [pi/8, 3 pi/8] of every octant's middle, where sine and cosine stay away from zero."""
    quarter = s.integers(-2, 2, 256) * (np.pi / 2)
    return f32_bits(quarter + np.pi / 8 + s.unit(256) * np.pi / 4)
