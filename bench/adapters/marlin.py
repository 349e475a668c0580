"""vLLM's Marlin, through the operators that its GPTQ and AWQ layers call."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from bench.adapters.base import Adapter, pack_rows
from bench.adapters.vllm_common import missing_operators, operators, weight_type
from bench.data import Weight
from bench.shapes import Problem

__all__ = ["Marlin"]

NAMES = ("gptq_marlin_gemm", "marlin_gemm")
"""The operator was renamed between vLLM versions; the arguments are the same."""


class Marlin(Adapter):
    """fp32 reduction and no atomic adds: vLLM's defaults."""

    name = "marlin"

    def available(self) -> str | None:
        return missing_operators(*NAMES)

    def supports(self, problem: Problem, m: int) -> str | None:
        if problem.act_order:
            return "the adapter does not permute rows"
        if problem.zeros and problem.bits == 8:
            return "no zero points with 8 bits"
        return None if problem.group_size in (-1, 32, 64, 128) else "group size must be -1, 32, 64 or 128"

    def prepare(self, weight: Weight) -> dict[str, Any]:
        utils = importlib.import_module("vllm.model_executor.layers.quantization.utils.marlin_utils")
        problem, device = weight.problem, weight.codes.device
        k, n = weight.codes.shape
        empty = torch.empty(0, dtype=torch.int32, device=device)
        words = pack_rows(weight.codes, problem.bits)
        state = {
            "words": operators().gptq_marlin_repack(words, empty, k, n, problem.bits),
            "scales": utils.marlin_permute_scales(weight.scales, k, n, problem.group_size),
            "zeros": empty,
            "empty": empty,
            "workspace": utils.marlin_make_workspace_new(device),
            "problem": problem,
        }
        if weight.zeros is not None:
            state["zeros"] = utils.marlin_zero_points(weight.zeros.int(), problem.groups, n, problem.bits)
        return state

    def run(self, state: dict[str, Any], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        ops, problem = operators(), state["problem"]
        gemm = next(getattr(ops, name) for name in NAMES if hasattr(ops, name))
        result: torch.Tensor = gemm(
            x,
            out,
            state["words"],
            None,
            state["scales"],
            None,
            None,
            state["zeros"],
            state["empty"],
            state["empty"],
            state["workspace"],
            weight_type(problem),
            size_m=x.shape[0],
            size_n=problem.shape.n,
            size_k=problem.shape.k,
            is_k_full=True,
            use_atomic_add=False,
            use_fp32_reduce=True,
            is_zp_float=False,
        )
        return result
