"""Floating-point arithmetic, approximate functions and conversions."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family
from swordfish.emulator.families.util import FLOAT_ROUNDS, SCALARS, rounding
from swordfish.emulator.ptx import type_size

_HALF_OPS = {
    "add": 0,
    "sub": 1,
    "mul": 2,
    "fma": 3,
    "min": 4,
    "max": 5,
    "neg": 6,
    "abs": 7,
    "ex2": 8,
    "tanh": 9,
}
_FORMATS = {
    "f16x2": 0,
    "bf16x2": 1,
    "e4m3x2": 2,
    "e5m2x2": 3,
    "e2m1x2": 4,
    "e3m2x2": 5,
    "e2m3x2": 6,
    "ue8m0x2": 7,
}


def arithmetic(d: Decoder, op: Op) -> None:
    """add, sub, mul, fma, div, abs, neg of the floating types."""
    t = op.type
    ftz, sat = int(op.has("ftz")), int(op.has("sat"))
    w = 8 if t == "f32x2" else type_size(t)
    rows = [d.dst(op.args[0], w), *[d.src(a, w) for a in op.args[1:]]]
    if t in ("f16", "bf16", "f16x2", "bf16x2"):
        mods = [_HALF_OPS[op.base], ftz, sat, int(op.has("relu")), 0, int(t.endswith("x2"))]
        d.emit("half.f16" if t.startswith("f16") else "half.bf16", rows, mods, cls="float")
    elif t == "f32x2":
        d.emit("f32x2", rows, [rounding(op), ftz, 0, _HALF_OPS[op.base]], cls="float")
    elif t in ("f32", "f64"):
        name = "div.approx" if op.base == "div" and op.has("approx") else op.base
        d.emit(f"{name}.{t}", rows, [rounding(op), ftz, sat], cls="float")
    elif op.base in ("add", "sub", "fma") and len(op.mods) >= 2 and t in ("f32",):
        raise d.unknown(op)
    else:
        raise d.unknown(op)


def extreme(d: Decoder, op: Op) -> None:
    """min and max of the floating types, with two or three operands."""
    t = op.type
    w = type_size(t)
    rows = [d.dst(op.args[0], w), *[d.src(a, w) for a in op.args[1:]]]
    if t in ("f16", "bf16", "f16x2", "bf16x2"):
        mods = [
            _HALF_OPS[op.base],
            int(op.has("ftz")),
            int(op.has("xorsign")),
            0,
            int(op.has("NaN")),
            int(t.endswith("x2")),
        ]
        d.emit("half.f16" if t.startswith("f16") else "half.bf16", rows, mods, cls="float")
        return
    mods = [0, int(op.has("ftz")), int(op.has("NaN")), int(op.has("xorsign"))]
    d.emit(f"{op.base}{'3' if len(rows) == 4 else ''}.{t}", rows, mods, cls="float")


@family("fma")
def fma(d: Decoder, op: Op) -> None:
    arithmetic(d, op)


@family("sqrt", "rcp")
def root(d: Decoder, op: Op) -> None:
    t = op.type
    w = type_size(t)
    d.emit(
        f"{op.base}.{t}",
        [d.dst(op.args[0], w), d.src(op.args[1], w)],
        [rounding(op), int(op.has("ftz")), 0],
        cls="float",
    )


@family("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
def approximate(d: Decoder, op: Op) -> None:
    t = op.type
    w = type_size(t)
    rows = [d.dst(op.args[0], w), d.src(op.args[1], w)]
    if t in ("f16", "bf16", "f16x2", "bf16x2"):
        mods = [_HALF_OPS[op.base], int(op.has("ftz")), 0, 0, 0, int(t.endswith("x2"))]
        d.emit("half.f16" if t.startswith("f16") else "half.bf16", rows, mods, cls="float")
        return
    d.emit(f"{op.base}.approx.{t}", rows, [0, int(op.has("ftz"))], cls="float")


@family("copysign")
def copysign(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    d.emit(
        f"copysign.{op.type}", [d.dst(op.args[0], w), d.src(op.args[1], w), d.src(op.args[2], w)], cls="float"
    )


@family("testp")
def testp(d: Decoder, op: Op) -> None:
    kinds = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    d.emit("testp.f32", [d.dst(op.args[0]), d.src(op.args[1], 4)], [kinds.index(op.any(*kinds))], cls="float")


def convert(d: Decoder, op: Op) -> None:
    """``cvt`` in all its forms: scalar, two f32 packed into one register, and packed narrow formats."""
    if op.mods[0] == "pack":
        bits = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}[op.mods[2]]
        rows = [d.src(a, 4) for a in op.args[1:]]
        d.emit(
            "cvt.pack.sat", [d.dst(op.args[0]), *rows], [bits, int(op.mods[2].startswith("s"))], cls="convert"
        )
        return
    dt, st = op.mods[-2], op.mods[-1]
    flags = (
        int(op.has("ftz")) | 2 * int(op.has("sat")) | 4 * int(op.has("satfinite")) | 8 * int(op.has("relu"))
    )
    if dt in _FORMATS and st == "f32":
        if op.has("rs") or len(op.args) != 3:
            raise d.unknown(op)
        rows = [d.src(op.args[1], 4), d.src(op.args[2], 4)]
        d.emit("cvt.pack2", [d.dst(op.args[0]), *rows], [_FORMATS[dt], 0, rounding(op), flags], cls="convert")
    elif dt in _FORMATS and st in _FORMATS:
        d.emit(
            "cvt.x2",
            [d.dst(op.args[0]), d.src(op.args[1], 4)],
            [_FORMATS[dt], _FORMATS[st], rounding(op), flags],
            cls="convert",
        )
    else:
        to, frm = SCALARS[dt], SCALARS[st]
        integral = any(m in ("rni", "rzi", "rmi", "rpi") for m in op.mods)
        if integral and to >= 8:
            flags |= 16
        default = 0 if to >= 8 or frm < 8 else FLOAT_ROUNDS["rzi"]
        width = max(d.width_of(op.args[0]), type_size(dt) if dt != "tf32" else 4)
        width = 16 if width == 16 else width
        source = d.src(op.args[1], type_size(st) if st != "tf32" else 4)
        if d.width_of(op.args[1]) == 8 and type_size(st) < 8:
            # A source register may be wider than its type: the type's low bits count.
            low = d.row(4)
            d.emit("cvt", [low, source], [SCALARS["u32"], SCALARS["u64"], 0, 0, 4], cls="address")
            source = low
        d.emit("cvt", [d.dst(op.args[0], width), source], [to, frm, rounding(op, default), flags, width],
               cls="convert")  # fmt: skip
