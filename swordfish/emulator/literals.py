"""Literals and constant expressions of PTX, as bits."""

from __future__ import annotations

import ast
import operator
import re
import struct
from collections.abc import Callable

__all__ = ["literal"]

_NUMBER = re.compile(r"^[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$")


def literal(text: str, width: int) -> int | None:
    """The bits of a PTX literal at ``width`` bytes, or ``None`` when the text is no literal."""
    if _NUMBER.match(text):
        t = text.rstrip("U")
        sign, digits = (-1, t[1:]) if t[0] == "-" else (1, t.lstrip("+"))
        base = (
            16
            if digits[:2] in ("0x", "0X")
            else 2
            if digits[:2] in ("0b", "0B")
            else 8
            if digits[0] == "0"
            else 10
        )
        return sign * int(digits, base) & ((1 << (8 * width)) - 1)
    if text[:2] in ("0f", "0F") and len(text) == 10:
        bits = int(text[2:], 16)
        return bits if width == 4 else struct.unpack("<Q", struct.pack("<d", _f32(bits)))[0]
    if text[:2] in ("0d", "0D") and len(text) == 18:
        bits = int(text[2:], 16)
        return bits if width == 8 else _bits32(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    if _FLOAT.match(text):
        return _bits32(float(text)) if width == 4 else struct.unpack("<Q", struct.pack("<d", float(text)))[0]
    if text == "WARP_SZ":
        return 32
    if text.startswith("("):
        value = _expression(text)
        return None if value is None else value & ((1 << (8 * width)) - 1)
    return None


def _f32(bits: int) -> float:
    value: float = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
    return value


def _bits32(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = { ast.Add: operator.add, ast.Sub: operator.sub,
              ast.Mult: operator.mul, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd:
              operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Mod: operator.mod,
              ast.FloorDiv: operator.floordiv, }  # fmt: skip


def _expression(text: str) -> int | None:
    """The value of an integer constant expression such as ``(3 + 4 * 2)``; ``None`` when it is something
    else."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
            return -value(node.operand) if isinstance(node.op, ast.USub) else ~value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        raise ValueError("no constant expression")

    try:
        return value(ast.parse(re.sub(r"(\d)U\b", r"\1", text).replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
