"""Quantised weights: the canonical unpacked form, the packed form that kernels read, and the way between.

``pack_weight`` is the only producer of :class:`PackedWeight`; ``dequantize`` is the reference for every
kernel. docs/format.md explains the format.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError, UnsupportedDeviceError
from swordfish.layouts.packing import BLOCK, ColumnSource, pack_words, unpack_words
from swordfish.layouts.rows import plan_rows
from swordfish.packed import FORMAT, FORMAT_VERSION, PackedWeight, pad_columns
from swordfish.scheme import CHANNELWISE, DTYPES, Scheme, ZeroKind

__all__ = ["FORMAT", "FORMAT_VERSION", "PackedWeight", "QuantizedWeight", "dequantize", "pack", "pack_weight"]

_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DEQUANTIZE_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A quantised weight as a checkpoint means it, rows in the checkpoint's order, nothing rounded.

    ============== ====================================================================================
    ``codes``      uint8 ``[K, N]``, or a :class:`~swordfish.layouts.ColumnSource` of that shape
    ``scales``     ``[G, N]`` float16, bfloat16 or float32
    ``zeros``      ``None``; integer ``[G, N]`` (kind ``integer``); floating ``[G, N]`` (kind ``offset``)
    ``g_idx``      ``None`` or integer ``[K]``: the scale row of each row
    ``bias``       ``None`` or floating ``[N]``
    ``bits``       4 or 8
    ``group_size`` rows per scale row; -1, ``None``, or K with one scale row: channelwise
    ``zero_kind``  ``none``, ``integer`` or ``offset``, see :class:`~swordfish.scheme.Scheme`
    ============== ====================================================================================

    Raises ``ArgumentError`` or ``ArgumentTypeError`` when shapes, dtypes or devices do not agree.
    """

    codes: torch.Tensor | ColumnSource
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    g_idx: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    bits: int = 4
    group_size: int | None = CHANNELWISE
    zero_kind: ZeroKind = "none"

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in (4, 8):
            raise ArgumentError("bits", repr(self.bits), "4 or 8")
        if isinstance(self.codes, torch.Tensor):
            if self.codes.dtype != torch.uint8:
                raise ArgumentTypeError("codes.dtype", self.codes.dtype, "torch.uint8")
            if self.codes.ndim != 2:
                raise ArgumentError("codes.shape", tuple(self.codes.shape), "two dimensions, [K, N]")
        k, n = self.shape
        if k < 1 or n < 1:
            raise ArgumentError("codes.shape", (k, n), "at least one row and one column")
        if self.scales.dtype not in _SCALE_DTYPES:
            raise ArgumentTypeError("scales.dtype", self.scales.dtype, "float16, bfloat16 or float32")
        if self.scales.ndim != 2 or self.scales.shape[1] != n or self.scales.shape[0] < 1:
            raise ArgumentError("scales.shape", tuple(self.scales.shape), f"[groups, N={n}]")
        self._check_zeros()
        if self.bias is not None:
            if self.bias.dtype not in _SCALE_DTYPES:
                raise ArgumentTypeError("bias.dtype", self.bias.dtype, "float16, bfloat16 or float32")
            if tuple(self.bias.shape) != (n,):
                raise ArgumentError("bias.shape", tuple(self.bias.shape), f"({n},)")
        for name in ("scales", "zeros", "bias"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.device != self.codes.device:
                raise ArgumentError(
                    f"{name}.device", tensor.device, f"{self.codes.device}, where the codes are"
                )

    def _check_zeros(self) -> None:
        if self.zero_kind not in ("none", "integer", "offset"):
            raise ArgumentError("zero_kind", self.zero_kind, "'none', 'integer' or 'offset'")
        if (self.zeros is None) != (self.zero_kind == "none"):
            seen = "None" if self.zeros is None else f"a {tuple(self.zeros.shape)} tensor"
            wanted = "None" if self.zero_kind == "none" else f"a tensor of shape {tuple(self.scales.shape)}"
            raise ArgumentError("zeros", seen, f"{wanted} for zero_kind={self.zero_kind!r}")
        if self.zeros is None:
            return
        allowed = _INTEGER_DTYPES if self.zero_kind == "integer" else _SCALE_DTYPES
        if self.zeros.dtype not in allowed:
            names = "an integer dtype" if self.zero_kind == "integer" else "float16, bfloat16 or float32"
            raise ArgumentTypeError(
                "zeros.dtype", self.zeros.dtype, f"{names} for zero_kind={self.zero_kind!r}"
            )
        if self.zeros.shape != self.scales.shape:
            raise ArgumentError(
                "zeros.shape", tuple(self.zeros.shape), f"the shape of the scales, {tuple(self.scales.shape)}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, N)``."""
        k, n = self.codes.shape
        return int(k), int(n)


def pack_weight(q: QuantizedWeight, dtype: torch.dtype | str) -> PackedWeight:
    """Packs a weight for activations of ``dtype`` (float16 or bfloat16), on the device of its codes.

    Scales, offsets and bias are rounded once, to nearest even, when their dtype is not ``dtype``; integer
    zero points are exact in either. Everything else is exact, so :func:`dequantize` returns ``round((q - z)
    * s)`` of the rounded scales.

    Raises ``ArgumentError`` or ``ArgumentTypeError`` naming the argument, the value and what is allowed:
    codes or zero points out of range, scales that ``dtype`` cannot hold, a ``g_idx`` that does not fit, a
    number of scale rows that contradicts ``group_size``, a group size that is not a multiple of 32.
    """
    name = _dtype_name(dtype)
    k, n = q.shape
    groups = q.scales.shape[0]
    group_size = q.group_size
    if group_size is None or (group_size == k and groups == 1):
        group_size = CHANNELWISE
    scheme = Scheme(q.bits, group_size, name, q.zero_kind)
    plan = plan_rows(q.g_idx, k, groups, group_size)
    device = q.codes.device
    scales, zeros = _rounded("scales", q.scales, scheme), _zero_rows(q, scheme)
    if plan.scale_rows is not None:
        pick = plan.scale_rows.to(device)
        scales, zeros = scales[pick], None if zeros is None else zeros[pick]
    return PackedWeight(
        pack_words(q.codes, q.bits, rows=plan.rows),
        pad_columns(scales),
        None if zeros is None else pad_columns(zeros),
        None if plan.rows is None else plan.rows.to(device, torch.int32),
        None if q.bias is None else _rounded("bias", q.bias, scheme).clone(),
        replace(scheme, group_size=plan.group_size, act_order=plan.rows is not None),
        (k, n),
    )


def pack(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    *,
    bits: int,
    group_size: int | None,
    dtype: torch.dtype | str,
    zero_kind: ZeroKind | None = None,
    bias: torch.Tensor | None = None,
) -> PackedWeight:
    """Packs unpacked codes ``[K, N]`` (uint8) with scales and zeros ``[G, N]``; see :class:`QuantizedWeight`.

    ``zero_kind`` follows from ``zeros``: absent is ``none``, an integer tensor is ``integer``. Floating zeros
    need ``zero_kind="offset"`` said, because a floating zero *point* means something else.
    """
    if zero_kind is None:
        zero_kind = "none" if zeros is None else "integer"
    return pack_weight(QuantizedWeight(codes, scales, zeros, g_idx, bias, bits, group_size, zero_kind), dtype)


def dequantize(w: PackedWeight) -> torch.Tensor:
    """The weight ``[K, N]`` in its dtype, rows in the checkpoint's order.

    Each value is ``(q - z) * s``, or ``q * s + z`` with offsets, of the stored scales and zeros, computed
    exactly and rounded once to nearest even. On a GPU the kernel of :mod:`swordfish.dense` does this, which
    gives the same bits; elsewhere, and while torch traces, torch operators do.

    Raises ``ArgumentTypeError`` for something that is no packed weight.
    """
    if not isinstance(w, PackedWeight):
        raise ArgumentTypeError("w", type(w).__name__, "a PackedWeight")
    # A traced tensor (fake, functional) has no memory that a kernel could read.
    if w.words.is_cuda and type(w.words) is torch.Tensor and not torch.compiler.is_compiling():
        from swordfish.dense import dequantize_into

        with contextlib.suppress(UnsupportedDeviceError):
            return dequantize_into(w, torch.empty(w.shape, dtype=w.dtype, device=w.device))
    return dequantize_by_torch(w)


def dequantize_by_torch(w: PackedWeight) -> torch.Tensor:
    """:func:`dequantize` by torch operators, on any device: what the kernel is compared with."""
    k, n = w.shape
    out = torch.empty((k, n), dtype=w.dtype, device=w.device)
    rows = w.packed_k
    size = rows if w.scheme.group_size == CHANNELWISE else w.scheme.group_size
    group_of_row = torch.arange(rows, device=w.device) // size
    source = None if w.perm is None else (w.perm >= 0).nonzero().squeeze(1)
    step = max(1, DEQUANTIZE_ELEMENTS // (rows * BLOCK)) * BLOCK
    for start in range(0, n, step):
        stop = min(start + step, n)
        words = w.words[start // BLOCK : -(-stop // BLOCK)]
        codes = unpack_words(words, w.scheme.bits, (rows, stop - start)).float()
        scales = w.scales[:, start:stop].float()[group_of_row]
        zeros = None if w.zeros is None else w.zeros[:, start:stop].float()[group_of_row]
        if w.scheme.zeros == "offset":
            assert zeros is not None
            values = _add_to_odd(codes * scales, zeros)
        else:
            # At most 9 bits times 11 bits: exact in fp32, so the conversion below is the one rounding.
            values = (codes - (w.scheme.symmetric_zero if zeros is None else zeros)) * scales
        if w.perm is None or source is None:
            out[:, start:stop] = values
        else:
            out[w.perm[source].long(), start:stop] = values[source].to(w.dtype)
    return out


def _add_to_odd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a + b`` in fp32, an inexact sum rounded to the neighbour with an odd last bit.

    A later rounding to at most 22 bits then gives the correctly rounded exact sum (Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums", 2008). The error term is Knuth's TwoSum.
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    pattern = total.view(torch.int32)
    outward = (error > 0) == (total > 0)  # the exact sum is farther from zero than `total`
    odd = torch.where(outward, pattern + 1, pattern - 1).view(torch.float32)
    adjust = (error != 0) & (pattern & 1 == 0) & total.isfinite()
    return torch.where(adjust, odd, total)


def _dtype_name(dtype: torch.dtype | str) -> str:
    for name, torch_dtype in DTYPES.items():
        if dtype in (name, torch_dtype):
            return name
    raise ArgumentTypeError("dtype", dtype, "torch.float16 or torch.bfloat16")


def _rounded(name: str, tensor: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """``tensor`` in the activation dtype; raises when a value is not finite there."""
    result = tensor.to(scheme.torch_dtype)
    bad = (~result.isfinite()).nonzero()
    if bad.numel():
        where = tuple(bad[0].tolist())
        raise ArgumentError(
            f"{name}[{', '.join(map(str, where))}]", tensor[where].item(), f"a finite value in {scheme.dtype}"
        )
    return result


def _zero_rows(q: QuantizedWeight, scheme: Scheme) -> torch.Tensor | None:
    if q.zeros is None:
        return None
    if q.zero_kind == "offset":
        return _rounded("zeros", q.zeros, scheme)
    top = 1 << q.bits  # GPTQ v1 stores zero - 1, so 2**bits occurs; it is exact in both dtypes
    values = q.zeros.to(torch.int64)
    bad = ((values < 0) | (values > top)).nonzero()
    if bad.numel():
        g, n = bad[0].tolist()
        raise ArgumentError(f"zeros[{g}, {n}]", int(values[g, n]), f"0 to {top} for bits={q.bits}")
    return values.to(scheme.torch_dtype)
