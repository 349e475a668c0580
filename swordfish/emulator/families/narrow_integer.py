"""Integer instructions on parts of a word: 24-bit products, 16-bit pairs, dot products, masks and field
extension."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family

_PAIRED = ("add", "min", "max")


def _operands(d: Decoder, op: Op) -> list[int]:
    return [d.dst(op.args[0]), *[d.src(a, 4) for a in op.args[1:]]]


@family("mul24", "mad24")
def multiply24(d: Decoder, op: Op) -> None:
    if op.has("sat"):
        raise d.unknown(op)
    rows = _operands(d, op)
    rows += [d.const(0, 4)] * (4 - len(rows))
    d.emit("mad24", rows, [int(op.type == "s32"), int(op.has("hi"))], cls="alu")


@family("dp2a")
def dp2a(d: Decoder, op: Op) -> None:
    a, b = op.mods[-2:]
    d.emit("dp2a", _operands(d, op), [int(a == "s32"), int(b == "s32"), int(op.has("hi"))], cls="alu")


@family("bmsk")
def bmsk(d: Decoder, op: Op) -> None:
    d.emit("bmsk", _operands(d, op), [int(op.has("wrap"))], cls="alu")


@family("szext")
def szext(d: Decoder, op: Op) -> None:
    d.emit("szext", _operands(d, op), [int(op.has("wrap")), int(op.type == "s32")], cls="alu")


@family("fns")
def fns(d: Decoder, op: Op) -> None:
    d.emit("fns", _operands(d, op), cls="alu")


def paired(d: Decoder, op: Op) -> None:
    """add, min and max on two 16-bit halves."""
    signed = int(op.type == "s16x2")
    d.emit("paired", _operands(d, op), [_PAIRED.index(op.base), signed, int(op.has("relu"))], cls="alu")
