"""compressed-tensors checkpoints in the pack-quantized format: 4 and 8 bits, symmetric or with zero points.

``weight_packed`` int32 ``[N, ceil(K * bits / 32)]`` is packed along K and ``weight_zero_point`` int32
``[ceil(N * bits / 32), G]`` along N, both least significant first and in offset binary (the signed value
plus ``2**(bits - 1)``), so the offset cancels: ``W[k, n] = (q - z) * weight_scale[n, group]`` with the
stored codes. Without zero points ``z = 2**(bits - 1)``. ``weight_g_idx`` int32 ``[K]`` comes with
``actorder: group`` only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats.base import CheckpointFormat, Config, LayerParams, Tensors, register
from swordfish.formats.checks import (
    FLOATS,
    as_bits,
    as_flag,
    as_group_size,
    canonical,
    check_shape,
    check_tensor,
    group_of_row,
    resolve_groups,
)
from swordfish.formats.modules import config_group, is_ignored
from swordfish.layouts import Int32Codes
from swordfish.scheme import CHANNELWISE
from swordfish.weights import QuantizedWeight

__all__ = ["PackQuantized"]


@register
class PackQuantized(CheckpointFormat):
    """compressed-tensors ``pack-quantized`` with weight-only quantisation (group, channel or tensor
    scales).
    """

    name = "compressed-tensors"
    quant_method = "compressed-tensors"
    variants = ("pack-quantized", "mixed-precision")
    bits = (4, 8)
    required = ("weight_packed", "weight_scale")
    optional = ("weight_zero_point", "weight_g_idx", "weight_shape", "bias")

    def variant(self, config: Config) -> str:
        return str(config.get("format") or "pack-quantized").lower()

    def layer_params(self, config: Config, layer: str) -> LayerParams | None:
        if is_ignored(layer, config.get("ignore")):
            return None
        group = config_group(layer, config.get("config_groups"))
        weights = None if group is None else group.get("weights")
        if group is None or weights is None:
            return None
        for key in ("input_activations", "output_activations"):
            if group.get(key) is not None:
                raise ArgumentError(key, group[key], "null (weight-only quantisation)")
        if group.get("format") not in (None, "pack-quantized"):
            raise ArgumentError("format", group["format"], "'pack-quantized'")
        if weights.get("type", "int") != "int":
            raise ArgumentError("weights.type", weights["type"], "'int'")
        return LayerParams(
            bits=as_bits(weights.get("num_bits"), self.bits),
            group_size=_group_size(weights),
            symmetric=as_flag("symmetric", weights.get("symmetric", True)),
            act_order=_needs_order(weights.get("actorder")),
        )

    def shape(self, tensors: Tensors, params: LayerParams) -> tuple[int, int]:
        packed, scale = tensors["weight_packed"], tensors["weight_scale"]
        check_tensor("weight_packed", packed, 2, (torch.int32,))
        check_tensor("weight_scale", scale, scale.ndim if scale.ndim in (0, 1) else 2, FLOATS)
        n, per_word = packed.shape[0], 32 // params.bits
        k = packed.shape[1] * per_word
        if "weight_shape" in tensors:
            stated = tuple(int(size) for size in tensors["weight_shape"].reshape(-1))
            if len(stated) != 2:
                raise ArgumentError("shape", stated, "(N, K)")
            check_shape(
                "weight_packed", packed, (stated[0], -(-stated[1] // per_word)), f"shape (N, K) = {stated}"
            )
            n, k = stated
        if scale.numel() != 1:
            check_shape("weight_scale", scale, (n, scale.shape[-1]), f"one row per output, N={n}")
        groups = _scale_rows(scale, n).shape[0]
        if "weight_zero_point" in tensors:
            zero = tensors["weight_zero_point"]
            check_tensor("weight_zero_point", zero, 2, (torch.int32,))
            check_shape(
                "weight_zero_point", zero, (-(-n // per_word), groups), f"packed along N, {per_word} a word"
            )
        elif not params.symmetric:
            expected = "the zero points, int32 [N * bits / 32, G], since symmetric is false"
            raise ArgumentError("weight_zero_point", None, expected)
        return k, n

    def read(self, tensors: Tensors, params: LayerParams) -> QuantizedWeight:
        k, n = self.shape(tensors, params)
        g_idx, group_size = self._groups(tensors, params, k)
        zeros = None
        if "weight_zero_point" in tensors:
            words = canonical(tensors["weight_zero_point"])
            zeros = Int32Codes(words, params.bits, (words.shape[1], n), packed="n", transposed=True).dense()
            if params.symmetric:
                zeros = _check_symmetric(zeros, params.bits)
        return QuantizedWeight(
            codes=Int32Codes(tensors["weight_packed"], params.bits, (k, n), packed="k", transposed=True),
            scales=_scale_rows(tensors["weight_scale"], n),
            zeros=zeros,
            g_idx=g_idx,
            bias=tensors.get("bias"),
            bits=params.bits,
            group_size=group_size,
            zero_kind="none" if zeros is None else "integer",
        )

    def dequantize(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        k, n = self.shape(tensors, params)
        per_word, top, half = 32 // params.bits, (1 << params.bits) - 1, 1 << (params.bits - 1)
        g_idx, group_size = self._groups(tensors, params, k)
        device = tensors["weight_packed"].device
        group = group_of_row(g_idx, k, group_size, device)
        rows, cols = torch.arange(k, device=device), torch.arange(n, device=device)
        shift = (rows % per_word * params.bits).int()
        value = ((tensors["weight_packed"][:, rows // per_word] >> shift) & top) - half
        if "weight_zero_point" in tensors:
            shift = (cols % per_word * params.bits).int()
            zero = ((tensors["weight_zero_point"][cols // per_word] >> shift[:, None]) & top) - half
            value = value - zero[:, group]
        return (value.float() * _scale_rows(tensors["weight_scale"], n).t()[:, group].float()).t()

    def _groups(self, tensors: Tensors, params: LayerParams, k: int) -> tuple[torch.Tensor | None, int]:
        """``weight_g_idx`` (``None`` for natural order) and group size, with what the config says about
        them checked.
        """
        scale = tensors["weight_scale"]
        return resolve_groups(
            tensors.get("weight_g_idx"),
            k,
            1 if scale.numel() == 1 else scale.shape[1],
            group_size=params.group_size,
            act_order=params.act_order,
            name="weight_g_idx",
        )


def _scale_rows(scale: torch.Tensor, n: int) -> torch.Tensor:
    """``weight_scale`` as ``[G, N]``; a single scale of the whole tensor becomes one row."""
    return scale.reshape(1, 1).expand(1, n) if scale.numel() == 1 else scale.t()


def _check_symmetric(zeros: torch.Tensor, bits: int) -> torch.Tensor | None:
    """Zero points of a config that says symmetric: none if they are the symmetric one, else used with a
    warning.
    """
    half = 1 << (bits - 1)
    if bool((zeros == half).all()):
        return None
    seen = f"{int(zeros.min())} to {int(zeros.max())}"
    warnings.warn(
        f"weight_zero_point holds {seen} but symmetric=true means {half}: the stored zero points are used",
        stacklevel=3,
    )
    return zeros


def _group_size(weights: Mapping[str, Any]) -> int | None:
    """Group size from ``strategy`` and ``group_size``; without either it is read off the scales."""
    size = weights.get("group_size")
    strategy = weights.get("strategy")
    if strategy in ("channel", "tensor"):
        return CHANNELWISE
    if strategy not in (None, "group"):
        raise ArgumentError("strategy", strategy, "'group', 'channel' or 'tensor'")
    return None if size is None else as_group_size(size)


def _needs_order(actorder: object) -> bool:
    """Whether ``actorder`` reorders groups: ``group`` does; ``weight`` (alias ``static``) left no trace in
    the tensors.
    """
    if isinstance(actorder, str):
        actorder = {"group": True, "dynamic": True, "weight": False, "static": False}.get(
            actorder.lower(), actorder
        )
    if actorder is None or isinstance(actorder, bool):
        return bool(actorder)
    if isinstance(actorder, str):
        raise ArgumentError("actorder", actorder, "null, 'static', 'weight' or 'group'")
    raise ArgumentTypeError("actorder", actorder, "null, 'static', 'weight' or 'group'")
