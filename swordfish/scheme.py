"""The one description of how a weight is quantised, shared by formats, kernels, dispatch and caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = ["CHANNELWISE", "DTYPES", "Scheme", "ZeroKind"]

CHANNELWISE = -1
"""``group_size`` of a weight with one scale per output column."""

DTYPES: dict[str, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}

ZeroKind = Literal["none", "integer", "offset"]


@dataclass(frozen=True)
class Scheme:
    """How the packed codes ``q`` of a weight become values.

    ============ =============================== =====================================================
    ``zeros``    value                           comes from
    ============ =============================== =====================================================
    ``none``     ``(q - 2**(bits-1)) * s``       symmetric GPTQ, compressed-tensors, GGUF Q4_0, Q8_0
    ``integer``  ``(q - z) * s``                 AWQ, asymmetric GPTQ and compressed-tensors
    ``offset``   ``q * s + z``                   GGUF Q4_1 (``z`` is the block's floating-point minimum)
    ============ =============================== =====================================================

    ``group_size`` is ``-1`` (channelwise, one scale row) or a multiple of 32; the last group may be short.
    ``dtype`` is the activation dtype; scales and zeros are stored in it. ``act_order`` says that packed
    row ``i`` is checkpoint row ``perm[i]``.

    Raises ``ArgumentError`` or ``ArgumentTypeError`` on a value outside these sets.
    """

    bits: int
    group_size: int
    dtype: str
    zeros: ZeroKind = "none"
    act_order: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or isinstance(self.bits, bool):
            raise ArgumentError("bits", self.bits, "4 or 8")
        size = self.group_size
        if not isinstance(size, int) or (size != CHANNELWISE and (size < 32 or size % 32)):
            raise ArgumentError("group_size", repr(size), "-1 (channelwise) or a positive multiple of 32")
        if self.dtype not in DTYPES:
            raise ArgumentTypeError("dtype", self.dtype, "'float16' or 'bfloat16'")
        if self.zeros not in ("none", "integer", "offset"):
            raise ArgumentError("zeros", self.zeros, "'none', 'integer' or 'offset'")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The activation dtype as a ``torch.dtype``."""
        return DTYPES[self.dtype]

    @property
    def symmetric_zero(self) -> int:
        """The implied zero point of a symmetric weight: 8 for 4 bits, 128 for 8 bits."""
        return 1 << (self.bits - 1)

    def groups(self, k: int) -> int:
        """Number of scale rows of a weight with ``k`` input features."""
        return 1 if self.group_size == CHANNELWISE else -(-k // self.group_size)
