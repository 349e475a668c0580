"""Packed words to 16-bit weights in registers: the arithmetic of each scheme.

A 16-bit pair ``x`` that holds a masked code in bits 0-3, 4-7 or 0-7 is, read as bf16, the code times
2**-133 or 2**-129: subnormals and the first binade are linear. One fused multiply-add therefore converts,
scales and subtracts the zero point with a single rounding. Codes of fp16 weights get the exponent of 1024
instead, since fp16 has too little range.

==========  ===========  ====================================================================
dtype       zeros        per register (two weights)
==========  ===========  ====================================================================
bfloat16    none         ``fma(x, s * 2**101, -zero * s * 2**-32)``
bfloat16    offset       ``fma(x, s * 2**101, z * 2**-32)``
bfloat16    integer      ``fma(x, 2**127, -z * 2**-6) * (s * 2**6)``: the difference is exact
float16     none, int.   ``((1024 + q) - (1024 + z)) * s``: the difference is exact
float16     offset       ``fma((1024 + q) - 1024, s, z)``
==========  ===========  ====================================================================

The factor 2**-32 is :attr:`~swordfish.prefill.config.PrefillConfig.fold`. Codes in bits 4-7 take a factor
of 1/16. Where the epilogue multiplies by the scales, there is no ``s`` and the exact difference is the
operand; its factor of 2**-6 in bf16 is ``fold`` as well.
"""

import struct
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32, Uint32
from cutlass.experimental import primitives as prims

from swordfish.scheme import Scheme


def bf16_pair(exponent, sign=0):
    """Both halves ``(-1)**sign * 2**exponent`` in bf16."""
    return ((sign << 15) | (exponent + 127) << 7) * 0x10001


def fp16_pair(value):
    """Both halves ``value`` in fp16, which must hold it exactly."""
    bits = struct.unpack("<H", struct.pack("<e", value))[0]
    assert struct.unpack("<e", struct.pack("<H", bits))[0] == value
    return bits * 0x10001


NEGATIVE_ZERO = 0x80008000  # the addend that changes nothing, signs of zeros included


def held(value, nothing):
    """A constant that stays in a register: ``nothing`` is 0, which the compiler cannot know.

    An instruction takes one immediate; ptxas would make the second constant anew before every use.
    """
    return Uint32(value) | nothing


@dataclass(frozen=True)
class Bf16Fused:
    """bf16 without zeros or with offsets: one fused multiply-add per register."""

    scheme: Scheme
    fold: int

    filler = 0

    def constants(self, s, z):
        """Of one row and group: factors for codes in bits 0 and up and in bits 4 and up, and the addend."""
        if self.scheme.zeros == "offset":
            addend = multiply(z, bf16_pair(-self.fold))
        else:
            addend = multiply(s, bf16_pair(self.scheme.bits - 1 - self.fold, sign=1))
        return multiply(s, bf16_pair(133 - self.fold)), multiply(s, bf16_pair(129 - self.fold)), addend

    def mask(self, word, mask):
        """The codes of a word that ``mask`` selects."""
        return word & Uint32(mask)

    def value(self, x, constants, high):
        """Two weights of a masked pair of codes; ``high`` says that they are in bits 4-7."""
        return fma(x, constants[int(high)], constants[2])


@dataclass(frozen=True)
class Bf16Exact:
    """bf16 with integer zero points or without scales: an exact difference, then the one rounding of the
    product."""

    symmetric: Uint32

    filler = 0

    @classmethod
    def of(cls, scheme, nothing):
        """With the addend of a symmetric weight."""
        return cls(held(bf16_pair(scheme.bits - 1 - 6, sign=1), nothing))

    def constants(self, s, z):
        addend = self.symmetric if z is None else multiply(z, bf16_pair(-6, sign=1))
        return None if s is None else multiply(s, bf16_pair(6)), addend

    def mask(self, word, mask):
        return word & Uint32(mask)

    def value(self, x, constants, high):
        s, addend = constants
        exact = fma(x, Uint32(bf16_pair(123 if high else 127)), addend)
        return exact if s is None else multiply(exact, s)


@dataclass(frozen=True)
class Fp16Exact:
    """fp16: a code in the low bits of 1024's significand; subtract, then multiply (or add the offset)."""

    scheme: Scheme
    exponent: Uint32
    sixteenth: Uint32
    minus_low: Uint32
    minus_high: Uint32

    filler = 0x64646464

    @classmethod
    def of(cls, scheme, nothing):
        """With the constants of the whole kernel; a symmetric weight's zero point is among them."""
        zero = scheme.symmetric_zero if scheme.zeros == "none" else 0
        values = (1024.0, 1 / 16, -1024.0 - zero, -64.0 - zero)
        return cls(scheme, *[held(fp16_pair(value), nothing) for value in values])

    def constants(self, s, z):
        if self.scheme.zeros != "integer":
            return s, self.minus_low, self.minus_high, z
        negative = Uint32(fp16_pair(-1.0))
        return s, fma16(z, negative, self.minus_low), fma16(z, negative, self.minus_high), z

    def mask(self, word, mask):
        return (word & Uint32(mask)) | self.exponent

    def value(self, x, constants, high):
        s, minus_low, minus_high, z = constants
        if high:  # 1024 + 16 q
            exact = fma16(x, self.sixteenth, minus_high)
        else:
            exact = fma16(x, Uint32(fp16_pair(1.0)), minus_low)
        if s is None:
            return exact
        return fma16(exact, s, z if self.scheme.zeros == "offset" else Uint32(NEGATIVE_ZERO))


def arithmetic(c, nothing):
    """The arithmetic of a configuration; ``nothing`` is a zero that the compiler cannot know."""
    if c.scheme.dtype == "float16":
        return Fp16Exact.of(c.scheme, nothing)
    if c.scheme.zeros == "integer" or c.scales_results:
        return Bf16Exact.of(c.scheme, nothing)
    return Bf16Fused(c.scheme, c.fold)


def fma(x, y, z):
    """bf16x2 fused multiply-add."""
    return Uint32(cute.arch.fma_packed_bf16x2(Int32(x), Int32(y), Int32(z)))


def fma16(x, y, z):
    """fp16x2 fused multiply-add."""
    return Uint32(cute.arch.fma_packed_f16x2(Int32(x), Int32(y), Int32(z)))


def multiply(x, constant):
    """bf16x2 product with a constant or a register."""
    return fma(x, Uint32(constant), Uint32(NEGATIVE_ZERO))


def fragment4(a, word, low, high):
    """An int4 word: its k16 x n16 fragment, registers ``(h0, c) (h0, c + 8) (h1, c) (h1, c + 8)``.

    ``low`` and ``high`` are the constants of rows c and c + 8; h is the k octet.
    """
    shifted = word >> Uint32(8)
    return (
        a.value(a.mask(word, 0x000F000F), low, False),
        a.value(a.mask(shifted, 0x000F000F), high, False),
        a.value(a.mask(word, 0x00F000F0), low, True),
        a.value(a.mask(shifted, 0x00F000F0), high, True),
    )


def fragment8(a, words, low, high):
    """Two int8 words, of rows c and c + 8: the same fragment. One byte permutation takes every other byte."""
    registers = []
    for selector in (0x4240, 0x4341):
        for word, constants in zip(words, (low, high), strict=True):
            x = Uint32(prims.prmt(word, selector, prims.PermuteMode.DEFAULT, hi=a.filler))
            registers.append(a.value(x, constants, False))
    return tuple(registers)
