"""What several families need: types, vectors, roundings."""

from __future__ import annotations

import re

from swordfish.emulator.decode import Op
from swordfish.emulator.ptx import split_operands

__all__ = ["FLOAT_ROUNDS", "SCALARS", "rounding", "unsigned", "vector"]

SCALARS = {"u8": 0, "u16": 1, "u32": 2, "u64": 3, "s8": 4, "s16": 5, "s32": 6, "s64": 7, "f16": 8, "bf16": 9,
           "f32": 10, "f64": 11, "tf32": 12, "b8": 0, "b16": 1, "b32": 2, "b64": 3}  # fmt: skip
"""Scalar type codes shared with ``core/cvt.cpp``."""

FLOAT_ROUNDS = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4, "rs": 5, "rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}


def vector(text: str) -> list[str]:
    """The parts of ``{a, b}``; a plain operand is a vector of one."""
    text = text.strip()
    return split_operands(text[1:-1]) if text.startswith("{") else [text]


def rounding(op: Op, default: int = 0) -> int:
    """Code of the rounding modifier."""
    for m in op.mods:
        if m in FLOAT_ROUNDS:
            return FLOAT_ROUNDS[m]
    return default


def unsigned(t: str) -> str:
    """``u32`` for any 32-bit integer, bit or float type, and so on."""
    m = re.fullmatch(r"(?:[busf]|bf)(\d+)(x2)?", t)
    if not m:
        raise ValueError(f"type .{t}")
    return f"u{int(m[1]) * (2 if m[2] else 1)}"
