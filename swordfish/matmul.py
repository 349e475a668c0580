"""``sf.mm``: validation, then straight to the kernels, or through the operator where torch has to know."""

from __future__ import annotations

import torch

from swordfish import ready
from swordfish.dispatch import overrides
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.operators import is_plain, multiply, operands
from swordfish.packed import PackedWeight

__all__ = ["activation", "mm"]


def mm(
    x: torch.Tensor, w: PackedWeight, *, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ W + bias`` with a packed weight.

    Args:
        x: ``[..., K]`` in ``w.dtype``, any strides, on the device of ``w``; any number of leading dimensions,
            zero of any of them included. Under ``torch.autocast`` a floating x of another dtype is cast to
            ``w.dtype``.
        w: the packed weight. Its own bias, if it has one, is added.
        bias: ``[N]``, floating point; rounded to ``w.dtype`` and added in fp32 before the result is rounded.
        out: ``[..., N]`` in ``w.dtype`` to write into and return; any strides that do not overlap.

    Returns:
        ``[..., N]`` in ``w.dtype``: fp32 accumulation of exact products, one rounding. The sum order is
        fixed, so equal inputs give equal bits. Gradients flow to ``x`` (through the dequantised weight) and
        to ``bias``, not to the weight.

    CPU tensors are multiplied in fp64, or by the emulated kernels inside :func:`swordfish.emulate`. Under
    ``torch.compile`` and ``torch.export`` the call is one opaque operator, ``swordfish::mm``.

    Raises:
        ArgumentError: shapes or devices that do not fit, a bias given for a weight that has one, an ``out``
            that requires a gradient.
        ArgumentTypeError: a dtype other than the weight's.
        UnsupportedDeviceError: a GPU without kernels.
    """
    if out is None and bias is None:
        known = _ready(x, w)
        if known is not None:
            return known
    if not isinstance(w, PackedWeight):
        raise ArgumentTypeError(
            "w", type(w).__name__, "a PackedWeight; see swordfish.pack and swordfish.from_gptq"
        )
    x = activation(x, w.scale_rows, w.shape[0])
    bias = _bias(bias, w)
    if out is not None:
        _check_out(out, (*x.shape[:-1], w.shape[1]), w, x)
    gradient = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if not gradient and is_plain(x):
        return multiply(x, w, bias, out)
    words, scale_rows, zero_rows, perm, *rest = operands(w)
    if out is None:
        result: torch.Tensor = torch.ops.swordfish.mm(x, words, scale_rows, zero_rows, perm, bias, *rest)
        return result
    if gradient:
        return out.copy_(torch.ops.swordfish.mm(x, words, scale_rows, zero_rows, perm, bias, *rest))
    torch.ops.swordfish.mm_out(x, words, scale_rows, zero_rows, perm, bias, *rest, out=out)
    return out


def _ready(x: torch.Tensor, w: PackedWeight) -> torch.Tensor | None:
    """The product if this is a call as most are: like an earlier one, nobody else watching."""
    if type(w) is not PackedWeight or not is_plain(x):
        return None
    bias = w.bias
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return None
    return ready.product(x, operands(w), bias, overrides())


def activation(x: torch.Tensor, scale_rows: torch.Tensor, k: int) -> torch.Tensor:
    """x for a weight of ``k`` rows with these scales, checked; cast to their dtype under autocast.

    Raises:
        ArgumentError, ArgumentTypeError: what :func:`mm` says about x.
    """
    dtype = scale_rows.dtype
    if not isinstance(x, torch.Tensor):
        raise ArgumentTypeError("x", type(x).__name__, "a torch.Tensor")
    if x.dtype is not dtype:
        if not x.is_floating_point() or not torch.is_autocast_enabled(x.device.type):
            raise ArgumentTypeError(
                "x.dtype",
                x.dtype,
                f"{dtype}, for which the weight was packed",
                "Cast x, or pack the weight for this dtype.",
            )
        x = x.to(dtype)
    shape = x.shape
    if not shape or shape[-1] != k:
        raise ArgumentError("x.shape", tuple(shape), f"[..., K={k}]")
    if x.device != scale_rows.device:
        raise ArgumentError("x.device", x.device, f"{scale_rows.device}, where the weight is")
    return x


def _bias(bias: torch.Tensor | None, w: PackedWeight) -> torch.Tensor | None:
    if bias is None:
        return w.bias
    n = w.shape[1]
    if w.bias is not None and bias is not w.bias:
        raise ArgumentError("bias", "a tensor", "None for a weight that carries its own bias")
    if not isinstance(bias, torch.Tensor):
        raise ArgumentTypeError("bias", type(bias).__name__, "a torch.Tensor or None")
    if not bias.is_floating_point():
        raise ArgumentTypeError("bias.dtype", bias.dtype, "a floating-point dtype")
    if tuple(bias.shape) != (n,):
        raise ArgumentError("bias.shape", tuple(bias.shape), f"({n},)")
    if bias.device != w.device:
        raise ArgumentError("bias.device", bias.device, f"{w.device}, where the weight is")
    return bias.to(w.dtype).contiguous()


def _check_out(out: torch.Tensor, shape: tuple[int, ...], w: PackedWeight, x: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise ArgumentTypeError("out", type(out).__name__, "a torch.Tensor or None")
    if out.requires_grad and torch.is_grad_enabled():
        raise ArgumentError("out.requires_grad", True, "False: the result is written in place")
    if out.dtype != w.dtype:
        raise ArgumentTypeError("out.dtype", out.dtype, str(w.dtype))
    if tuple(out.shape) != shape:
        raise ArgumentError("out.shape", tuple(out.shape), str(shape))
    if out.device != w.device:
        raise ArgumentError("out.device", out.device, f"{w.device}, where the weight is")
    if any(s == 0 and size > 1 for s, size in zip(out.stride(), out.shape, strict=True)):
        raise ArgumentError("out.stride()", out.stride(), "strides that do not overlap")
    # While tracing there are no addresses, and torch's functionalisation keeps the two apart.
    if not torch.compiler.is_compiling() and out.numel() and _overlap(out, x):
        raise ArgumentError("out", "memory shared with x", "memory of its own")


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the spans of two tensors in one storage touch."""
    if a.is_meta or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False

    def span(t: torch.Tensor) -> tuple[int, int]:
        reach = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return int(t.storage_offset()), int(t.storage_offset() + reach + 1)

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1
