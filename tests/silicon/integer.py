"""Integer and logic instructions on special and random words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .case import Array, Case
from .data import Stream
from .elementwise import elementwise, u32_patterns

__all__ = ["cases"]


def _words(*kinds: str, n: int = 128) -> Callable[[Stream], list[Array]]:
    """A maker of operands: ``word``, ``long``, ``short``, or a number for values below it."""

    def make(s: Stream) -> list[Array]:
        out = []
        for kind in kinds:
            if kind == "word":
                out.append(u32_patterns(s, n))
            elif kind == "long":
                out.append(s.u64(n) >> s.integers(0, 64, n).astype(np.uint64))
            elif kind == "short":
                out.append(s.u16(n))
            else:
                out.append(s.integers(0, int(kind), n).astype(np.uint32))
        return out

    return make


def cases() -> Iterator[Case]:
    yield from _arithmetic()
    yield from _bits()
    yield from _bytes()
    yield from _compare()
    yield from _wide()


def _arithmetic() -> Iterator[Case]:
    two = [
        f"{op}.{t} $d, $a, $b;"
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "mul24.lo", "mul24.hi")
        for t in ("u32", "s32")
    ]
    two += [
        "add.sat.s32 $d, $a, $b;",
        "sub.sat.s32 $d, $a, $b;",
        "min.relu.s32 $d, $a, $b;",
        "max.relu.s32 $d, $a, $b;",
    ]
    two += ["sad.u32 $d, $a, $b, $a;", "sad.s32 $d, $a, $b, $a;", "abs.s32 $d, $a;", "neg.s32 $d, $a;"]
    yield elementwise("integer/two", two, _words("word", "word"), 4)
    three = [
        f"{op}.{t} $d, $a, $b, $c;"
        for op in ("mad.lo", "mad.hi", "mad24.lo", "mad24.hi")
        for t in ("u32", "s32")
    ] + ["mad.hi.sat.s32 $d, $a, $b, $c;"]
    yield elementwise("integer/three", three, _words("word", "word", "word"), 4)
    divide = [f"{op}.{t} $d, $a, $b;" for op in ("div", "rem") for t in ("u32", "s32")]
    yield elementwise(
        "integer/divide", divide, lambda s: [u32_patterns(s, 128), np.maximum(u32_patterns(s, 128), 1)], 4
    )
    carry = {
        "add.cc/addc": "{ .reg .b32 t; add.cc.u32 t, $a, $b; addc.u32 $d, $a, $c; }",
        "add.cc/addc.cc/addc": "{ .reg .b32 t; add.cc.u32 t, $a, $b; addc.cc.u32 t, $b, $c; addc.u32 $d, t, 0; }",
        "sub.cc/subc": "{ .reg .b32 t; sub.cc.u32 t, $a, $b; subc.u32 $d, $a, $c; }",
        "sub.cc/subc.cc/subc": "{ .reg .b32 t; sub.cc.u32 t, $a, $b; subc.cc.u32 t, $b, $c; subc.u32 $d, t, 0; }",
        "mad.lo.cc/madc.hi": "{ .reg .b32 t; mad.lo.cc.u32 t, $a, $b, $c; madc.hi.u32 $d, $a, $b, $c; }",
        "mad.hi.cc/addc": "{ .reg .b32 t; mad.hi.cc.u32 t, $a, $b, $c; addc.u32 $d, t, 5; }",
    }
    yield elementwise("integer/carry", carry, _words("word", "word", "word"), 4)
    short = [
        f"{op}.{t} $d, $a, $b;"
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi")
        for t in ("u16", "s16")
    ]
    short += ["mad.lo.u16 $d, $a, $b, $a;", "neg.s16 $d, $a;", "abs.s16 $d, $a;", "shl.b16 $d, $a, 3;", "shr.s16 $d, $a, 3;", "shr.u16 $d, $a, 3;",
              "and.b16 $d, $a, $b;", "or.b16 $d, $a, $b;", "xor.b16 $d, $a, $b;", "not.b16 $d, $a;"]  # fmt: skip
    yield elementwise("integer/short", short, _words("short", "short"), 2)
    pairs = [f"{op}.{t} $d, $a, $b;" for op in ("min", "max", "add") for t in ("u16x2", "s16x2")]
    pairs += [f"{op}.relu.s16x2 $d, $a, $b;" for op in ("min", "max")]
    yield elementwise("integer/packed", pairs, _words("word", "word"), 4)


def _bits() -> Iterator[Case]:
    logic = [
        "and.b32 $d, $a, $b;",
        "or.b32 $d, $a, $b;",
        "xor.b32 $d, $a, $b;",
        "not.b32 $d, $a;",
        "cnot.b32 $d, $a;",
    ]
    rows = {op.split()[0]: op for op in logic}
    rows |= {
        f"lop3.{lut:02x}": f"lop3.b32 $d, $a, $b, $c, 0x{lut:02x};"
        for lut in (0xEA, 0x6A, 0x96, 0xE8, 0xCA, 0x01, 0x80, 0xF8, 0x1B, 0xD2, 0x00, 0xFF)
    }
    rows["lop3.or"] = (
        "{ .reg .pred q, r; setp.lt.u32 r, $a, $b; lop3.or.b32 $d|q, $a, $b, $c, 0x80, r; @q add.u32 $d, $d, 1; }"
    )
    yield elementwise("integer/logic", rows, _words("word", "word", "word"), 4)
    shifts = [f"{op} $d, $a, $b;" for op in ("shl.b32", "shr.u32", "shr.s32", "shr.b32")]
    shifts += [f"shf.{side}.{mode}.b32 $d, $a, $c, $b;" for side in ("l", "r") for mode in ("wrap", "clamp")]
    yield elementwise("integer/shift", shifts, _words("word", "70", "word"), 4)
    one = [
        f"{op} $d, $a;"
        for op in (
            "popc.b32",
            "clz.b32",
            "brev.b32",
            "bfind.u32",
            "bfind.s32",
            "bfind.shiftamt.u32",
            "bfind.shiftamt.s32",
        )
    ]
    yield elementwise("integer/count", one, _words("word", n=256), 4)
    fields = {f"bfe.{t}": f"bfe.{t} $d, $a, $b, $c;" for t in ("u32", "s32")}
    fields |= {"bfi.b32": "bfi.b32 $d, $a, 0x12345678, $b, $c;", "bmsk.clamp": "bmsk.clamp.b32 $d, $b, $c;", "bmsk.wrap": "bmsk.wrap.b32 $d, $b, $c;",
               "szext.wrap.s32": "szext.wrap.s32 $d, $a, $c;", "szext.clamp.u32": "szext.clamp.u32 $d, $a, $c;", "fns.b32": "fns.b32 $d, $a, 7, 2;"}  # fmt: skip
    yield elementwise("integer/field", fields, _words("word", "40", "40"), 4)


def _bytes() -> Iterator[Case]:
    rows = {"prmt": "prmt.b32 $d, $a, $b, $c;"}
    rows |= {
        f"prmt.{mode}": f"prmt.b32.{mode} $d, $a, $b, $c;"
        for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    }
    yield elementwise("integer/prmt", rows, _words("word", "word", "word"), 4)
    rows = {f"dp4a.{a}.{b}": f"dp4a.{a}.{b} $d, $a, $b, $c;" for a in ("u32", "s32") for b in ("u32", "s32")}
    rows |= {
        f"dp2a.{h}.{a}.{b}": f"dp2a.{h}.{a}.{b} $d, $a, $b, $c;"
        for h in ("lo", "hi")
        for a in ("u32", "s32")
        for b in ("u32", "s32")
    }
    yield elementwise("integer/dot", rows, _words("word", "word", "word"), 4)


def _compare() -> Iterator[Case]:
    rows = {}
    for t in ("u32", "s32"):
        for c in ("eq", "ne", "lt", "le", "gt", "ge"):
            rows[f"setp.{c}.{t}"] = f"{{ .reg .pred q; setp.{c}.{t} q, $a, $b; selp.b32 $d, $a, $c, q; }}"
    for c in ("lo", "ls", "hi", "hs"):
        rows[f"setp.{c}.u32"] = f"{{ .reg .pred q; setp.{c}.u32 q, $a, $b; selp.b32 $d, $a, $c, q; }}"
    rows["set.lt.u32.s32"] = "set.lt.u32.s32 $d, $a, $b;"
    rows["set.ge.f32.u32"] = "set.ge.f32.u32 $d, $a, $b;"
    rows["slct.u32.s32"] = "slct.u32.s32 $d, $a, $b, $c;"
    rows["setp.and.pair"] = (
        "{ .reg .pred q, r; setp.lt.s32 q, $a, 0; setp.gt.and.s32 q|r, $b, $c, q; selp.u32 $d, 1, 0, q; @r add.u32 $d, $d, 2; }"
    )
    rows["pred.logic"] = (
        "{ .reg .pred q, r, s; setp.lt.s32 q, $a, 0; setp.gt.u32 r, $b, $c; and.pred s, q, r; selp.u32 $d, 1, 0, s; or.pred s, q, r; @s add.u32 $d, $d, 2; "
        "xor.pred s, q, r; @s add.u32 $d, $d, 4; not.pred s, q; @s add.u32 $d, $d, 8; "
        "@!r add.u32 $d, $d, 16; }"
    )
    yield elementwise(
        "integer/compare",
        rows,
        lambda s: [u32_patterns(s, 128), s.choose(u32_patterns(s, 128), 128), u32_patterns(s, 128)],
        4,
    )


def _wide() -> Iterator[Case]:
    rows = [
        f"{op}.{t} $d, $a, $b;"
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi")
        for t in ("u64", "s64")
    ]
    rows += [f"{op}.b64 $d, $a, $b;" for op in ("and", "or", "xor")] + [
        "not.b64 $d, $a;",
        "neg.s64 $d, $a;",
        "abs.s64 $d, $a;",
        "brev.b64 $d, $a;",
    ]
    rows += ["mad.lo.u64 $d, $a, $b, $a;", "mad.hi.s64 $d, $a, $b, $a;"]
    yield elementwise("integer/long", rows, _words("long", "long", n=64), 8)
    rows = [f"{op}.{t} $d, $a, $b;" for op in ("div", "rem") for t in ("u64", "s64")]
    yield elementwise(
        "integer/long.divide",
        rows,
        lambda s: [s.u64(64), np.maximum(s.u64(64) >> s.integers(0, 64, 64).astype(np.uint64), np.uint64(1))],
        8,
    )
    rows = [
        "shl.b64 $d, $a, $b;",
        "shr.u64 $d, $a, $b;",
        "shr.s64 $d, $a, $b;",
        "bfe.u64 $d, $a, $b, 9;",
        "bfe.s64 $d, $a, 5, $b;",
        "bfi.b64 $d, $a, $a, $b, 20;",
    ]
    yield elementwise("integer/long.shift", rows, _words("long", "80", n=64), 8)
    rows = [f"mul.wide.{t} $d, $a, $b;" for t in ("u32", "s32")]
    table = {r.split()[0]: r for r in rows}
    table |= {
        f"mad.wide.{t}": f"{{ .reg .b64 t; cvt.u64.u32 t, $b; mad.wide.{t} $d, $a, $b, t; }}"
        for t in ("u32", "s32")
    }
    table["mov.b64.pair"] = "mov.b64 $d, {$b, $a};"
    table["popc.clz"] = (
        "{ .reg .b64 t; .reg .b32 x, y; mul.wide.u32 t, $a, $b; popc.b64 x, t; clz.b64 y, t; mov.b64 $d, {x, y}; }"
    )
    table["bfind"] = (
        "{ .reg .b64 t; .reg .b32 x, y; mul.wide.s32 t, $a, $b; bfind.u64 x, t; bfind.s64 y, t; mov.b64 $d, {x, y}; }"
    )
    yield elementwise("integer/widening", table, _words("word", "word", n=64), 8)
    table = {
        f"mul.wide.{t}": f"{{ .reg .b16 x, y; mov.b32 {{x, y}}, $a; mul.wide.{t} $d, x, y; }}"
        for t in ("u16", "s16")
    }
    table["mov.b32.pair"] = "{ .reg .b16 x, y; mov.b32 {x, y}, $a; mov.b32 $d, {y, x}; }"
    table["mov.b32.bytes"] = "{ .reg .b8 p, q, r, s; mov.b32 {p, q, r, s}, $a; mov.b32 $d, {s, p, r, q}; }"
    yield elementwise("integer/halves", table, _words("word"), 4)
