"""Packing straight from a checkpoint's tensors, one function per format."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats.base import CheckpointFormat, LayerParams, get_format
from swordfish.formats.checks import as_bits, as_flag, as_group_size
from swordfish.weights import PackedWeight, pack_weight

__all__ = ["from_awq", "from_compressed_tensors", "from_gguf", "from_gptq"]


def from_gptq(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    *,
    bits: int,
    group_size: int | None,
    sym: bool = True,
    checkpoint_format: str = "gptq",
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> PackedWeight:
    """Pack a GPTQ layer for activations of ``dtype``.

    ``qweight`` int32 ``[K * bits / 32, N]``, ``scales`` ``[G, N]``, ``qzeros`` int32 ``[G, N * bits / 32]``
    (optional when ``sym``), ``g_idx`` int32 ``[K]`` (optional), ``bias`` ``[N]``. ``bits`` 4 or 8;
    ``group_size`` -1 or ``None`` is channelwise; ``checkpoint_format`` is ``"gptq"`` (``qzeros`` holds ``(z
    - 1) mod 2**bits``) or ``"gptq_v2"`` (holds ``z``). When ``sym`` and ``qzeros`` disagree a warning says
    which zero points are used. Raises ``ArgumentError`` or ``ArgumentTypeError`` on values, shapes and
    dtypes that do not fit.
    """
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise ArgumentError("checkpoint_format", checkpoint_format, "'gptq' or 'gptq_v2'")
    params = LayerParams(as_bits(bits), as_group_size(group_size), symmetric=as_flag("sym", sym))
    tensors = {"qweight": qweight, "scales": scales, "qzeros": qzeros, "g_idx": g_idx, "bias": bias}
    return _pack(get_format(checkpoint_format), tensors, params, dtype)


def from_awq(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor,
    *,
    group_size: int | None,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> PackedWeight:
    """Pack an AWQ gemm layer (4 bits) for activations of ``dtype``.

    ``qweight`` int32 ``[K, N / 8]``, ``scales`` ``[G, N]``, ``qzeros`` int32 ``[G, N / 8]``, ``bias``
    ``[N]``. Raises ``ArgumentError`` or ``ArgumentTypeError`` on values, shapes and dtypes that do not fit.
    """
    params = LayerParams(4, as_group_size(group_size), symmetric=False)
    tensors = {"qweight": qweight, "scales": scales, "qzeros": qzeros, "bias": bias}
    return _pack(get_format("awq"), tensors, params, dtype)


def from_compressed_tensors(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
    weight_g_idx: torch.Tensor | None = None,
    *,
    shape: Sequence[int] | torch.Tensor,
    bits: int,
    group_size: int | None,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> PackedWeight:
    """Pack a compressed-tensors pack-quantized layer for activations of ``dtype``.

    ``weight_packed`` int32 ``[N, ceil(K * bits / 32)]``, ``weight_scale`` ``[N, G]`` (or one scale),
    ``weight_zero_point`` int32 ``[ceil(N * bits / 32), G]`` (symmetric without it), ``weight_g_idx`` int32
    ``[K]`` (``actorder: group`` only), ``shape`` ``(N, K)`` as in the checkpoint's ``weight_shape``,
    ``bias`` ``[N]``. Raises ``ArgumentError`` or ``ArgumentTypeError`` on values, shapes and dtypes that do
    not fit.
    """
    params = LayerParams(as_bits(bits), as_group_size(group_size), symmetric=weight_zero_point is None)
    tensors = {
        "weight_packed": weight_packed,
        "weight_scale": weight_scale,
        "weight_zero_point": weight_zero_point,
        "weight_g_idx": weight_g_idx,
        "weight_shape": torch.as_tensor(shape),
        "bias": bias,
    }
    return _pack(get_format("compressed-tensors"), tensors, params, dtype)


def from_gguf(
    blocks: torch.Tensor,
    *,
    quant_type: str,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> PackedWeight:
    """Pack a GGUF tensor of type Q4_0, Q4_1 or Q8_0 for activations of ``dtype``.

    ``blocks`` uint8 ``[N, bytes of one row]``, as ``torch.from_numpy(tensor.data)`` of a
    ``gguf.GGUFReader`` tensor; ``quant_type`` its ``tensor_type.name``. Needs no ``gguf`` package. Raises
    ``ArgumentError`` or ``ArgumentTypeError``.
    """
    name = f"gguf-{str(quant_type).lower()}"
    allowed = ("gguf-q4_0", "gguf-q4_1", "gguf-q8_0")
    if name not in allowed:
        raise ArgumentError("quant_type", quant_type, "'Q4_0', 'Q4_1' or 'Q8_0'")
    fmt = get_format(name)
    return _pack(fmt, {"blocks": blocks, "bias": bias}, LayerParams(fmt.bits[0], 32), dtype)


def _pack(
    fmt: CheckpointFormat, tensors: dict[str, torch.Tensor | None], params: LayerParams, dtype: torch.dtype
) -> PackedWeight:
    for name in fmt.required:
        if not isinstance(tensors[name], torch.Tensor):
            raise ArgumentTypeError(name, type(tensors[name]).__name__, "a torch.Tensor")
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return pack_weight(fmt.read(present, params), dtype)
