"""Codes that a checkpoint stores several to an int32, read a range of columns at a time.

Packing from :class:`Int32Codes` never holds all codes at once, so a weight is packed with little more memory
than the packed tensor itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = ["Int32Codes"]


@dataclass(frozen=True)
class Int32Codes:
    """Codes of ``bits`` bits (4 or 8), ``32 // bits`` to an int32, least significant first.

    ==================== =========== ==================== ========================================
    stored by            ``words``   ``packed``           ``interleave``
    ==================== =========== ==================== ========================================
    GPTQ                 [K/p, N]    ``"k"``              ``None``
    AWQ (gemm)           [K, N/p]    ``"n"``              ``(0, 2, 4, 6, 1, 3, 5, 7)``
    compressed-tensors   [N, K/p]    ``"k"``, transposed  ``None``
    ==================== =========== ==================== ========================================

    with ``p = 32 // bits``. ``interleave[i]`` is the position, within its group of ``p``, of the code in
    field ``i`` of a word. The packed dimension may have been filled up to whole words: ``shape = (K, N)``
    tells how much of it counts.

    Raises ``ArgumentTypeError`` unless ``words`` is int32 and ``ArgumentError`` when its shape does not hold
    ``shape`` codes.
    """

    words: torch.Tensor
    bits: int
    shape: tuple[int, int]
    packed: str = "k"
    transposed: bool = False
    interleave: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ArgumentError("bits", self.bits, "4 or 8")
        if self.packed not in ("k", "n"):
            raise ArgumentError("packed", self.packed, "'k' or 'n'")
        if self.words.dtype != torch.int32:
            raise ArgumentTypeError("words.dtype", self.words.dtype, "torch.int32")
        per_word = 32 // self.bits
        if self.interleave is not None and sorted(self.interleave) != list(range(per_word)):
            raise ArgumentError("interleave", self.interleave, f"a permutation of 0 to {per_word - 1}")
        k, n = self.shape
        expected = (-(-k // per_word), n) if self.packed == "k" else (k, -(-n // per_word))
        if self.transposed:
            expected = expected[::-1]
        if tuple(self.words.shape) != expected:
            raise ArgumentError(
                "words.shape", tuple(self.words.shape), f"{expected} for K={k}, N={n}, bits={self.bits}"
            )

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.words.device

    def columns(self, start: int, stop: int) -> torch.Tensor:
        """Codes of columns ``start`` to ``stop``, uint8 ``[K, stop - start]`` (``start`` a multiple of 8)."""
        k, _ = self.shape
        per_word = 32 // self.bits
        n_axis = 0 if self.transposed else 1
        if self.packed == "k":
            part = self.words.narrow(n_axis, start, stop - start)
        else:
            part = self.words.narrow(n_axis, start // per_word, -(-stop // per_word) - start // per_word)
        packed_axis = 1 - n_axis if self.packed == "k" else n_axis
        codes = self._unpack(part, packed_axis)
        codes = codes.t() if self.transposed else codes
        return codes[:k, : stop - start]

    def dense(self) -> torch.Tensor:
        """All codes, uint8 ``[K, N]``."""
        return self.columns(0, self.shape[1])

    def _unpack(self, words: torch.Tensor, axis: int) -> torch.Tensor:
        """All fields of 2-D ``words`` side by side along ``axis``, as uint8."""
        # A contiguous tensor may have any stride along a dimension of 1, but view(dtype) insists on 1.
        rows = words.contiguous().as_strided(words.shape, (words.shape[1], 1))
        fields = rows.view(torch.uint8).view(*words.shape, 4)  # [A, B, byte]
        if self.bits == 4:
            fields = torch.stack((fields & 15, fields >> 4), dim=-1).flatten(2)  # [A, B, field]
        if self.interleave is not None:
            field_of = sorted(range(len(self.interleave)), key=self.interleave.__getitem__)
            fields = fields[:, :, field_of]
        return fields.flatten(1) if axis == 1 else fields.transpose(1, 2).flatten(0, 1)
