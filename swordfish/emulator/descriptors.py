"""Descriptors of tcgen05, decoded by the rules of the PTX ISA (9.7.16.4 and 9.7.16.4.2): for reports and
notebooks.

The emulator's core decodes the same fields in ``core/tcgen05_desc.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from swordfish.errors import ArgumentError

__all__ = ["InstructionDescriptor", "MatrixDescriptor"]

SWIZZLE_BYTES = {0: 16, 1: 128, 2: 128, 4: 64, 6: 32}
"""Bits 61-63 of a matrix descriptor -> bytes of a swizzled row; 1 is the 128-byte swizzle with 32-byte
atoms.
"""
_XOR = {0: (0, 4), 1: (3, 5), 2: (7, 4), 4: (3, 4), 6: (1, 4)}
_MMA_TYPES = {
    "f16": ("f16", "bf16"),
    "tf32": ("?", "?", "tf32"),
    "f8f6f4": ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"),
    "i8": ("u8", "s8"),
}


@dataclass(frozen=True)
class MatrixDescriptor:
    """Where an operand lies in shared memory: ``start``, ``leading`` and ``stride`` in bytes,
    ``swizzle`` as encoded.
    """

    start: int
    leading: int
    stride: int
    swizzle: int
    base_offset: int = 0

    @classmethod
    def decode(cls, bits: int) -> MatrixDescriptor:
        """Read the 64 bits.

        Raises ``ArgumentError`` when bits 46-48 are not 1 or the swizzle does not exist.
        """
        if bits >> 46 & 7 != 1:
            raise ArgumentError("bits", hex(bits), "a descriptor with 0b001 in bits 46-48")
        if bits >> 61 not in SWIZZLE_BYTES:
            raise ArgumentError("bits", hex(bits), "a swizzle of 0, 1, 2, 4 or 6 in bits 61-63")
        part = 0x3FFF
        return cls(
            (bits & part) << 4, (bits >> 16 & part) << 4, (bits >> 32 & part) << 4, bits >> 61, bits >> 49 & 7
        )

    def encode(self) -> int:
        """The 64 bits."""
        fields = self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return fields | 1 << 46 | self.base_offset << 49 | self.swizzle << 61

    def place(self, linear: int) -> int:
        """The address that hardware uses for an unswizzled address: absolute bits are XORed."""
        mask, shift = _XOR[self.swizzle]
        return linear ^ (((linear >> 7) - self.base_offset) & mask) << shift

    def address(self, index: int, k: int, elem_bytes: int, *, mn_major: bool = False) -> int:
        """Byte offset in shared memory of the element at row (M or N) ``index`` and depth ``k`` of one
        instruction.
        """
        row = SWIZZLE_BYTES[self.swizzle]
        if not mn_major:
            chunk, rest = divmod(k * elem_bytes, 16)
            step = self.leading if self.swizzle == 0 else 16
            width = 16 if self.swizzle == 0 else row
            linear = self.start + index % 8 * width + index // 8 * self.stride + chunk * step
            return self.place(linear) + rest
        block, rest = divmod(index * elem_bytes, 16)
        if self.swizzle == 0:
            linear = self.start + block * self.stride + k % 8 * 16 + k // 8 * self.leading
        else:
            wide, depth = row // 16, 4 if self.swizzle == 1 else 8
            linear = (
                self.start
                + block % wide * 16
                + block // wide * self.leading
                + k % depth * row
                + k // depth * self.stride
            )
        return self.place(linear) + rest


@dataclass(frozen=True)
class InstructionDescriptor:
    """Shape and types of one tcgen05.mma; ``kind`` is ``f16``, ``tf32``, ``f8f6f4`` or ``i8``."""

    kind: str
    m: int
    n: int
    d_type: str
    a_type: str
    b_type: str
    negate_a: bool = False
    negate_b: bool = False
    a_mn_major: bool = False
    b_mn_major: bool = False

    @classmethod
    def decode(cls, bits: int, kind: str = "f16") -> InstructionDescriptor:
        """Read the 32 bits of an instruction of ``kind``.

        Raises ``ArgumentError`` for a kind or operand type that does not exist.
        """
        types = _MMA_TYPES.get(kind)
        if types is None:
            raise ArgumentError("kind", kind, ", ".join(_MMA_TYPES))
        a, b = bits >> 7 & 7, bits >> 10 & 7
        if max(a, b) >= len(types):
            raise ArgumentError("bits", hex(bits), f"operand types below {len(types)} for kind::{kind}")
        return cls(
            kind,
            (bits >> 24 & 31) * 16,
            (bits >> 17 & 63) * 8,
            ("f16", "f32", "s32", "?")[bits >> 4 & 3],
            types[a],
            types[b],
            bool(bits >> 13 & 1),
            bool(bits >> 14 & 1),
            bool(bits >> 15 & 1),
            bool(bits >> 16 & 1),
        )

    def encode(self) -> int:
        """The 32 bits."""
        types = _MMA_TYPES[self.kind]
        bits = (
            ("f16", "f32", "s32").index(self.d_type) << 4
            | types.index(self.a_type) << 7
            | types.index(self.b_type) << 10
        )
        flags = self.negate_a << 13 | self.negate_b << 14 | self.a_mn_major << 15 | self.b_mn_major << 16
        return bits | flags | self.n // 8 << 17 | self.m // 16 << 24
