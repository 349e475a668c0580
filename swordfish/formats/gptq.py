"""GPTQ checkpoints, versions 1 and 2: 4 and 8 bits, symmetric or with zero points, with or without act-order.

``qweight`` int32 ``[K * bits / 32, N]`` and ``qzeros`` int32 ``[G, N * bits / 32]`` hold codes least
significant first; ``W[k, n] = (q[k, n] - z[g_idx[k], n]) * scales[g_idx[k], n]``. Version 1 stores ``(z -
1) mod 2**bits`` in ``qzeros``, version 2 stores ``z``.
"""

from __future__ import annotations

import warnings

import torch

from swordfish.errors import ArgumentError
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
from swordfish.formats.modules import dynamic_override, is_listed
from swordfish.layouts import Int32Codes
from swordfish.weights import QuantizedWeight

__all__ = ["Gptq", "GptqV2"]


@register
class Gptq(CheckpointFormat):
    """GPTQ version 1 (``checkpoint_format: gptq``, and every config without that key)."""

    name = "gptq"
    quant_method = "gptq"
    variants = ("gptq",)
    bits = (4, 8)
    required = ("qweight", "scales")
    optional = ("qzeros", "g_idx", "bias")
    zero_offset = 1
    """What must be added (mod ``2**bits``) to a stored zero point."""

    def variant(self, config: Config) -> str:
        return str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()

    def layer_params(self, config: Config, layer: str) -> LayerParams | None:
        if is_listed(layer, config.get("modules_to_not_convert"), "modules_to_not_convert"):
            return None
        if layer.rpartition(".")[2] == "lm_head" and config.get("lm_head") is False:
            return None
        override = dynamic_override(layer, config.get("dynamic"))
        if override is None:
            return None
        merged = {**config, **override}
        act_order = merged.get("desc_act")
        return LayerParams(
            bits=as_bits(merged.get("bits"), self.bits),
            group_size=as_group_size(merged["group_size"]) if "group_size" in merged else None,
            symmetric=as_flag("sym", merged.get("sym", True)),
            act_order=None if act_order is None else as_flag("desc_act", act_order),
        )

    def shape(self, tensors: Tensors, params: LayerParams) -> tuple[int, int]:
        qweight, scales = tensors["qweight"], tensors["scales"]
        check_tensor("qweight", qweight, 2, (torch.int32,))
        check_tensor("scales", scales, 2, FLOATS)
        per_word = 32 // params.bits
        k, n, groups = qweight.shape[0] * per_word, qweight.shape[1], scales.shape[0]
        check_shape("scales", scales, (groups, n), f"one column per output, N={n} as in qweight")
        if "qzeros" in tensors:
            check_tensor("qzeros", tensors["qzeros"], 2, (torch.int32,))
            check_shape(
                "qzeros", tensors["qzeros"], (groups, -(-n // per_word)), f"{per_word} zero points per word"
            )
        elif not params.symmetric:
            raise ArgumentError(
                "qzeros", None, "the zero points, int32 [G, N * bits / 32], since sym is false"
            )
        return k, n

    def read(self, tensors: Tensors, params: LayerParams) -> QuantizedWeight:
        k, n = self.shape(tensors, params)
        g_idx, group_size = self._groups(tensors, params, k)
        zeros = self._zeros(tensors, params, n)
        return QuantizedWeight(
            codes=Int32Codes(tensors["qweight"], params.bits, (k, n)),
            scales=tensors["scales"],
            zeros=zeros,
            g_idx=g_idx,
            bias=tensors.get("bias"),
            bits=params.bits,
            group_size=group_size,
            zero_kind="none" if zeros is None else "integer",
        )

    def dequantize(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        k, n = self.shape(tensors, params)
        g_idx, group_size = self._groups(tensors, params, k)
        device = tensors["qweight"].device
        group = group_of_row(g_idx, k, group_size, device)
        per_word, top = 32 // params.bits, (1 << params.bits) - 1
        rows = torch.arange(k, device=device)
        shift = (rows % per_word * params.bits).int()
        q = (tensors["qweight"][rows // per_word] >> shift[:, None]) & top
        z: torch.Tensor | int = 1 << (params.bits - 1)
        if self._zeros(tensors, params, n) is not None:
            cols = torch.arange(n, device=device)
            stored = tensors["qzeros"][:, cols // per_word] >> (cols % per_word * params.bits).int()
            z = ((stored + self.zero_offset) & top)[group]
        return (q - z).float() * tensors["scales"].float()[group]

    def _groups(self, tensors: Tensors, params: LayerParams, k: int) -> tuple[torch.Tensor | None, int]:
        """``g_idx`` (``None`` for natural order) and group size, with what the config says about them
        checked.
        """
        return resolve_groups(
            tensors.get("g_idx"),
            k,
            tensors["scales"].shape[0],
            group_size=params.group_size,
            act_order=params.act_order,
            name="g_idx",
        )

    def _zeros(self, tensors: Tensors, params: LayerParams, n: int) -> torch.Tensor | None:
        """Zero points uint8 ``[G, N]``, or ``None`` when all are the symmetric one.

        A config that says symmetric over other zero points is contradicted by its tensors. When all of them
        hold the symmetric zero under the *other* version's convention, the version mark is wrong and the
        weight is symmetric; anything else is taken as stored. Both warn.
        """
        if "qzeros" not in tensors:
            return None
        qzeros = canonical(tensors["qzeros"])
        stored = Int32Codes(qzeros, params.bits, (qzeros.shape[0], n), packed="n").dense()
        top, half = (1 << params.bits) - 1, 1 << (params.bits - 1)
        zeros = (stored + self.zero_offset) & top
        if not params.symmetric:
            if self.zero_offset and bool((stored == top).any()):
                _warn(
                    f"qzeros holds {top} in format {self.name!r}, read as zero point 0; a producer that "
                    "subtracted 1 from whole words has borrowed from the zero point after it"
                )
            return zeros
        if bool((zeros == half).all()):
            return None
        low, high = int(stored.min()), int(stored.max())
        seen = str(low) if low == high else f"{low} to {high}"
        says = f"qzeros holds {seen}, but sym=true in format {self.name!r} stores {half - self.zero_offset}"
        if low == high == half - (1 - self.zero_offset):
            _warn(f"{says}: taken as symmetric, zero point {half}, with the wrong checkpoint_format")
            return None
        _warn(f"{says}: the stored zero points are used")
        return zeros


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


@register
class GptqV2(Gptq):
    """GPTQ version 2 (``checkpoint_format: gptq_v2``): zero points are stored as they are."""

    name = "gptq_v2"
    variants = ("gptq_v2",)
    zero_offset = 0
