"""Current device, current stream and new tensors as torch keeps them, at the cost of a C call each.

``torch.cuda.current_stream().cuda_stream`` builds a Python object and takes about a microsecond, and
``Tensor.new_empty`` two; the functions used here are the ones that compiled torch code calls for the same
purposes. They are missing in a torch without CUDA, where nothing calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["current_device", "empty", "exchange_device", "raw_stream"]


def _function(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


current_device: Callable[[], int] = _function(torch._C, "_cuda_getDevice")
"""Index of this thread's current CUDA device."""

exchange_device: Callable[[int], int] = _function(torch._C, "_cuda_exchangeDevice")
"""Make a device this thread's, its primary context current; returns the previous index."""

raw_stream: Callable[[int], int] = _function(torch._C, "_cuda_getCurrentRawStream")
"""Handle (``cudaStream_t``) of torch's current stream on a device."""

empty: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = _function(
    torch._C._dynamo.guards, "_empty_strided_cuda"
)
"""An uninitialised tensor of a shape, strides and dtype on the current device."""
