"""Where kernel tests run: on the GPU if there is one, always on the emulator, with the same assertions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import swordfish as sf

__all__ = ["BACKENDS", "EMULATED", "Backend", "exact", "quantised"]


@dataclass(frozen=True)
class Backend:
    """A place to run kernels: a device for the tensors and, on the CPU, the emulated architecture."""

    name: str

    @property
    def device(self) -> str:
        return "cuda" if self.name == "cuda" else "cpu"

    @contextmanager
    def active(self, seed: int = 0) -> Iterator[None]:
        """The block runs there; whatever the emulator found in any of its launches fails the test."""
        if self.name == "cuda":
            yield
        else:
            with sf.emulate(self.name, seed=seed) as emulation:
                yield
            for report in emulation.reports:
                report.raise_on_findings()

    def __str__(self) -> str:
        return self.name


EMULATED = [Backend("sm_90a"), Backend("sm_100a")]
BACKENDS = ([Backend("cuda")] if torch.cuda.is_available() else []) + EMULATED


def quantised(
    k: int,
    n: int,
    *,
    bits: int = 4,
    group_size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    zeros: str = "none",
    act_order: bool = False,
    bias: bool = False,
    device: str = "cpu",
    seed: int = 0,
) -> sf.PackedWeight:
    """A random weight; half of its scales are negative, as some producers write them."""
    g = torch.Generator().manual_seed(seed)
    groups = 1 if group_size == -1 else -(-k // group_size)
    codes = torch.randint(0, 1 << bits, (k, n), dtype=torch.uint8, generator=g)
    scales = (torch.rand(groups, n, generator=g) * 0.015 + 0.005) * (
        torch.randint(0, 2, (groups, n), generator=g) * 2 - 1
    )
    zero_rows = g_idx = None
    if zeros == "integer":
        zero_rows = torch.randint(0, (1 << bits) + 1, (groups, n), generator=g)
    elif zeros == "offset":
        zero_rows = torch.randn(groups, n, generator=g) * 0.05
    if act_order:
        size = k if group_size == -1 else group_size
        g_idx = (torch.randperm(k, generator=g) // size).int()
    w = sf.pack(
        codes,
        scales,
        zero_rows,
        g_idx,
        bits=bits,
        group_size=group_size,
        dtype=dtype,
        zero_kind=zeros,  # type: ignore[arg-type]
        bias=torch.randn(n, generator=g) if bias else None,
    )
    return w.to(device)


def exact(x: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    """fp64 product with the unrounded weights, without bias."""
    from swordfish.reference import exact_columns

    return w.gather(x).double() @ exact_columns(w, 0, w.shape[1])
