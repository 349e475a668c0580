"""A dependent chain: the GEMMs of decoder layers in one graph, each reading what the one before has written.

This is what decoding does between attention calls, and where programmatic dependent launch pays or breaks:
the next kernel may start early, but must not read its input early. An input is the first ``M * K`` elements
of the output before it, so nothing but the GEMMs runs. The time is per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from bench.adapters.base import Adapter
from bench.data import Check, Weight, activations, check, random_weight, reference
from bench.harness import (
    Contender,
    clone_state,
    estimate_us,
    launches_per_graph,
    rotation_count,
    state_bytes,
)
from bench.session import Session, failure
from bench.shapes import Problem

__all__ = ["Chain", "run_chain"]


class Chain:
    """Layers of one implementation. ``layers[i][j]`` is the state of GEMM ``j`` in layer ``i``."""

    def __init__(self, adapter: Adapter, weights: Sequence[Weight], m: int, l2_bytes: int) -> None:
        self.adapter, self.weights, self.m = adapter, weights, m
        first = [adapter.prepare(weight) for weight in weights]
        self.layer_bytes = state_bytes(first)
        copies = rotation_count(self.layer_bytes, l2_bytes) - 1
        self.layers: list[list[Any]] = [first, *(clone_state(first) for _ in range(copies))]
        self.outputs = [
            torch.empty(m, w.problem.shape.n, dtype=w.problem.torch_dtype, device=w.codes.device)
            for w in weights
        ]
        self.last: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, layers: int) -> torch.Tensor:
        """Queue that many layers; keeps the results of the last one in ``last``."""
        for index in range(layers):
            self.last = []
            for state, weight, out in zip(
                self.layers[index % len(self.layers)], self.weights, self.outputs, strict=True
            ):
                x = self.adapter.run(state, self.input(x, weight), out)
                self.last.append(x)
        return x

    def input(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        """The first ``M * K`` elements as ``[M, K]``."""
        k = weight.problem.shape.k
        return x.view(-1)[: self.m * k].view(self.m, k)

    def verify_last(self, first_input: torch.Tensor | None) -> Check:
        """Check each GEMM of the last layer against the input that it found. The input of the first GEMM is
        gone unless given. Returns the worst check, or the first that failed."""
        worst: Check | None = None
        inputs = [first_input, *self.last[:-1]]
        for x, weight, result in zip(inputs, self.weights, self.last, strict=True):
            if x is None:
                continue
            verdict = check(result, reference(weight, self.input(x, weight)), weight.problem.dtype)
            if not verdict.ok:
                return verdict
            if worst is None or verdict.column > worst.column:
                worst = verdict
        assert worst is not None
        return worst


def run_chain(session: Session, problems: Sequence[Problem], m: int) -> None:
    """Time the chain of ``problems`` for every implementation and floor of a session; appends rows of kind
    ``chain``."""
    for problem in problems:
        session.tune_floors(problem.packed_bytes, problem.shape.name)
    weights = [random_weight(p, session.device, seed=i) for i, p in enumerate(problems)]
    x = activations(m, problems[0], session.device)
    rows: dict[str, dict[str, Any]] = {}
    contenders: list[Contender] = []
    keep: list[Chain] = []  # a graph reads the memory of its chain
    for adapter in [*session.floors, *session.adapters]:
        settings = asdict(problems[0])
        settings.pop("shape")
        row = {"kind": "chain", "shape": "+".join(p.shape.name for p in problems), "m": m, **settings}
        row |= {
            "impl": adapter.name,
            "us": None,
            "error": "",
            "skipped": "",
            "packed_bytes": sum(p.packed_bytes for p in problems),
        }
        rows[adapter.name] = row
        reasons = [reason for p in problems if (reason := adapter.supports(p, m))]
        if reasons:
            row["skipped"] = reasons[0]
            continue
        try:
            chain = Chain(adapter, weights, m, session.l2_bytes)
            keep.append(chain)
            contender = _contender(session, chain, x, row)
        except Exception as error:  # whatever another library raises becomes its row
            row["error"] = failure(error)
            continue
        if contender is not None:
            contenders.append(contender)
    if contenders:
        session.time(contenders, rows)
    session.rows += rows.values()
    session.log(f"chain M={m}: " + "  ".join(_entry(row) for row in rows.values()))


def _contender(session: Session, chain: Chain, x: torch.Tensor, row: dict[str, Any]) -> Contender | None:
    adapter, backend = chain.adapter, session.backend
    estimate = sum(estimate_us(w.problem.packed_bytes, 0) for w in chain.weights)
    layers = launches_per_graph(len(chain.layers), estimate)
    row |= {"bytes": chain.layer_bytes, "buffers": len(chain.layers), "layers": layers}
    if adapter.computes:
        for out in chain.outputs:
            out.fill_(float("nan"))
        chain.forward(x, 1)
        verdict = chain.verify_last(x)
        row["check"] = verdict.to_dict()
        if not verdict.ok:
            row["error"] = f"wrong result: {verdict.message}"
            return None
    graph, _ = backend.capture([lambda: chain.forward(x, layers)], 1)
    if adapter.computes:
        for result in chain.last:
            result.fill_(float("nan"))
        backend.replay(graph)
        backend.synchronize()
        verdict = chain.verify_last(None)
        row["check"] = verdict.to_dict()
        if not verdict.ok:
            row["error"] = f"wrong result in the graph: {verdict.message}"
            return None
    return Contender(adapter.name, graph, layers)


def _entry(row: dict[str, Any]) -> str:
    return (
        f"{row['impl']} {row['us']:.2f}"
        if row["us"] is not None
        else f"{row['impl']} - ({row['error'] or row['skipped']})"
    )
