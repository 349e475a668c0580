"""``sf.mm``: validation, layout of the operands, and the launch that the plan asks for."""

from __future__ import annotations

import torch

from swordfish.decode import DecodeConfig, RingConfig
from swordfish.decode.tokens import packed_tokens
from swordfish.decode.wide import WideConfig
from swordfish.dispatch import plan, prepared_decode, props_of
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.packed import PackedWeight
from swordfish.reference import reference_mm
from swordfish.weights import dequantize

__all__ = ["mm"]


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

    CPU tensors are multiplied in fp64, or by the emulated kernels inside :func:`swordfish.emulate`.

    Raises:
        ArgumentError: shapes or devices that do not fit, a bias given for a weight that has one, an ``out``
            that requires a gradient.
        ArgumentTypeError: a dtype other than the weight's.
        UnsupportedDeviceError: a GPU without kernels.
    """
    if not isinstance(w, PackedWeight):
        raise ArgumentTypeError(
            "w", type(w).__name__, "a PackedWeight; see swordfish.pack and swordfish.from_gptq"
        )
    x = _activation(x, w)
    bias = _bias(bias, w)
    if out is not None:
        _check_out(out, (*x.shape[:-1], w.shape[1]), w, x)
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        result: torch.Tensor = _Product.apply(x, w, bias)  # type: ignore[no-untyped-call]
        return result if out is None else out.copy_(result)
    if out is None:
        return _product(x, w, bias)
    if out.ndim == 2 or out.is_contiguous():
        _into(x, w, bias, out)
        return out
    return out.copy_(_product(x, w, bias))


def _product(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    out = torch.empty((*x.shape[:-1], w.shape[1]), dtype=w.dtype, device=w.device)
    _into(x, w, bias, out)
    return out


def _into(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """``out`` is 2-D or contiguous."""
    k, n = w.shape
    rows = x.numel() // k
    if rows:
        _launch(x.reshape(rows, k), w, bias, out.view(rows, n))


class _Product(torch.autograd.Function):
    """Differentiates with respect to x and the bias; the weight is data."""

    @staticmethod
    def forward(ctx, x, w, bias):  # type: ignore[no-untyped-def]
        ctx.weight = w
        return _product(x, w, bias)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        to_x, _, to_bias = ctx.needs_input_grad
        return (
            grad @ dequantize(ctx.weight).T if to_x else None,
            None,
            grad.flatten(0, -2).sum(0) if to_bias and grad.ndim > 1 else grad if to_bias else None,
        )


def _activation(x: torch.Tensor, w: PackedWeight) -> torch.Tensor:
    """x, checked; cast to the dtype of the weight under autocast."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentTypeError("x", type(x).__name__, "a torch.Tensor")
    if x.dtype != w.dtype:
        if not x.is_floating_point() or not torch.is_autocast_enabled(x.device.type):
            raise ArgumentTypeError(
                "x.dtype",
                x.dtype,
                f"{w.dtype}, for which the weight was packed",
                "Cast x, or pack the weight for this dtype.",
            )
        x = x.to(w.dtype)
    if x.ndim < 1 or x.shape[-1] != w.shape[0]:
        raise ArgumentError("x.shape", tuple(x.shape), f"[..., K={w.shape[0]}]")
    if x.device != w.device:
        raise ArgumentError("x.device", x.device, f"{w.device}, where the weight is")
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
    if (
        out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        and out.numel()
        and _overlap(out, x)
    ):
        raise ArgumentError("out", "memory shared with x", "memory of its own")


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    def span(t: torch.Tensor) -> tuple[int, int]:
        reach = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return int(t.storage_offset()), int(t.storage_offset() + reach + 1)

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1


def _launch(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """2-D operands, at least one row."""
    m, n, k = x.shape[0], w.shape[1], w.packed_k
    props = props_of(w.device)
    chosen = plan(m, n, k, w.scheme, props, padded_rows=k != w.shape[0])
    if props is None or chosen.config is None:
        reference_mm(x, w, bias, out)
        return
    target = out if _storable(out) else torch.empty((m, n), dtype=out.dtype, device=out.device)
    launch_decode(chosen.config, x, w, bias, target, props.arch)
    if target is not out:
        out.copy_(target)


def launch_decode(
    config: DecodeConfig,
    x: torch.Tensor,
    w: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    arch: str,
) -> None:
    """Queue ``out[M, N] = x[M, K] @ W (+ bias)`` with the given configuration; with act-order and without
    ``gather``, a launch that permutes x goes before it.

    At least one row. ``out`` has unit inner stride and rows aligned to the elements stored at a time: 4 if N
    is a multiple of 4, 2 if it is even.
    """
    k, n = w.packed_k, w.shape[1]
    gathers = isinstance(config, RingConfig) and config.gather
    tokens = packed_tokens(x, None if gathers else w.perm, k, arch)
    m = x.shape[0]
    step = config.tokens if isinstance(config, WideConfig) else m
    for start in range(0, m, step):
        part = slice(start, min(m, start + step))
        launch = prepared_decode(config, w.scheme, part.stop - start, k, n, bias is not None, arch)
        launch(config.arguments(w.words, w.scale_rows, w.zero_rows, tokens[part], w.perm, bias, out[part]))


def _storable(out: torch.Tensor) -> bool:
    """Unit inner stride, and rows aligned to the 4 or 2 elements that the kernels store at a time."""
    n = out.shape[1]
    if out.stride(1) != 1 and n > 1:
        return False
    elements = 4 if n % 4 == 0 else 2 if n % 2 == 0 else 1
    return out.data_ptr() % (2 * elements) == 0 and (out.shape[0] == 1 or out.stride(0) % elements == 0)
