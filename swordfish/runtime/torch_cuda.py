"""Current device and current stream as torch keeps them, at the cost of a C call each.

``torch.cuda.current_stream().cuda_stream`` builds a Python object and takes about a microsecond; the
functions used here are the ones that compiled torch code calls for the same purpose.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["current_device", "exchange_device", "raw_stream"]

_C: Any = torch._C


def current_device() -> int:
    """Index of this thread's current CUDA device."""
    return int(_C._cuda_getDevice())


def exchange_device(index: int) -> int:
    """Make ``index`` this thread's device, its primary context current; returns the previous index."""
    return int(_C._cuda_exchangeDevice(index))


def raw_stream(index: int) -> int:
    """Handle (``cudaStream_t``) of torch's current stream on device ``index``."""
    return int(_C._cuda_getCurrentRawStream(index))
