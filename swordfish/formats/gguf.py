"""GGUF tensors of types Q4_0, Q4_1 and Q8_0: blocks of 32 inputs with an fp16 scale.

A tensor is uint8 ``[N, K / 32 * block]``; every block holds ``d`` (fp16), for Q4_1 also ``m`` (fp16), then
its codes. Byte ``j`` of a 4-bit block holds input ``j`` in its low and input ``j + 16`` in its high nibble.

====== ===== ============= =================================================
type   block value         as codes
====== ===== ============= =================================================
Q4_0   18    ``(q - 8) d`` 4 bits, symmetric
Q4_1   20    ``q d + m``   4 bits, ``m`` as floating zero (``offset``)
Q8_0   34    ``q d``       8 bits, signed bytes stored plus 128, symmetric
====== ===== ============= =================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from swordfish.errors import ArgumentError
from swordfish.formats.base import CheckpointFormat, Config, LayerParams, Tensors, register
from swordfish.formats.checks import check_tensor
from swordfish.weights import QuantizedWeight

__all__ = ["GROUP", "Q4_0", "Q4_1", "Q8_0", "BlockCodes", "GgufBlocks"]

GROUP = 32
"""Inputs per block of all three types."""


@dataclass(frozen=True)
class BlockCodes:
    """The codes of blocks, uint8 ``[N, K / 32, 16 or 32]``, as a :class:`swordfish.layouts.ColumnSource`."""

    data: torch.Tensor
    bits: int
    shape: tuple[int, int]

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.data.device

    def columns(self, start: int, stop: int) -> torch.Tensor:
        """Codes of columns ``start`` to ``stop``, uint8 ``[K, stop - start]``."""
        data = self.data[start:stop]
        codes = data ^ 128 if self.bits == 8 else torch.cat((data & 15, data >> 4), dim=-1)
        return codes.flatten(1).t()


class GgufBlocks(CheckpointFormat):
    """What the three block types share. The tensor type, not a config, says how a layer is quantised."""

    quant_method = "gguf"
    required = ("blocks",)
    optional = ("bias",)
    header: ClassVar[int]
    """Bytes before the codes of a block."""

    def variant(self, config: Config) -> str:
        return str(config.get("quant_type") or "").upper()

    def layer_params(self, config: Config, layer: str) -> LayerParams | None:
        return LayerParams(bits=self.bits[0], group_size=GROUP, act_order=False)

    def shape(self, tensors: Tensors, params: LayerParams) -> tuple[int, int]:
        blocks = tensors["blocks"]
        check_tensor("blocks", blocks, 2, (torch.uint8,))
        size = self.header + GROUP * self.bits[0] // 8
        n, row = blocks.shape
        if row % size:
            raise ArgumentError(
                "blocks.shape", tuple(blocks.shape), f"rows of whole {self.variants[0]} blocks, {size} bytes"
            )
        return row // size * GROUP, n

    def read(self, tensors: Tensors, params: LayerParams) -> QuantizedWeight:
        k, n = self.shape(tensors, params)
        minimum = self._minimum(tensors, params)
        return QuantizedWeight(
            codes=BlockCodes(self._blocks(tensors, params)[:, :, self.header :], self.bits[0], (k, n)),
            scales=self._half(tensors, params, 0),
            zeros=minimum,
            bias=tensors.get("bias"),
            bits=self.bits[0],
            group_size=GROUP,
            zero_kind="none" if minimum is None else "offset",
        )

    def dequantize(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        k, _ = self.shape(tensors, params)
        blocks = self._blocks(tensors, params)
        rows = torch.arange(k, device=blocks.device)
        block, i = rows // GROUP, rows % GROUP
        if self.bits[0] == 8:
            value = blocks[:, block, self.header + i].view(torch.int8).float()
        else:
            byte = blocks[:, block, self.header + i % 16].int()
            value = ((byte >> (i // 16 * 4).int()) & 15).float()
        minimum = self._minimum(tensors, params)
        if self.bits[0] == 4 and minimum is None:
            value = value - 8
        value = value.t() * self._half(tensors, params, 0).float()[block]
        return value if minimum is None else value + minimum.float()[block]

    def _minimum(self, tensors: Tensors, params: LayerParams) -> torch.Tensor | None:
        """The minimum of each block, fp16 ``[G, N]``, where the type has one."""
        return None

    def _blocks(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        k, n = self.shape(tensors, params)
        return tensors["blocks"].reshape(n, k // GROUP, -1)

    def _half(self, tensors: Tensors, params: LayerParams, byte: int) -> torch.Tensor:
        """The fp16 at ``byte`` of every block, ``[G, N]``."""
        return (
            self._blocks(tensors, params)[:, :, byte : byte + 2]
            .contiguous()
            .view(torch.float16)
            .squeeze(-1)
            .t()
        )


@register
class Q4_0(GgufBlocks):
    """4 bits, symmetric."""

    name = "gguf-q4_0"
    variants = ("Q4_0",)
    bits = (4,)
    header = 2


@register
class Q4_1(GgufBlocks):
    """4 bits with a floating minimum."""

    name = "gguf-q4_1"
    variants = ("Q4_1",)
    bits = (4,)
    header = 4

    def _minimum(self, tensors: Tensors, params: LayerParams) -> torch.Tensor | None:
        return self._half(tensors, params, 2)


@register
class Q8_0(GgufBlocks):
    """8 bits, symmetric."""

    name = "gguf-q8_0"
    variants = ("Q8_0",)
    bits = (8,)
    header = 2
