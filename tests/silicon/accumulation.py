"""The accumulation of mma.sync and wgmma with 16-bit operands as a numpy model with parameters.

``D = round(C + sum_k A[k] B[k])`` over one block, the K of the instruction: exact products, every term shifted to the
largest exponent and truncated after ``fraction`` bits, an exact sum, one rounding. See docs/emulator.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .case import Array
from .data import bf16_value, f16_value, f32_value

__all__ = ["Model", "accumulate"]

_FIELDS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23)}
_NONE = -10_000


@dataclass(frozen=True)
class Model:
    """``block``: products summed at once (0: all of K). ``toward_zero``: terms lose bits toward zero, else toward minus
    infinity. ``zeros_count``: a zero term takes part in the search for the largest exponent. ``least``: the smallest
    exponent that terms are aligned to. ``nearest_f32``: float32 results round to nearest, not toward zero.
    ``twice``: float16 results go through float32."""

    block: int = 0
    fraction: int = 25
    toward_zero: bool = True
    zeros_count: bool = False
    least: int = -133
    nearest_f32: bool = False
    twice: bool = False


def accumulate(a: Array, b: Array, c: Array, fmt: str, acc: str, model: Model) -> Array:
    """Patterns of A ``[batch, m, k]``, B ``[batch, k, n]``, C ``[batch, m, n]`` -> patterns of D; finite operands or not."""
    k = a.shape[-1]
    block = model.block or k
    d = c
    for start in range(0, k, block):
        part = slice(start, start + block)
        last = start + block >= k
        d = _block(
            a[:, :, part], b[:, part], d, fmt, acc if start == 0 else "f32", acc if last else "f32", model
        )
    return _special(a, b, c, fmt, acc, d)


def _decode(bits: Array, fmt: str) -> tuple[Array, Array, int]:
    """Signed integer significand, exponent (subnormals keep the smallest), fraction bits of the significand."""
    width, mantissa = _FIELDS[fmt]
    bits = bits.astype(np.int64)
    field = bits >> mantissa & (1 << width) - 1
    value = bits & (1 << mantissa) - 1 | np.where(field == 0, 0, 1 << mantissa)
    exponent = np.maximum(field, 1) - (1 << (width - 1)) + 1
    return np.where(bits >> (width + mantissa) & 1 == 1, -value, value), exponent, mantissa


def _block(a: Array, b: Array, c: Array, fmt: str, c_fmt: str, d_fmt: str, model: Model) -> Array:
    (ma, ea, bits), (mb, eb, _), (mc, ec, c_bits) = _decode(a, fmt), _decode(b, fmt), _decode(c, c_fmt)
    products = ma[:, :, :, None] * mb[:, None]
    exponents = ea[:, :, :, None] + eb[:, None]
    terms = np.concatenate(
        [products << 23 - 2 * bits if bits == 7 else products << 3, (mc << 23 - c_bits)[:, :, None]], axis=2
    )
    exponents = np.concatenate([exponents, ec[:, :, None]], axis=2)
    counted = exponents if model.zeros_count else np.where(terms == 0, _NONE, exponents)
    top = np.maximum(counted.max(axis=2), model.least)
    right = np.minimum(top[:, :, None] - exponents, 60)
    magnitude = np.abs(terms) << model.fraction - 23
    aligned = magnitude >> right
    if not model.toward_zero:
        aligned = np.where(terms < 0, -((-magnitude) >> right), aligned)
    total = np.where(terms < 0, -aligned, aligned).sum(axis=2)
    return _round(np.ldexp(total.astype(np.float64), top - model.fraction), d_fmt, model)


def _round(exact: Array, fmt: str, model: Model) -> Array:
    with np.errstate(all="ignore"):
        if fmt == "f16" and not model.twice:
            out = exact.astype(np.float16)
        else:
            out = exact.astype(np.float32)
            if not model.nearest_f32:
                over = np.abs(out.astype(np.float64)) > np.abs(exact)
                out = np.where(over & (np.abs(exact) < 2.0**128), np.nextafter(out, np.float32(0)), out)
            if fmt == "f16":
                out = out.astype(np.float16)
        out = np.where(out == 0, out.dtype.type(0), out)
    return out.view(np.uint16 if fmt == "f16" else np.uint32)


def _special(a: Array, b: Array, c: Array, fmt: str, acc: str, d: Array) -> Array:
    """Infinities and NaNs by IEEE 754, NaN results canonical."""
    value = f16_value if fmt == "f16" else bf16_value
    with np.errstate(all="ignore"):
        products = value(a)[:, :, :, None] * value(b)[:, None]
        start = f32_value(c) if acc == "f32" else f16_value(c)
    plus = np.isposinf(products).any(axis=2) | np.isposinf(start)
    minus = np.isneginf(products).any(axis=2) | np.isneginf(start)
    nan = np.isnan(products).any(axis=2) | np.isnan(start) | (plus & minus)
    codes = (0x7F800000, 0xFF800000, 0x7FFFFFFF) if acc == "f32" else (0x7C00, 0xFC00, 0x7FFF)
    for where, code in zip((plus, minus, nan), codes, strict=True):
        d = np.where(where, d.dtype.type(code), d)
    return d
