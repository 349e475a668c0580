"""Operands that tell accumulation models apart: wide exponents, cancellation, ties, subnormals, inf and NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .case import Array
from .data import Stream, bf16_bits, bf16_value, f16_bits, f16_value, f32_bits

__all__ = ["KINDS", "operands"]

KINDS = (
    "normal",
    "wide",
    "close",
    "cancel",
    "powers",
    "order",
    "subnormal",
    "special",
    "overflow",
    "zeros",
    "ties",
)

_Shape = tuple[int, int, int, int]


def operands(
    kind: str, fmt: str, acc: str, batch: int, m: int, n: int, k: int, *, name: str
) -> tuple[Array, Array, Array]:
    """Patterns of A ``[batch, m, k]``, B ``[batch, k, n]`` (uint16) and C ``[batch, m, n]`` (uint32 or uint16)."""
    stream = Stream(f"{name}.{kind}")
    bits = f16_bits if fmt == "f16" else bf16_bits
    value = f16_value if fmt == "f16" else bf16_value
    a, b, c = _VALUES[kind](stream, fmt, (batch, m, n, k), bits, value)
    return (
        a,
        b,
        f32_bits(c) if acc == "f32" else f16_bits(np.clip(c, -70000, 70000) if kind != "special" else c),
    )


_Codec = Callable[[Array], Array]
_Matrices = tuple[Array, Array, Array]


def _floats(s: Stream, low: int, high: int, *shape: int) -> Array:
    """Random sign and mantissa, exponent uniform in ``[low, high]``."""
    return s.signs(*shape) * (1.0 + s.unit(*shape)) * 2.0 ** s.integers(low, high + 1, *shape)


def _normal(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    batch, m, n, k = shape
    return bits(s.bell(batch, m, k)), bits(s.bell(batch, k, n)), s.bell(batch, m, n)


def _wide(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    batch, m, n, k = shape
    low, high = (-14, 14) if fmt == "f16" else (-25, 25)
    a, b = bits(_floats(s, low, high, batch, m, k)), bits(_floats(s, low, high, batch, k, n))
    return a, b, _floats(s, 2 * low - 4, 2 * high - 2, batch, m, n)


def _close(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    batch, m, n, k = shape
    a, b = bits(_floats(s, -2, 2, batch, m, k)), bits(_floats(s, -2, 2, batch, k, n))
    return a, b, _floats(s, -26, 10, batch, m, n)


def _cancel(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """The second half of K undoes the first but for a small rest; C undoes what is left in half of the problems."""
    batch, m, n, k = shape
    a, b = bits(_floats(s, -4, 4, batch, m, k)), bits(_floats(s, -4, 4, batch, k, n))
    order = s.permutation(k)
    first, second = order[: k // 2], order[k // 2 :]
    a[:, :, second], b[:, second] = a[:, :, first] ^ 0x8000, b[:, first]
    spot = s.integers(0, k, batch, m)
    np.put_along_axis(a, spot[..., None], bits(_floats(s, -9, -4, batch, m, 1)), axis=2)
    exact = np.einsum("bmk,bkn->bmn", value(a), value(b))
    return a, b, np.where(s.integers(0, 2, batch, 1, 1) == 1, -exact, _floats(s, -24, -2, batch, m, n))


def _powers(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """Powers of two, many of them equal and many zero: every bit of the alignment shows."""
    batch, m, n, k = shape
    span = s.integers(2, 14, batch, 1, 1)
    a = s.signs(batch, m, k) * 2.0 ** -(s.u32(batch, m, k) % span) * (s.unit(batch, m, k) < 0.6)
    b = s.signs(batch, k, n) * 2.0 ** -(s.u32(batch, k, n) % span) * (s.unit(batch, k, n) < 0.8)
    c = s.signs(batch, m, n) * 2.0 ** -(s.integers(0, 30, batch, m, n)) * (s.unit(batch, m, n) < 0.7)
    return bits(a), bits(b), c


def _order(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """Row r has one large product at position r, the rest are 2^-(18+problem) of it; C cancels it in odd columns."""
    batch, m, n, k = shape
    a = np.broadcast_to(2.0 ** -(9 + np.arange(batch) % 8)[:, None, None], (batch, m, k)).copy()
    r = np.arange(m)
    a[:, r, r % k] = 2.0**9
    b = np.broadcast_to(1.0 + np.arange(n) % 4 / 4, (batch, k, n))
    c = np.where(np.arange(n) % 2 == 1, -(2.0**9), 0.0) * b[:, :1, :]
    return bits(a), bits(b), np.broadcast_to(c, (batch, m, n)).copy()


def _subnormal(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """Subnormal A throughout; B lifts the products, or leaves them among float32's subnormals (bf16)."""
    batch, m, n, k = shape
    mask, width = (0x83FF, 10) if fmt == "f16" else (0x807F, 7)
    a = (s.u16(batch, m, k) & np.uint16(mask)) >> np.uint16(0)
    shrink = s.integers(0, width, batch, m, k).astype(np.uint16)
    a = (a & np.uint16(0x8000)) | ((a & np.uint16(0x7FFF)) >> shrink)
    if fmt == "f16":
        b = bits(_floats(s, -14, 12, batch, k, n))
        return a, b, _floats(s, -30, -4, batch, m, n)
    b = bits(_floats(s, -12, 8, batch, k, n))
    c = s.signs(batch, m, n) * s.integers(0, 1 << 23, batch, m, n) * 2.0**-149
    return a, b, c


def _special(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """One operand in forty is an infinity, a NaN, a signed zero, or the largest or smallest finite number."""
    batch, m, n, k = shape
    inf, top = (0x7C00, 0x7BFF) if fmt == "f16" else (0x7F80, 0x7F7F)
    odd = np.array(
        [inf, inf | 0x8000, inf | 1, inf | 0x8055, 0, 0x8000, top, top | 0x8000, 1], dtype=np.uint16
    )
    a, b = bits(s.bell(batch, m, k)), bits(s.bell(batch, k, n))
    a = np.where(s.unit(batch, m, k) < 0.025, s.choose(odd, batch, m, k), a)
    b = np.where(s.unit(batch, k, n) < 0.025, s.choose(odd, batch, k, n), b)
    c = s.bell(batch, m, n)
    plain = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])
    return a, b, np.where(s.unit(batch, m, n) < 0.1, s.choose(plain, batch, m, n), c)


def _overflow(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """Sums near the largest accumulator: float16's 65504 for f16, float32's 2^128 for bf16."""
    batch, m, n, k = shape
    low, high = (5, 7) if fmt == "f16" else (61, 63)
    a, b = bits(_floats(s, low, high, batch, m, k)), bits(_floats(s, low, high, batch, k, n))
    c = _floats(s, 13, 15, batch, m, n) if fmt == "f16" else _floats(s, 124, 127, batch, m, n)
    return a, b, c


def _zeros(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """Signed zeros and products so small that the result may be one: which sign does a zero get?"""
    batch, m, n, k = shape
    signs = np.array([0, 0x8000], dtype=np.uint16)
    few = s.unit(batch, m, k) < s.choose(np.array([0.0, 0.1, 0.9]), batch, m, 1)
    a = s.choose(signs, batch, m, k) ^ np.where(few, s.integers(1, 9, batch, m, k), 0).astype(np.uint16)
    some = s.unit(batch, k, n) < s.choose(np.array([0.0, 0.3, 1.0]), batch, 1, n)
    low, high = (-14, 2) if fmt == "f16" else (-30, 2)
    b = np.where(some, bits(_floats(s, low, high, batch, k, n)), s.choose(signs, batch, k, n))
    tiny = np.where(s.unit(batch, m, n) < 0.2, 2.0**-24 if fmt == "f16" else 2.0**-149, 0.0)
    return a, b, s.signs(batch, m, n) * tiny


def _ties(s: Stream, fmt: str, shape: _Shape, bits: _Codec, value: _Codec) -> _Matrices:
    """A float16 number, half a unit in its last place, and 2^-12 to 2^-26 to break the tie (or not)."""
    batch, m, n, k = shape
    a, b = np.zeros((batch, m, k)), np.zeros((batch, k, n))
    first, second, third = s.permutation(k)[:3]
    a[:, :, first], b[:, first] = s.signs(batch, m) * (1.0 + s.integers(0, 1 << 7, batch, m) / (1 << 7)), 1.0
    a[:, :, second], b[:, second] = s.signs(batch, m) * 2.0**-5, 2.0**-6
    a[:, :, third] = s.signs(batch, m) * 2.0 ** -s.integers(0, 2, batch, m)
    b[:, third] = 2.0 ** -(12.0 + 2 * (np.arange(n) % 8))
    return bits(a), bits(b), np.zeros((batch, m, n))


_VALUES: dict[str, Callable[..., _Matrices]] = {
    "normal": _normal,
    "wide": _wide,
    "close": _close,
    "cancel": _cancel,
    "powers": _powers,
    "order": _order,
    "subnormal": _subnormal,
    "special": _special,
    "overflow": _overflow,
    "zeros": _zeros,
    "ties": _ties,
}
