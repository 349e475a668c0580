"""The problems that are timed: layer shapes of Llama 3 8B and 70B, lists of M, and the bytes a launch must
read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = [
    "CHAIN",
    "DECODE_M",
    "DTYPES",
    "PREFILL_M",
    "SHAPES",
    "Problem",
    "Shape",
    "parse_ints",
    "parse_shapes",
]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Shape:
    """A linear layer ``y[M, N] = x[M, K] @ W[K, N]``."""

    name: str
    k: int
    n: int


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("8b.o", 4096, 4096),
        Shape("8b.qkv", 4096, 6144),
        Shape("8b.gate_up", 4096, 28672),
        Shape("8b.down", 14336, 4096),
        Shape("70b.o", 8192, 8192),
        Shape("70b.gate_up", 8192, 57344),
        Shape("70b.down", 28672, 8192),
    )
}

CHAIN = ("8b.qkv", "8b.o", "8b.gate_up", "8b.down")
"""The four GEMMs of one decoder layer, in the order in which they depend on each other."""

DECODE_M = (1, 8, 16, 32, 48, 64, 96, 128)
PREFILL_M = (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Problem:
    """A shape with its scheme. ``group_size`` is -1 for channelwise scales; ``zeros`` means integer zero
    points."""

    shape: Shape
    bits: int = 4
    group_size: int = 128
    dtype: str = "bfloat16"
    zeros: bool = False
    act_order: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        """The activation dtype."""
        return DTYPES[self.dtype]

    @property
    def groups(self) -> int:
        """Rows of the scale tensor."""
        return 1 if self.group_size == -1 else -(-self.shape.k // self.group_size)

    @property
    def packed_bytes(self) -> int:
        """Bytes that a launch must read from the weight: codes, 16-bit scales and, if any, zero points as
        codes."""
        codes = self.shape.k * self.shape.n * self.bits // 8
        scales = self.groups * self.shape.n * 2
        zeros = self.groups * self.shape.n * self.bits // 8 if self.zeros else 0
        return codes + scales + zeros


def parse_ints(text: str) -> list[int]:
    """``"1,8,16"`` to ``[1, 8, 16]``; ``decode`` and ``prefill`` name the lists above."""
    values: list[int] = []
    for part in text.split(","):
        if part in ("decode", "prefill"):
            values += DECODE_M if part == "decode" else PREFILL_M
        elif part.isdigit() and int(part) > 0:
            values.append(int(part))
        else:
            raise ValueError(f"m={part!r} is not allowed: expected positive integers, 'decode' or 'prefill'")
    return values


def parse_shapes(text: str) -> list[Shape]:
    """``"8b.o,4096x6144"`` to shapes: names of :data:`SHAPES`, ``all``, or ``KxN``."""
    shapes: list[Shape] = []
    for part in text.split(","):
        dims = part.split("x")
        if part == "all":
            shapes += SHAPES.values()
        elif part in SHAPES:
            shapes.append(SHAPES[part])
        elif len(dims) == 2 and all(d.isdigit() and int(d) > 0 for d in dims):
            shapes.append(Shape(part, int(dims[0]), int(dims[1])))
        else:
            raise ValueError(
                f"shape={part!r} is not allowed: expected KxN, 'all' or one of {', '.join(SHAPES)}"
            )
    return shapes
