"""vLLM's Machete (CUTLASS, Hopper only), with the schedule that its own heuristic picks."""

from __future__ import annotations

from typing import Any

import torch

from bench.adapters.base import Adapter, pack_rows
from bench.adapters.vllm_common import missing_operators, operators, weight_type
from bench.data import Weight
from bench.shapes import Problem

__all__ = ["Machete"]


class Machete(Adapter):
    """It returns a tensor of its own; the timed graph allocates that from its pool, which costs no kernel."""

    name = "machete"

    def available(self) -> str | None:
        return missing_operators("machete_mm")

    def supports(self, problem: Problem, m: int) -> str | None:
        if problem.act_order:
            return "the adapter does not permute rows"
        if problem.shape.k % 64 or problem.shape.n % 128:
            return "needs K % 64 == 0 and N % 128 == 0"
        return None if problem.group_size in (-1, 64, 128) else "group size must be -1, 64 or 128"

    def prepare(self, weight: Weight) -> dict[str, Any]:
        problem = weight.problem
        words = pack_rows(weight.codes, problem.bits).T.contiguous().T  # column-major, as it demands
        zeros = None
        if weight.zeros is not None:
            zeros = -(weight.scales.float() * weight.zeros.float()).to(problem.torch_dtype)
        return {
            "words": operators().machete_prepack_B(
                words, problem.torch_dtype, weight_type(problem), problem.torch_dtype
            ),
            "scales": weight.scales.contiguous(),
            "zeros": zeros,
            "problem": problem,
        }

    def run(self, state: dict[str, Any], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        problem = state["problem"]
        result: torch.Tensor = operators().machete_mm(
            a=x,
            b_q=state["words"],
            b_type=weight_type(problem),
            out_type=problem.torch_dtype,
            b_group_scales=state["scales"],
            b_group_zeros=state["zeros"],
            b_group_size=problem.group_size,
        )
        return result
