"""AWQ checkpoints of the gemm kind: 4 bits with zero points.

``qweight`` int32 ``[K, N / 8]`` and ``qzeros`` int32 ``[G, N / 8]`` are packed along N; nibble ``i`` of
word ``m`` holds column ``8 * m + (0, 2, 4, 6, 1, 3, 5, 7)[i]``. ``W[k, n] = (q[k, n] - z[k // gs, n]) *
scales[k // gs, n]``.
"""

from __future__ import annotations

import torch

from swordfish.formats.base import CheckpointFormat, Config, LayerParams, Tensors, register
from swordfish.formats.checks import (
    FLOATS,
    as_bits,
    as_group_size,
    canonical,
    check_shape,
    check_tensor,
    group_of_row,
    resolve_group_size,
)
from swordfish.formats.modules import is_listed
from swordfish.layouts import Int32Codes
from swordfish.weights import QuantizedWeight

__all__ = ["INTERLEAVE", "AwqGemm"]

INTERLEAVE = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble ``i`` of word ``m`` holds column ``8 * m + INTERLEAVE[i]``."""


@register
class AwqGemm(CheckpointFormat):
    """AWQ gemm. Other AWQ layouts (gemv, gemv_fast, exllama, marlin) are refused by name."""

    name = "awq"
    quant_method = "awq"
    variants = ("gemm",)
    bits = (4,)
    required = ("qweight", "qzeros", "scales")
    optional = ("bias",)

    def variant(self, config: Config) -> str:
        return str(
            config.get("version") or config.get("checkpoint_format") or config.get("format") or "gemm"
        ).lower()

    def layer_params(self, config: Config, layer: str) -> LayerParams | None:
        if is_listed(layer, config.get("modules_to_not_convert"), "modules_to_not_convert"):
            return None
        group_key = "group_size" if "group_size" in config else "q_group_size"
        return LayerParams(
            bits=as_bits(config.get("bits", config.get("w_bit")), self.bits),
            group_size=as_group_size(config[group_key]) if group_key in config else None,
            symmetric=False,
            act_order=False,
        )

    def shape(self, tensors: Tensors, params: LayerParams) -> tuple[int, int]:
        qweight, qzeros, scales = tensors["qweight"], tensors["qzeros"], tensors["scales"]
        check_tensor("qweight", qweight, 2, (torch.int32,))
        check_tensor("qzeros", qzeros, 2, (torch.int32,))
        check_tensor("scales", scales, 2, FLOATS)
        k, n, groups = qweight.shape[0], qweight.shape[1] * 8, scales.shape[0]
        check_shape("scales", scales, (groups, n), f"8 columns per word of qweight, N={n}")
        resolve_group_size(params.group_size, k, groups)
        check_shape("qzeros", qzeros, (groups, n // 8), "one row per scale row, 8 zero points per word")
        return k, n

    def read(self, tensors: Tensors, params: LayerParams) -> QuantizedWeight:
        k, n = self.shape(tensors, params)
        groups = tensors["scales"].shape[0]
        return QuantizedWeight(
            codes=Int32Codes(tensors["qweight"], 4, (k, n), packed="n", interleave=INTERLEAVE),
            scales=tensors["scales"],
            zeros=Int32Codes(
                canonical(tensors["qzeros"]), 4, (groups, n), packed="n", interleave=INTERLEAVE
            ).dense(),
            bias=tensors.get("bias"),
            bits=4,
            group_size=resolve_group_size(params.group_size, k, groups),
            zero_kind="integer",
        )

    def dequantize(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        k, n = self.shape(tensors, params)
        scales = tensors["scales"].float()
        group_size = resolve_group_size(params.group_size, k, scales.shape[0])
        group = group_of_row(None, k, group_size, scales.device)
        cols = torch.arange(n, device=scales.device)
        nibble = torch.tensor([INTERLEAVE.index(i) for i in range(8)], device=scales.device)[cols % 8]
        q = (tensors["qweight"][:, cols // 8] >> (4 * nibble).int()) & 15
        z = (tensors["qzeros"][:, cols // 8] >> (4 * nibble).int()) & 15
        return (q - z[group]).float() * scales[group]
