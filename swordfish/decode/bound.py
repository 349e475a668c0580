"""What a launch with one weight and one number of rows is, once everything about the weight is looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

__all__ = ["BoundLaunch", "WeightTensors", "address"]

BoundLaunch: TypeAlias = "Callable[[torch.Tensor, int, torch.Tensor, int], None]"
"""``launch(x, x.data_ptr(), out, stream)``: contiguous x ``[M, K]`` and out ``[M, N]`` of known dtype and
device, x in packed order and aligned to 16 bytes, the device current; ``stream`` is a raw handle."""

WeightTensors: TypeAlias = (
    "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]"
)
"""``words, scale_rows, zero_rows, perm, bias``."""


def address(tensor: torch.Tensor | None) -> int:
    """As kernels take it: null for ``None``."""
    return 0 if tensor is None else tensor.data_ptr()
