"""What the adapters of vLLM's kernels share: finding its compiled operators and naming its weight types."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from bench.shapes import Problem

__all__ = ["missing_operators", "operators", "weight_type"]


def missing_operators(*names: str) -> str | None:
    """``None`` if vLLM imports and offers one of these operators, else the reason why not."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        found = operators()
    except Exception as error:  # an optional package that is broken or absent must not stop the others
        return f"vllm is not importable: {error}"
    return None if any(hasattr(found, name) for name in names) else f"vllm has no {' or '.join(names)}"


def operators() -> Any:
    """The module ``vllm._custom_ops``."""
    return importlib.import_module("vllm._custom_ops")


def weight_type(problem: Problem) -> Any:
    """vLLM's scalar type of the codes: with the symmetric zero built in, or plain where there are zero
    points."""
    types = importlib.import_module("vllm.scalar_type").scalar_types
    if problem.zeros:
        return types.uint4 if problem.bits == 4 else types.uint8
    return types.uint4b8 if problem.bits == 4 else types.uint8b128
