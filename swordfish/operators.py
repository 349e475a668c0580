"""The operators that torch knows: opaque to ``torch.compile`` and ``torch.export``, path taken at run time.

========================= ============================================================================
``swordfish::mm``         ``x @ W + bias``, ``[..., N]``; differentiable in x and bias
``swordfish::mm_out``     the same into ``out``
``swordfish::dequantize`` the weight ``[K, N]`` in the dtype of its scales, rows in the checkpoint's order
========================= ============================================================================

A weight travels as its tensors (see :class:`~swordfish.packed.PackedWeight`) and what they do not tell:
``k`` and ``n`` without padding, ``group_size`` (-1: channelwise) and ``offset`` (zeros are a floating-point
minimum). Bits, dtype and act-order follow from the tensors. :func:`operands` takes a weight apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from swordfish import ready
from swordfish.calls import DecodeCall
from swordfish.dispatch import call_for, overrides
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.packed import PackedWeight
from swordfish.scheme import DTYPES, Scheme, ZeroKind
from swordfish.weights import dequantize

__all__ = ["Operands", "define", "is_plain", "multiply", "operands", "scheme_of"]

_C = torch._C
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BITS = {512: 4, 1024: 8}  # by words of a block

Operands: TypeAlias = (
    "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, int, int, int, bool]"
)


def operands(w: PackedWeight) -> Operands:
    """``words, scale_rows, zero_rows, perm, k, n, group_size, offset``: a weight as operators take it; the
    bias, or ``None``, goes between perm and k."""
    s = w.scheme
    return w.words, w.scale_rows, w.zero_rows, w.perm, *w.shape, s.group_size, s.zeros == "offset"


def multiply(
    x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x[..., K] @ W (+ bias)`` on the path that the plan asks for, operands checked already.

    ``out`` ``[..., N]``, any strides that do not overlap, is written and returned if given.
    """
    k, n = w.shape
    flat = x.reshape(x.numel() // k, k)
    m = flat.shape[0]
    if out is None:
        result = x.new_empty((*x.shape[:-1], n))
        target = result.view(m, n)
    else:
        result = out
        target = out if out.ndim == 2 else out.view(m, n) if out.is_contiguous() else out
        if target.ndim != 2 or not _storable(target):
            target = x.new_empty((m, n))
    if m:
        call = call_for(m, w, bias is not None)
        call(flat, w, bias, target)
        if isinstance(call, DecodeCall):
            ready.keep(call, m, w, operands(w), bias, overrides())
        if out is not None and target.data_ptr() != out.data_ptr():
            out.copy_(target.view(out.shape))
    return result


def _storable(out: torch.Tensor) -> bool:
    """Unit inner stride, and rows aligned to the 4 or 2 elements that kernels store at a time."""
    m, n = out.shape
    if out.stride(1) != 1 and n > 1:
        return False
    elements = 4 if n % 4 == 0 else 2 if n % 2 == 0 else 1
    return out.data_ptr() % (2 * elements) == 0 and (m == 1 or out.stride(0) % elements == 0)


def is_plain(x: torch.Tensor) -> bool:
    """Nothing but the kernel has to see this call: no tracing, tensor subclass, mode or function transform.
    torch's dispatcher would find out the same for a third of the host time of a call."""
    return (
        type(x) is torch.Tensor
        and not torch.compiler.is_compiling()
        and _C._len_torch_dispatch_stack() == 0
        and not _C._functorch.is_functorch_wrapped_tensor(x)
        and not x.is_meta
    )


def _weight(
    words: torch.Tensor,
    scale_rows: torch.Tensor,
    zero_rows: torch.Tensor | None,
    perm: torch.Tensor | None,
    k: int,
    n: int,
    group_size: int,
    offset: bool,
) -> PackedWeight:
    """:func:`operands` put together again."""
    return _template(
        words.shape,
        words.dtype,
        scale_rows.shape,
        scale_rows.dtype,
        None if zero_rows is None else (zero_rows.shape, zero_rows.dtype),
        None if perm is None else (perm.shape, perm.dtype),
        k,
        n,
        group_size,
        offset,
    ).unchecked(words, scale_rows, zero_rows, perm)


def scheme_of(
    words: torch.Size, dtype: torch.dtype, group_size: int, *, zeros: bool, offset: bool, act_order: bool
) -> Scheme:
    """The scheme of packed words of this shape with scales of ``dtype``, of one weight or of experts.

    Raises ``ArgumentError`` or ``ArgumentTypeError`` for words that hold no blocks, a dtype or group size
    that is none.
    """
    if len(words) < 3 or words[-1] not in _BITS:
        raise ArgumentError("words.shape", tuple(words), f"[N/64, K/64, {' or '.join(map(str, _BITS))}]")
    if dtype not in _DTYPE_NAMES:
        raise ArgumentTypeError("scale_rows.dtype", dtype, "torch.float16 or torch.bfloat16")
    kind: ZeroKind = "none" if not zeros else "offset" if offset else "integer"
    return Scheme(_BITS[words[-1]], group_size, _DTYPE_NAMES[dtype], kind, act_order)


@functools.lru_cache(maxsize=1024)
def _template(
    words: torch.Size,
    words_dtype: torch.dtype,
    scales: torch.Size,
    dtype: torch.dtype,
    zeros: tuple[torch.Size, torch.dtype] | None,
    perm: tuple[torch.Size, torch.dtype] | None,
    k: int,
    n: int,
    group_size: int,
    offset: bool,
) -> PackedWeight:
    """A weight of such tensors, without memory, checked by the constructor."""
    scheme = scheme_of(
        words, dtype, group_size, zeros=zeros is not None, offset=offset, act_order=perm is not None
    )

    def like(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    return PackedWeight(
        like(words, words_dtype),
        like(scales, dtype),
        None if zeros is None else like(*zeros),
        None if perm is None else like(*perm),
        None,
        scheme,
        (k, n),
    )


def _check(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None) -> None:
    """For callers of the operators; :func:`swordfish.mm` has better words for the same."""
    k, n = w.shape
    if x.dtype is not w.scale_rows.dtype:
        raise ArgumentTypeError("x.dtype", x.dtype, str(w.dtype))
    shape = x.shape
    if not shape or shape[-1] != k:
        raise ArgumentError("x.shape", tuple(shape), f"[..., K={k}]")
    device = x.get_device()
    if device != w.words.get_device() or (device < 0 and x.device != w.words.device):
        raise ArgumentError("x.device", x.device, f"{w.device}, where the weight is")
    if bias is not None and not _fits(bias, n, w.dtype):
        raise ArgumentError("bias", f"{tuple(bias.shape)} {bias.dtype}", f"a contiguous ({n},) {w.dtype}")


def _fits(bias: torch.Tensor, n: int, dtype: torch.dtype) -> bool:
    return bias.shape == (n,) and bias.dtype is dtype and bias.is_contiguous()


def _mm(
    x: torch.Tensor,
    words: torch.Tensor,
    scale_rows: torch.Tensor,
    zero_rows: torch.Tensor | None,
    perm: torch.Tensor | None,
    bias: torch.Tensor | None,
    k: int,
    n: int,
    group_size: int,
    offset: bool,
) -> torch.Tensor:
    given = words, scale_rows, zero_rows, perm, k, n, group_size, offset
    known = ready.product(x, given, bias, overrides())
    return _checked(x, given, bias) if known is None else known


def _checked(x: torch.Tensor, given: Operands, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with everything looked at."""
    w = _weight(*given)
    _check(x, w, bias)
    return multiply(x, w, bias)


def _direct(dispatched: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``swordfish::mm`` as compiled and exported graphs call it, straight to the kernels when nothing else
    has to see the call: no gradient, mode, function transform or tensor subclass. Otherwise ``dispatched``,
    the way through torch's dispatcher, which hands ten arguments to Python for half of the host time of a
    call."""
    grad_enabled, transform = torch.is_grad_enabled, _C._functorch.peek_interpreter_stack
    dispatch_modes, function_modes = _C._len_torch_dispatch_stack, _C._len_torch_function_stack

    def mm(
        x: torch.Tensor,
        words: torch.Tensor,
        scale_rows: torch.Tensor,
        zero_rows: torch.Tensor | None,
        perm: torch.Tensor | None,
        bias: torch.Tensor | None,
        k: int,
        n: int,
        group_size: int,
        offset: bool,
    ) -> torch.Tensor:
        if (
            type(x) is torch.Tensor
            and not grad_enabled()
            and not dispatch_modes()
            and not function_modes()
            and transform() is None
        ):
            given = words, scale_rows, zero_rows, perm, k, n, group_size, offset
            known = ready.product(x, given, bias, overrides())
            if known is not None:
                return known
            if not x.is_meta and all(t is None or type(t) is torch.Tensor for t in (*given[:4], bias)):
                return _checked(x, given, bias)
        return dispatched(x, words, scale_rows, zero_rows, perm, bias, k, n, group_size, offset)

    return mm


def _mm_out(x: torch.Tensor, *rest: Any, out: torch.Tensor) -> None:
    *weight, bias = rest[:5]
    w = _weight(*weight, *rest[5:])
    _check(x, w, bias)
    wanted = (*x.shape[:-1], w.shape[1])
    if out.shape != wanted or out.dtype != w.dtype or out.device != x.device:
        seen = f"{tuple(out.shape)} {out.dtype} on {out.device}"
        raise ArgumentError("out", seen, f"{wanted} {w.dtype} on {x.device}")
    multiply(x, w, bias, out)


def _dequantize(*weight: Any) -> torch.Tensor:
    return dequantize(_weight(*weight))


def _mm_fake(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], rest[6]))


def _mm_out_fake(x: torch.Tensor, *rest: Any, out: torch.Tensor) -> None:
    return None


def _dequantize_fake(words: torch.Tensor, scale_rows: torch.Tensor, *rest: Any) -> torch.Tensor:
    return scale_rows.new_empty((rest[2], rest[3]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    # Not save_for_backward: it refuses weights that were made in inference mode, and they are data.
    ctx.weight = (*inputs[1:5], *inputs[6:])
    ctx.bias = inputs[5] is not None


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The weight is data: gradients for x (through the dequantised weight) and for the bias."""
    to_x = to_bias = None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.swordfish.dequantize(*ctx.weight)
        to_x = grad @ weight.T
    if ctx.bias and ctx.needs_input_grad[5]:
        to_bias = grad.flatten(0, -2).sum(0) if grad.ndim > 1 else grad
    return (to_x, None, None, None, None, to_bias, None, None, None, None)


def define(library: Any, schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """An operator of the ``swordfish`` namespace: one function for CPU and CUDA tensors, and its shapes."""
    library.define(schema)
    name = schema.partition("(")[0]
    for key in ("CPU", "CUDA"):
        library.impl(name, function, key)
    torch.library.register_fake(f"swordfish::{name}", fake, lib=library)


def _register() -> torch.library.Library:
    """The operators live as long as the returned library."""
    library: Any = torch.library.Library("swordfish", "DEF")  # type: ignore[no-untyped-call]
    weight = "Tensor words, Tensor scale_rows, Tensor? zero_rows, Tensor? perm"
    scheme = "int k, int n, int group_size, bool offset"
    for schema, function, fake in (
        (f"mm(Tensor x, {weight}, Tensor? bias, {scheme}) -> Tensor", _mm, _mm_fake),
        (
            f"mm_out(Tensor x, {weight}, Tensor? bias, {scheme}, *, Tensor(a!) out) -> ()",
            _mm_out,
            _mm_out_fake,
        ),
        (f"dequantize({weight}, {scheme}) -> Tensor", _dequantize, _dequantize_fake),
    ):
        define(library, schema, function, fake)
    torch.library.register_autograd("swordfish::mm", _gradients, setup_context=_save, lib=library)
    found: torch.library.Library = library
    return found


def _shorten(overload: Any) -> None:
    """Graphs call the overload, a Python object that holds torch's own function: put :func:`_direct` before
    it. A torch that keeps it elsewhere goes on as before. This comes before anybody hashes the overload,
    whose hash is the function's."""
    dispatched = getattr(overload, "_op", None)
    if callable(dispatched):
        overload._op = _direct(dispatched)


_library = _register()
_shorten(torch.ops.swordfish.mm.default)
