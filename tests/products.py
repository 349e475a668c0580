"""Layers whose values are known from the unpacked tensors, places to multiply with them, an error bound."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

import swordfish as sf

__all__ = ["EVERYWHERE", "KERNELS", "PLACES", "Layer", "assert_product", "device_of", "layer", "place"]

KERNELS = [*(["cuda"] if torch.cuda.is_available() else []), "sm_90a", "sm_100a"]
"""Places where kernels run: the GPU if there is one, and two emulated families."""

PLACES = ["reference", *(["cuda"] if torch.cuda.is_available() else [])]
"""Places that cost little: the CPU reference, and the GPU if there is one."""

EVERYWHERE = list(dict.fromkeys([*PLACES, *KERNELS]))

_UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def place(name: str) -> AbstractContextManager[object]:
    """What must be active to multiply at a place."""
    return nullcontext() if name in ("reference", "cuda") else sf.emulate(name)


def device_of(name: str) -> str:
    """The device of a place's tensors."""
    return "cuda" if name == "cuda" else "cpu"


@dataclass(frozen=True)
class Layer:
    """A packed weight and its values in fp64 ``[K, N]``, computed from the codes it was packed from."""

    weight: sf.PackedWeight
    values: torch.Tensor


def layer(
    k: int,
    n: int,
    *,
    bits: int = 4,
    group_size: int | None = 128,
    dtype: torch.dtype = torch.float16,
    zeros: bool = False,
    act_order: bool = False,
    bias: torch.Tensor | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Layer:
    """Random codes, zero points and scales U(0.005, 0.02) rounded to ``dtype``; rows in checkpoint order."""
    g = torch.Generator().manual_seed(seed)
    size = k if group_size in (None, -1) else int(group_size)
    groups = -(-k // size)
    codes = torch.randint(0, 1 << bits, (k, n), dtype=torch.uint8, generator=g)
    scales = (torch.rand(groups, n, generator=g) * 0.015 + 0.005).to(dtype)
    points = torch.randint(0, 1 << bits, (groups, n), generator=g) if zeros else None
    rows = torch.arange(k) // size
    if act_order:
        rows = rows[torch.randperm(k, generator=g)]
    values = codes.double() - ((1 << (bits - 1)) if points is None else points.double()[rows])
    weight = sf.pack(
        codes,
        scales,
        points,
        rows.int() if act_order else None,
        bits=bits,
        group_size=group_size,
        dtype=dtype,
        bias=bias,
    )
    return Layer(weight.to(device), values * scales.double()[rows])


def assert_product(
    y: torch.Tensor, x: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """``y`` is ``x @ values + bias`` up to one rounding and fp32 accumulation, in every element.

    The bound: a unit roundoff of the result, plus 2^-20 of the sum of absolute terms for the sums, plus half
    of the smallest subnormal. It is many times below a relative error of 2e-3 (fp16) or 1e-2 (bf16) per
    column.
    """
    exact = x.double().cpu() @ values
    size = x.double().abs().cpu() @ values.abs()
    if bias is not None:
        exact = exact + bias.double().cpu()
        size = size + bias.double().abs().cpu()
    assert y.shape == exact.shape and y.dtype == x.dtype
    info = torch.finfo(y.dtype)
    bound = _UNIT_ROUNDOFF[y.dtype] * exact.abs() + 2.0**-20 * size + info.smallest_normal * info.eps / 2
    excess = (y.double().cpu() - exact).abs() - bound
    worst = int(excess.argmax())
    assert excess.max() <= 0, (
        f"element {worst} of {tuple(y.shape)}: {float(excess.max())} beyond {float(bound.flatten()[worst])}"
    )
