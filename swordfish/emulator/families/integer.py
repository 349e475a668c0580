"""Integer arithmetic, logic, comparisons, selection and moves."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family
from swordfish.emulator.families.narrow_integer import paired
from swordfish.emulator.families.util import unsigned, vector
from swordfish.emulator.ptx import type_size

_INT = ("u16", "u32", "u64", "s16", "s32", "s64")
_COMPARE = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4, "hs": 5, "equ":
            6, "neu": 7, "ltu": 8, "leu": 9, "gtu": 10, "geu": 11, "num": 12, "nan": 13}  # fmt: skip
_BOOL = {"and": 1, "or": 2, "xor": 3}


def _sources(d: Decoder, op: Op, widths: list[int]) -> list[int]:
    return [d.src(a, w) for a, w in zip(op.args[1:], widths, strict=True)]


@family("add", "sub")
def add(d: Decoder, op: Op) -> None:
    t = op.type
    if t not in _INT or op.has("cc"):
        if op.has("cc"):
            return _carry(d, op, read=0)
        if t in ("u16x2", "s16x2"):
            return paired(d, op)
        from swordfish.emulator.families.floating import arithmetic

        return arithmetic(d, op)
    w = type_size(t)
    if op.has("sat"):
        wide = [d.row(8), d.row(8), d.row(8)]
        for row, text in zip(wide, op.args[1:], strict=False):
            d.emit("cvt", [row, d.src(text, w)], [7, 6, 0, 0, 8], cls="address")
        d.emit(f"{op.base}.s64", [wide[2], wide[0], wide[1]], cls="address")
        d.emit("cvt", [d.dst(op.args[0], w), wide[2]], [6, 7, 0, 2, 4], cls="alu")
        return None
    d.emit(f"{op.base}.{t}", [d.dst(op.args[0], w), *_sources(d, op, [w, w])], cls="alu")
    return None


def _carry(d: Decoder, op: Op, read: int) -> None:
    w = type_size(op.type)
    flag = d.root().regs.setdefault("%carry flag", (d.row(0), "pred"))[0]
    sub = int(op.base.startswith("sub"))
    d.emit(
        f"carry.u{8 * w}",
        [d.dst(op.args[0], w), *_sources(d, op, [w, w]), flag],
        [sub, read, int(op.has("cc"))],
        cls="alu",
    )


@family("addc", "subc")
def addc(d: Decoder, op: Op) -> None:
    _carry(d, op, read=1)


@family("mul")
def mul(d: Decoder, op: Op) -> None:
    t = op.type
    if t not in _INT:
        from swordfish.emulator.families.floating import arithmetic

        return arithmetic(d, op)
    w = type_size(t)
    form = op.any("wide", "hi") or "lo"
    d.emit(
        f"mul.{form}.{t}",
        [d.dst(op.args[0], 2 * w if form == "wide" else w), *_sources(d, op, [w, w])],
        cls="alu",
    )
    return None


@family("mad")
def mad(d: Decoder, op: Op) -> None:
    t = op.type
    if t not in _INT:
        from swordfish.emulator.families.floating import arithmetic

        return arithmetic(d, Op("fma", op.mods, op.args, op.line, op.text))
    w = type_size(t)
    form = op.any("wide", "hi") or "lo"
    wide = 2 * w if form == "wide" else w
    if op.has("sat"):
        return _mad_sat(d, op)
    if op.has("cc"):
        return _mad_cc(d, op, form, 0)
    d.emit(f"mad.{form}.{t}", [d.dst(op.args[0], wide), *_sources(d, op, [w, w, wide])], cls="alu")
    return None


def _mad_sat(d: Decoder, op: Op) -> None:
    """``mad.hi.sat.s32``: the sum in 64 bits, then clamped."""
    high, wide = d.row(4), [d.row(8), d.row(8)]
    d.emit("mul.hi.s32", [high, d.src(op.args[1], 4), d.src(op.args[2], 4)], cls="address")
    for row, part in zip(wide, (high, d.src(op.args[3], 4)), strict=True):
        d.emit("cvt", [row, part], [7, 6, 0, 0, 8], cls="address")
    d.emit("add.s64", [wide[0], *wide], cls="address")
    d.emit("cvt", [d.dst(op.args[0]), wide[0]], [6, 7, 0, 2, 4], cls="alu")


def _mad_cc(d: Decoder, op: Op, form: str, read: int) -> None:
    w = type_size(op.type)
    product = d.row(w)
    flag = d.root().regs.setdefault("%carry flag", (d.row(0), "pred"))[0]
    d.emit(f"mul.{form}.{op.type}", [product, d.src(op.args[1], w), d.src(op.args[2], w)], cls="address")
    d.emit(
        f"carry.u{8 * w}",
        [d.dst(op.args[0], w), product, d.src(op.args[3], w), flag],
        [0, read, int(op.has("cc"))],
        cls="alu",
    )


@family("madc")
def madc(d: Decoder, op: Op) -> None:
    _mad_cc(d, op, op.any("hi") or "lo", 1)


@family("div", "rem")
def div(d: Decoder, op: Op) -> None:
    t = op.type
    if t not in _INT:
        from swordfish.emulator.families.floating import arithmetic

        return arithmetic(d, op)
    w = type_size(t)
    d.emit(f"{op.base}.{t}", [d.dst(op.args[0], w), *_sources(d, op, [w, w])], cls="alu")
    return None


@family("min", "max")
def minmax(d: Decoder, op: Op) -> None:
    t = op.type
    if t in ("u16x2", "s16x2"):
        return paired(d, op)
    if t not in _INT:
        from swordfish.emulator.families.floating import extreme

        return extreme(d, op)
    w = type_size(t)
    at = d.dst(op.args[0], w)
    d.emit(f"{op.base}.{t}", [at, *_sources(d, op, [w, w])], cls="alu")
    if op.has("relu"):
        d.emit(f"max.{t}", [at, at, d.const(0, w)], cls="alu")
    return None


@family("abs", "neg")
def unary(d: Decoder, op: Op) -> None:
    t = op.type
    if t not in _INT:
        from swordfish.emulator.families.floating import arithmetic

        return arithmetic(d, op)
    w = type_size(t)
    d.emit(f"{op.base}.{t}", [d.dst(op.args[0], w), *_sources(d, op, [w])], cls="alu")
    return None


@family("sad")
def sad(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    d.emit(f"sad.{op.type}", [d.dst(op.args[0], w), *_sources(d, op, [w, w, w])], cls="alu")


@family("and", "or", "xor")
def logic(d: Decoder, op: Op) -> None:
    if op.type == "pred":
        p = [d.pred_src(a) for a in op.args[1:]]
        d.emit("pred.logic", [d.dst(op.args[0]), *p], [_BOOL[op.base]], cls="alu")
        return
    w = type_size(op.type)
    d.emit(f"{op.base}.{unsigned(op.type)}", [d.dst(op.args[0], w), *_sources(d, op, [w, w])], cls="alu")


@family("not", "cnot")
def invert(d: Decoder, op: Op) -> None:
    if op.type == "pred":
        d.emit("pred.not", [d.dst(op.args[0]), d.pred_src(op.args[1])], cls="alu")
        return
    w = type_size(op.type)
    d.emit(f"{op.base}.{unsigned(op.type)}", [d.dst(op.args[0], w), *_sources(d, op, [w])], cls="alu")


@family("shl", "shr")
def shift(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    name = op.type if op.base == "shr" and op.type.startswith("s") else unsigned(op.type)
    d.emit(f"{op.base}.{name}", [d.dst(op.args[0], w), *_sources(d, op, [w, 4])], cls="alu")


@family("popc", "clz", "brev")
def bits(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    d.emit(
        f"{op.base}.{unsigned(op.type)}",
        [d.dst(op.args[0], w if op.base == "brev" else 4), *_sources(d, op, [w])],
        cls="alu",
    )


@family("bfind")
def bfind(d: Decoder, op: Op) -> None:
    name = "bfind.shiftamt" if op.has("shiftamt") else "bfind"
    d.emit(f"{name}.{op.type}", [d.dst(op.args[0]), *_sources(d, op, [type_size(op.type)])], cls="alu")


@family("bfe")
def bfe(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    d.emit(f"bfe.{op.type}", [d.dst(op.args[0], w), *_sources(d, op, [w, 4, 4])], cls="alu")


@family("bfi")
def bfi(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    d.emit(f"bfi.{unsigned(op.type)}", [d.dst(op.args[0], w), *_sources(d, op, [w, w, 4, 4])], cls="alu")


@family("lop3")
def lop3(d: Decoder, op: Op) -> None:
    combine = op.any("and", "or")
    if combine:
        dest, pred = [t.strip() for t in op.args[0].split("|")]
        rows = [d.src(a, 4) for a in op.args[1:4]]
        d.emit(
            "lop3.p",
            [d.dst(dest), d.dst(pred), *rows, d.pred_src(op.args[5])],
            [int(op.args[4], 0), _BOOL[combine]],
            cls="alu",
        )
        return
    d.emit("lop3", [d.dst(op.args[0]), *[d.src(a, 4) for a in op.args[1:4]]], [int(op.args[4], 0)], cls="alu")


@family("prmt")
def prmt(d: Decoder, op: Op) -> None:
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    mode = op.any(*modes)
    d.emit(
        "prmt",
        [d.dst(op.args[0]), *_sources(d, op, [4, 4, 4])],
        [modes.index(mode) + 1 if mode else 0],
        cls="alu",
    )


@family("shf")
def shf(d: Decoder, op: Op) -> None:
    d.emit(
        "shf",
        [d.dst(op.args[0]), *_sources(d, op, [4, 4, 4])],
        [int(op.has("r")), int(op.has("wrap"))],
        cls="alu",
    )


@family("dp4a")
def dp4a(d: Decoder, op: Op) -> None:
    a, b = op.mods[-2], op.mods[-1]
    d.emit(
        "dp4a",
        [d.dst(op.args[0]), *_sources(d, op, [4, 4, 4])],
        [int(a == "s32"), int(b == "s32")],
        cls="alu",
    )


def _compare(d: Decoder, op: Op, dest: int, other: int, args: list[str]) -> None:
    cmp = next(_COMPARE[m] for m in op.mods if m in _COMPARE)
    combine = next((_BOOL[m] for m in op.mods if m in _BOOL), 0)
    t = op.type
    if t.startswith("b") and t != "bf16":
        t = unsigned(t)
    w = type_size(t)
    rows = [d.src(args[0], w), d.src(args[1], w)]
    if combine:
        rows.append(d.pred_src(args[2]))
    d.emit(f"setp.{t}", [dest, other, *rows], [cmp, combine, int(op.has("ftz"))], cls="alu")


@family("setp")
def setp(d: Decoder, op: Op) -> None:
    if op.type in ("f16x2", "bf16x2"):
        return _setp_packed(d, op)
    first, _, second = op.args[0].partition("|")
    p = d.row(0) if first.strip() == "_" else d.dst(first.strip())
    q = d.dst(second.strip()) if second and second.strip() != "_" else d.row(0)
    _compare(d, op, p, q, op.args[1:])
    return None


def _setp_packed(d: Decoder, op: Op) -> None:
    """The low halves give the first predicate, the high halves the second."""
    first, _, second = op.args[0].partition("|")
    _compare_halves(d, op, [d.dst(first.strip()), d.dst(second.strip()) if second else d.row(0)])


def _compare_halves(d: Decoder, op: Op, dests: list[int]) -> None:
    rows = [d.src(a, 4) for a in op.args[1:3]]
    highs = [d.row(4), d.row(4)]
    for high, row in zip(highs, rows, strict=True):
        d.emit("shr.u32", [high, row, d.const(16, 4)], cls="address")
    combine = next((_BOOL[m] for m in op.mods if m in _BOOL), 0)
    extra = [d.pred_src(op.args[3])] if combine else []
    cmp = next(_COMPARE[m] for m in op.mods if m in _COMPARE)
    for dest, pair in zip(dests, (rows, highs), strict=True):
        d.emit(
            f"setp.{op.type[:-2]}",
            [dest, d.row(0), *pair, *extra],
            [cmp, combine, int(op.has("ftz"))],
            cls="alu",
        )


@family("set")
def set_value(d: Decoder, op: Op) -> None:
    t = d.row(0)
    dest_type = op.mods[-2]
    if op.type in ("f16x2", "bf16x2"):
        return _set_packed(d, op, dest_type)
    _compare(d, op, t, d.row(0), op.args[1:])
    true = {"f32": 0x3F800000, "u32": -1, "s32": -1, "f16": 0x3C00, "bf16": 0x3F80}[dest_type]
    d.emit("set.bool", [d.dst(op.args[0]), t], [true], cls="alu")
    return None


def _set_packed(d: Decoder, op: Op, dest_type: str) -> None:
    """One half of the result for each half of the operands."""
    p, low, high, dest = [d.row(0), d.row(0)], d.row(4), d.row(4), d.dst(op.args[0])
    _compare_halves(d, op, p)
    true = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(dest_type, 0xFFFF)
    d.emit("set.bool", [low, p[0]], [true], cls="alu")
    d.emit("set.bool", [high, p[1]], [(true << 16) - (true >> 15 << 32)], cls="alu")
    d.emit("or.u32", [dest, low, high], cls="alu")


@family("selp")
def selp(d: Decoder, op: Op) -> None:
    if op.type == "pred":
        d.emit("selp.pred", [d.dst(op.args[0]), *[d.pred_src(a) for a in op.args[1:4]]], cls="alu")
        return
    w = type_size(op.type)
    rows = [d.src(op.args[1], w), d.src(op.args[2], w), d.pred_src(op.args[3])]
    d.emit(f"selp.{unsigned(op.type)}", [d.dst(op.args[0], w), *rows], cls="alu")


@family("slct")
def slct(d: Decoder, op: Op) -> None:
    """``d = c >= 0 ? a : b``."""
    p = d.row(0)
    d.emit(
        f"setp.{op.type}",
        [p, d.row(0), d.src(op.args[3], 4), d.const(0, 4)],
        [5, 0, int(op.has("ftz"))],
        cls="address",
    )
    w = type_size(op.mods[-2])
    d.emit(
        f"selp.{unsigned(op.mods[-2])}",
        [d.dst(op.args[0], w), d.src(op.args[1], w), d.src(op.args[2], w), p],
        cls="alu",
    )


@family("mov")
def mov(d: Decoder, op: Op) -> None:
    if op.type == "pred" and op.args[1] == "%is_explicit_cluster":
        rows = [d.dst(op.args[0]), d.row(0), d.src(op.args[1], 4), d.const(0, 4)]
        d.emit("setp.u32", rows, [_COMPARE["ne"], 0, 0], cls="alu")
        return
    if op.type == "pred":
        d.emit("pred.mov", [d.dst(op.args[0]), d.pred_src(op.args[1])], cls="alu")
        return
    w = type_size(op.type)
    left, right = op.args[0], op.args[1]
    if left.startswith("{"):
        parts = vector(left)
        part = w // len(parts)
        d.emit("unpack", [d.src(right, w), *[d.dst(t, part) for t in parts]], [part, w], cls="alu")
    elif right.startswith("{"):
        parts = vector(right)
        part = w // len(parts)
        d.emit("pack", [d.dst(left, w), *[d.src(t, part) for t in parts]], [part, w], cls="alu")
    elif w == 16:
        d.emit("mov.b128", [d.dst(left, 16), d.src(right, 16)], cls="alu")
    else:
        d.emit(f"mov.u{8 * w}", [d.dst(left, w), d.src(right, w)], cls="alu", copy=True)


@family("cvt")
def cvt(d: Decoder, op: Op) -> None:
    from swordfish.emulator.families.floating import convert

    convert(d, op)
