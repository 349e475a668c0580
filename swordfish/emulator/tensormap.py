"""The plain description of a tensor map, from which the emulator and the driver's encoder both work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ELEMENT_BITS", "SWIZZLES", "TensorMap"]

ELEMENT_BITS = {"uint8": 8, "uint16": 16, "uint32": 32, "int32": 32, "uint64": 64, "int64": 64, "float16": 16,
                "bfloat16": 16, "float32": 32, "float32_ftz": 32, "tfloat32": 32, "tfloat32_ftz": 32,
                "float64": 64, "16u4_align8b": 4, "16u4_align16b": 4, "16u6_align16b": 6}  # fmt: skip
"""Bits of an element in global memory, by dtype name."""

SWIZZLES = ("none", "32", "64", "128", "128_atom32", "128_atom32_flip8", "128_atom64")
"""Swizzle modes; the position in this tuple is the number that the core uses."""


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map: dimension 0 is the innermost; ``strides`` are bytes of dimensions 1 and up.

    ``tensor`` is a torch tensor, a numpy array or an integer address; ``box`` and ``element_strides`` count
    elements."""

    tensor: Any
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    interleave: Literal["none", "16", "32"] = "none"
    fill: Literal["zero", "nan"] = "zero"
