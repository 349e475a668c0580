"""Random weights to time, enough copies to find each one cold, and the check that precedes every timing."""

from __future__ import annotations

import math
from typing import Any

import torch

from swordfish.layouts.packing import BLOCK, packed_shape
from swordfish.packed import PackedWeight
from swordfish.reference import reference_mm
from swordfish.scheme import Scheme

__all__ = [
    "EXCESS_LIMIT",
    "ROUNDING_LIMIT",
    "check_product",
    "exact_product",
    "random_weight",
    "weight_bytes",
]

ROUNDING_LIMIT = 1.5
"""RMS error of a result, over that of rounding the exact one to the output dtype. Ours stay below 1.15."""

EXCESS_LIMIT = 2.0
"""Error of any element beyond one rounding of it, in unit roundoffs of the RMS of the result. fp32 sums cost
0.2 at most; 64 rows left out of a column of K=28672 give about 12 (bf16) or 100 (fp16)."""

_SCALE_FLOOR = 2.0**-12  # keeps scales of int8 weights among the normal numbers of fp16


def random_weight(scheme: Scheme, k: int, n: int, device: torch.device, seed: int) -> PackedWeight:
    """A packed weight with uniform codes and values of standard deviation about ``1/sqrt(K)``; random data,
    because zeros draw less power and run at higher clocks."""
    generator = torch.Generator(device=device).manual_seed(seed)
    groups, pitch = scheme.groups(k), -(-n // BLOCK) * BLOCK

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.rand(groups, pitch, device=device, generator=generator) * (high - low) + low

    shape = packed_shape(k, n, scheme.bits)
    words = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device, generator=generator)
    levels, middle = 2**scheme.bits, scheme.symmetric_zero
    # Codes uniform over so many levels have a standard deviation of levels / sqrt(12).
    scales = uniform(0.75, 1.25) * max(math.sqrt(12.0 / k) / levels, _SCALE_FLOOR)
    zeros: torch.Tensor | None = None
    if scheme.zeros == "integer":
        zeros = uniform(middle - 2, middle + 2).round()
    elif scheme.zeros == "offset":
        zeros = uniform(-1.1, -0.9) * middle * scales
    order = torch.randperm(k, device=device, generator=generator).int() if scheme.act_order else None
    dtype = scheme.torch_dtype
    return PackedWeight(
        words, scales.to(dtype), None if zeros is None else zeros.to(dtype), order, None, scheme, (k, n)
    )


def weight_bytes(scheme: Scheme, k: int, n: int) -> int:
    """Bytes that a launch reads of a weight: words, scales and zero points."""
    blocks, pitch = -(-k // BLOCK) * -(-n // BLOCK), -(-n // BLOCK) * BLOCK
    kinds = 1 if scheme.zeros == "none" else 2
    return blocks * 512 * scheme.bits + scheme.groups(k) * pitch * 2 * kinds


def exact_product(x: torch.Tensor, w: PackedWeight) -> torch.Tensor:
    """fp64 ``[M, N]``: the product of the stored values, not rounded."""
    out = torch.empty(x.shape[0], w.shape[1], dtype=torch.float64, device=x.device)
    reference_mm(x, w, None, out)
    return out


def check_product(out: torch.Tensor, exact: torch.Tensor) -> tuple[str, float]:
    """What is wrong with a result ``[M, N]`` (empty: nothing), and its RMS error over that of one rounding of
    the fp64 product ``exact``."""
    bad = int((~torch.isfinite(out)).sum())
    if bad:
        return f"{bad} of {out.numel()} elements are not finite", math.nan
    error, rms = (out.double() - exact).abs(), exact.square().mean().sqrt().item()
    once = (exact.to(out.dtype).double() - exact).square().mean().sqrt().item()
    rounding = error.square().mean().sqrt().item() / max(once, 1e-300)
    roundoff = torch.finfo(out.dtype).eps / 2
    beyond: Any = (error - roundoff * exact.abs()).amax(0).max(0)
    excess, column = beyond.values.item() / (roundoff * rms), int(beyond.indices)
    if not excess <= EXCESS_LIMIT:
        return f"column {column} is wrong by {excess:.1f} unit roundoffs of the RMS", rounding
    if not rounding <= ROUNDING_LIMIT:
        return f"the error is {rounding:.2f} times that of one rounding", rounding
    return "", rounding
