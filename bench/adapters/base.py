"""What an implementation must offer to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bench.data import Weight
from bench.shapes import Problem

__all__ = ["Adapter", "pack_rows"]


class Adapter:
    """One implementation. A *state* is its own form of a weight: tensors in a dict, list or dataclass."""

    name = ""
    computes = True
    """False for a floor, which has no result to check."""

    def available(self) -> str | None:
        """``None`` if it can run here, else the reason why not. Must not raise."""
        raise NotImplementedError

    def supports(self, problem: Problem, m: int) -> str | None:
        """``None`` if this problem can be timed, else the reason why not."""
        return None

    def precompile(self, problems: Sequence[tuple[Problem, int]]) -> None:
        """Compile what these problems (with their M) will need, in parallel where that saves time."""

    def prepare(self, weight: Weight) -> Any:
        """The state of a weight, on the weight's device."""
        raise NotImplementedError

    def run(self, state: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Queue ``out = x @ W`` on the current stream and return the result: ``out``, or a fresh tensor where
        the implementation insists on its own. Must be capturable in a CUDA graph after one call outside."""
        raise NotImplementedError

    def describe(self, problem: Problem, m: int) -> str:
        """The configuration that ran, for the record."""
        return ""


def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """``[R, C]`` uint8 codes to int32 ``[R * bits / 32, C]``, row 0 of each word in its lowest bits (GPTQ's
    order)."""
    per_word = 32 // bits
    rows, columns = codes.shape
    words = torch.zeros(rows // per_word, columns, dtype=torch.int32, device=codes.device)
    for position in range(per_word):
        words |= codes[position::per_word].int() << (bits * position)
    return words
