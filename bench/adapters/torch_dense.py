"""cuBLAS through ``torch.mm`` on a 16-bit weight: what quantisation has to beat."""

from __future__ import annotations

import torch

from bench.adapters.base import Adapter
from bench.data import COLUMNS, Weight, dequantize

__all__ = ["TorchDense"]


class TorchDense(Adapter):
    """The weight is rounded once to the activation dtype and stored ``[N, K]``, as ``nn.Linear`` does."""

    name = "torch"

    def available(self) -> str | None:
        return None if torch.cuda.is_available() else "no CUDA device"

    def prepare(self, weight: Weight) -> dict[str, torch.Tensor]:
        k, n = weight.codes.shape
        dense = torch.empty(n, k, dtype=weight.problem.torch_dtype, device=weight.codes.device)
        for start in range(0, n, COLUMNS):
            columns = slice(start, min(start + COLUMNS, n))
            dense[columns] = dequantize(weight, columns, torch.float32).T
        return {"weight": dense}

    def run(self, state: dict[str, torch.Tensor], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, state["weight"].T, out=out)
