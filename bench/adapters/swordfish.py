"""Swordfish itself, through its public API: ``swordfish.pack`` and ``swordfish.mm``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from bench.adapters.base import Adapter
from bench.data import Weight
from bench.shapes import Problem

__all__ = ["Swordfish", "scheme_of"]


class Swordfish(Adapter):
    """The kernel that ``swordfish.mm`` dispatches to."""

    name = "swordfish"

    def __init__(self) -> None:
        self._packed: dict[Problem, Any] = {}

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA device"
        try:
            module = importlib.import_module("swordfish")
        except Exception as error:
            return f"not importable: {error}"
        missing = [name for name in ("pack", "mm") if not hasattr(module, name)]
        return f"swordfish has no {', '.join(missing)}" if missing else None

    def precompile(self, problems: Sequence[tuple[Problem, int]]) -> None:
        dispatch = importlib.import_module("swordfish.dispatch")
        runtime = importlib.import_module("swordfish.runtime")
        props = dispatch.props_of(torch.device("cuda", torch.cuda.current_device()))
        requests = []
        for problem, m in problems:
            scheme, shape = scheme_of(problem), problem.shape
            plan = dispatch.plan(m, shape.n, shape.k, scheme, props, wishes=dispatch.overrides())
            requests += [(source, props.arch) for source in plan.sources(scheme, shape.k, shape.n)]
        runtime.compile_many(requests)

    def prepare(self, weight: Weight) -> Any:
        problem = weight.problem
        packed = importlib.import_module("swordfish").pack(
            weight.codes,
            weight.scales,
            weight.zeros,
            weight.g_idx,
            bits=problem.bits,
            group_size=problem.group_size,
            dtype=problem.torch_dtype,
        )
        self._packed[problem] = packed
        return packed

    def run(self, state: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = importlib.import_module("swordfish").mm(x, state, out=out)
        return result

    def describe(self, problem: Problem, m: int) -> str:
        packed = self._packed.get(problem)
        return "" if packed is None else str(importlib.import_module("swordfish").explain(packed, m))


def scheme_of(problem: Problem) -> Any:
    """The scheme of a problem's weight."""
    return importlib.import_module("swordfish.scheme").Scheme(
        bits=problem.bits,
        group_size=problem.group_size,
        dtype=problem.dtype,
        zeros="integer" if problem.zeros else "none",
        act_order=problem.act_order,
    )
