"""Which lane and register of an ``mma.sync.m16n8k16`` operand each packed code belongs to.

The tensor core instruction's own thread-value layouts (``tensor_layouts.atoms_nv``, from PTX ISA "Matrix
Fragments for mma.m16n8k16") are composed with the block layout: the result maps a lane and a value of its
fragment to a bit offset. Kernels rely on what comes out: lane ``T`` finds its whole fragment in its own
words, and masking one word with ``0x000f000f`` (int4) gives two halves of one register.
"""

from __future__ import annotations

from tensor_layouts import Layout, compose
from tensor_layouts.atoms_nv import SM80_16x8x16_F32F16F16F32_TN as MMA

from swordfish.layouts.format import modes

__all__ = ["a_fragment", "b_fragment"]


def b_fragment(bits: int) -> Layout:
    """``((lane % 4, lane // 4), (half, register))`` -> bit offset, for the first n8 tile and k16 step.

    The weight is the B operand (K x N), two registers to a lane. Other tiles are at the offsets of modes
    ``b`` and ``j`` (n8 tiles), other steps at those of ``s``.
    """
    return compose(_tile(bits, n_modes="c"), MMA.b_layout)


def a_fragment(bits: int) -> Layout:
    """``((lane % 4, lane // 4), (half, register % 2, register // 2))`` -> bit offset, for the first n16 tile.

    The transposed weight is the A operand (N x K: weights in the rows of the product), four registers to a
    lane; used when activations are the B operand.
    """
    return compose(_tile(bits, n_modes="cb"), MMA.a_layout)


def _tile(bits: int, n_modes: str) -> Layout:
    """``(n, k)`` of an n8 or n16 by k16 tile -> bit offset. Atoms count ``n`` fastest."""
    by_name = {mode.name: mode for mode in modes(bits)}
    n = [by_name[name] for name in n_modes]
    k = [by_name[name] for name in "oth"]
    return Layout(
        (tuple(m.extent for m in n), tuple(m.extent for m in k)),
        (tuple(m.stride for m in n), tuple(m.stride for m in k)),
    )
