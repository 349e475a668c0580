"""Random weights and activations, the exact reference, and the check that precedes every timing."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from bench.shapes import DTYPES, Problem

__all__ = ["Check", "Weight", "activations", "check", "dequantize", "random_weight", "reference"]

CODE_SIGMA = 2.9 / 16
"""Standard deviation of the codes over their range. Real quantised weights look like this; and the mean is
the symmetric zero, so a long chain of layers neither grows nor fades."""

TOLERANCE = {"bfloat16": (8e-3, 5e-2), "float16": (1e-3, 6e-3)}
"""Largest relative error allowed: of the whole result, and of one column over the RMS of the result. One
rounding of the output gives 1.6e-3 (bf16) and 2.0e-4 (fp16), rounding the weights to 16 bits as much again; a
wrong column gives 1.
"""

COLUMNS = 4096
"""Columns dequantised at a time; bounds the memory of the fp64 reference."""


@dataclass(frozen=True)
class Weight:
    """An unpacked weight, the same for every implementation.

    ``codes`` uint8 ``[K, N]``; ``scales`` ``[G, N]`` in the activation dtype; ``zeros`` uint8 ``[G, N]`` or
    ``None`` (then the zero is ``2**(bits-1)``); ``g_idx`` int32 ``[K]``, the group of each row, or ``None``
    (row order).
    """

    problem: Problem
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    g_idx: torch.Tensor | None = None

    @property
    def rows_group(self) -> torch.Tensor:
        """int64 ``[K]``: the group of each row."""
        if self.g_idx is not None:
            return self.g_idx.long()
        k, size = self.problem.shape.k, self.problem.group_size
        return torch.arange(k, device=self.codes.device) // (k if size == -1 else size)


def random_weight(problem: Problem, device: torch.device | str, seed: int = 0) -> Weight:
    """A weight whose values have standard deviation ``1/sqrt(K)``, so that outputs are as large as inputs."""
    k, n, levels = problem.shape.k, problem.shape.n, 1 << problem.bits
    generator = torch.Generator(device=device).manual_seed(seed)
    sigma = CODE_SIGMA * levels
    codes = torch.empty(k, n, dtype=torch.uint8, device=device)
    for start in range(0, k, 4096):
        rows = codes[start : start + 4096]
        noise = torch.randn(rows.shape, device=device, generator=generator)
        rows.copy_((noise * sigma + levels / 2).round_().clamp_(0, levels - 1))
    # The floor keeps the scales of int8 weights among the normal numbers of fp16.
    size = max(1 / (sigma * math.sqrt(k)), 2.0**-12)
    spread = torch.rand(problem.groups, n, device=device, generator=generator)
    scales = ((0.75 + 0.5 * spread) * size).to(problem.torch_dtype)
    zeros = g_idx = None
    if problem.zeros:
        shape = (problem.groups, n)
        low, high = levels // 2 - 2, levels // 2 + 3
        zeros = torch.randint(low, high, shape, dtype=torch.uint8, device=device, generator=generator)
    if problem.act_order:
        order = torch.randperm(k, device=device, generator=generator)
        size_k = k if problem.group_size == -1 else problem.group_size
        g_idx = (order // size_k).int()
    return Weight(problem, codes, scales, zeros, g_idx)


def activations(m: int, problem: Problem, device: torch.device | str) -> torch.Tensor:
    """Standard normal ``[M, K]`` in the activation dtype."""
    generator = torch.Generator(device=device).manual_seed(1)
    values = torch.randn(m, problem.shape.k, device=device, generator=generator)
    return values.to(problem.torch_dtype)


def dequantize(weight: Weight, columns: slice, dtype: torch.dtype) -> torch.Tensor:
    """``(q - z) * s`` of some columns, ``[K, columns]``; exact in fp64, and in fp32 but for the final
    product."""
    rows = weight.rows_group
    values = weight.codes[:, columns].to(dtype)
    if weight.zeros is None:
        values -= 1 << (weight.problem.bits - 1)
    else:
        values -= weight.zeros[:, columns].to(dtype)[rows]
    return values.mul_(weight.scales[:, columns].to(dtype)[rows])


def reference(weight: Weight, x: torch.Tensor) -> torch.Tensor:
    """fp64 ``[M, N]``: the product with the exactly dequantised weight."""
    n = weight.problem.shape.n
    x64 = x.double()
    out = torch.empty(x.shape[0], n, dtype=torch.float64, device=x.device)
    for start in range(0, n, COLUMNS):
        columns = slice(start, min(start + COLUMNS, n))
        torch.mm(x64, dequantize(weight, columns, torch.float64), out=out[:, columns])
    return out


@dataclass(frozen=True)
class Check:
    """``rms``: error over norm of the result. ``column``: worst column's RMS error over the RMS of the
    result. ``rounding``: ``rms`` over what one rounding of the exact result to the output dtype gives."""

    ok: bool
    rms: float
    column: float
    rounding: float
    message: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def check(out: torch.Tensor, exact: torch.Tensor, dtype: str) -> Check:
    """Compare a result ``[M, N]`` with the fp64 reference, as a whole and per column."""
    nan = float("nan")
    if out.shape != exact.shape:
        return Check(False, nan, nan, nan, f"shape {tuple(out.shape)} instead of {tuple(exact.shape)}")
    bad = int((~torch.isfinite(out)).sum())
    if bad:
        return Check(False, nan, nan, nan, f"{bad} of {out.numel()} elements are not finite")
    scale = exact.square().mean().sqrt().item()
    error = out.double() - exact
    rms = error.square().mean().sqrt().item() / scale
    columns = error.square().mean(0).sqrt() / scale
    column, where = (v.item() for v in columns.max(0))
    once = (exact.to(DTYPES[dtype]).double() - exact).square().mean().sqrt().item() / scale
    limit, column_limit = TOLERANCE[dtype]
    problems = []
    if not rms <= limit:
        problems.append(f"relative error {rms:.2e} is above {limit:.0e}")
    if not column <= column_limit:
        problems.append(f"column {where}: error {column:.2e} of the RMS is above {column_limit:.0e}")
    return Check(not problems, rms, column, rms / max(once, 1e-300), "; ".join(problems))
