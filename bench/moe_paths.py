"""From how many rows of an expert on dequantising its weights first is faster: both paths side by side.

python -m bench.moe_paths --bits 4,8 --out moe-paths.json
python -m bench.moe_paths --read moe-paths.json

Microseconds of gate_up and down with all that comes with them (activation, router weights, gathering rows or
dequantising), in one part whatever its workspace. Both paths are checked against each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.device import save
from bench.harness import Contender, CudaBackend, measure
from bench.moe_data import MODELS, MoeShape, hidden_states, random_experts, routes
from bench.moe_layers import SILU
from bench.session import rounds_for
from bench.shapes import parse_ints
from swordfish.experts.choose import ExpertConfig, ExpertPlan, plan_experts
from swordfish.experts.layer import down, gate_up, launch_layer, layer_sources
from swordfish.experts.operators import layer_shape
from swordfish.experts.routing import Routing, sort_pairs
from swordfish.runtime.device import device_props
from swordfish.runtime.registry import compile_many
from swordfish.scheme import Scheme

__all__ = ["crossing", "main", "table"]

PATHS = ("decode", "dense")
MOST_APART = 8e-3
"""Relative difference of the results: one of them has rounded weights."""


def crossing(points: Sequence[tuple[float, float, float]]) -> float | None:
    """Rows of an expert from which on the second time stays the smaller one, by interpolating the ratio of
    ``(rows, time, time)`` between neighbours; ``None`` if it never does."""
    found = None
    for rows, first, second in sorted(points, reverse=True):
        ratio = second / first
        if ratio >= 1.0:
            if found is None:
                return None
            above, there = found
            return above - (above - rows) * (1.0 - there) / (ratio - there)
        found = rows, ratio
    return None if found is None else found[0]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown of what :func:`main` has written: a line per model and tokens, and where the paths cross."""
    widths = sorted({row["bits"] for row in rows})
    points: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for row in rows:
        points.setdefault((row["model"], row["m"]), {})[row["bits"]] = row
    heads = [f"int{bits} wide, us | dense, us | wide over dense" for bits in widths]
    lines = [f"| | rows an expert | tokens | {' | '.join(heads)} |", "|---" * (3 + 3 * len(widths)) + "|"]
    shown = ""
    for (model, m), by_bits in points.items():
        cells = ["" if model == shown else model, f"{next(iter(by_bits.values()))['rows']:,.0f}", f"{m:,}"]
        for bits in widths:
            wide, dense = (by_bits[bits]["us"][path] for path in PATHS)
            cells += [f"{wide:,.0f}", f"{dense:,.0f}", f"{wide / dense:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
        shown = model
    crossings = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for bits in widths:
            mine = [row for row in rows if (row["model"], row["bits"]) == (model, bits)]
            at = crossing([(row["rows"], row["us"]["decode"], row["us"]["dense"]) for row in mine])
            crossings.append(f"{model} int{bits} " + ("nowhere" if at is None else f"{at:,.0f}"))
    return "\n".join([*lines, "", f"Rows of an expert where they cross: {', '.join(crossings)}."])


class Paths:
    """Both paths of one model and scheme."""

    def __init__(self, model: MoeShape, scheme: Scheme) -> None:
        self.model, self.scheme = model, scheme
        self.w13 = random_experts(model.experts, model.hidden, 2 * model.intermediate, scheme, gated=True)
        self.w2 = random_experts(model.experts, model.intermediate, model.hidden, scheme, gated=False, seed=1)
        self.props = device_props(self.w13.device)
        self.backend = CudaBackend()

    def plan(self, m: int, path: str) -> ExpertPlan:
        """Of all tokens together."""
        return plan_experts(m, self.model.top_k, layer_shape(self.w13, self.w2, None), self.props, path)

    def compile(self, ms: Sequence[int]) -> None:
        """Everything that :meth:`run` will need."""
        plans = [self.plan(m, path) for m in ms for path in PATHS]
        sources = [source for plan in plans for source in layer_sources(plan, self.w13, self.w2, SILU)]
        compile_many([(source, self.props.arch) for source in dict.fromkeys(sources)])

    def run(self, m: int, rounds: int) -> dict[str, Any]:
        """Check, time, print."""
        model, arch = self.model, self.props.arch
        route = routes(model, m, 1)[0]
        x = hidden_states(m, model.hidden, self.scheme.torch_dtype)
        contenders, results, captured = [], [], []
        for path in PATHS:
            plan = self.plan(m, path)
            assert plan.gate_up is not None and plan.down is not None
            routing = sort_pairs(route.ids, None, model.experts, plan.gate_up.block_rows, arch, begins=True)

            def both(
                first: ExpertConfig = plan.gate_up,
                second: ExpertConfig = plan.down,
                routing: Routing = routing,
                narrow: bool = plan.narrow,
            ) -> torch.Tensor:
                h = gate_up(first, x, self.w13, None, routing, SILU, arch)
                return down(second, h, self.w2, route.weights, routing, arch, narrow=narrow)

            y = torch.empty_like(x)
            launch_layer(plan, x, self.w13, self.w2, route.weights, route.ids, None, SILU, y, arch)
            results.append(y.float())
            graph, _ = self.backend.capture([both], 1)
            captured.append(both)  # its routing is memory that the graph reads
            contenders.append(Contender(path, graph, 1))
        first, second = results
        apart = float((first - second).norm() / first.norm())
        guess = 6 * m * model.top_k * model.hidden * model.intermediate / 5e8
        timings = measure(contenders, self.backend, rounds=rounds_for(guess, rounds))
        times = {path: timings[path].median_us for path in PATHS}
        rows = m * model.top_k / model.experts
        print(
            f"{model.name:14} int{self.scheme.bits} M={m:<6} {rows:7.0f} rows an expert | "
            + " | ".join(f"{path} {us:.0f}" for path, us in times.items())
            + f" | dense {times['decode'] / times['dense']:.2f} times as fast | apart {apart:.1e}",
            flush=True,
        )
        error = "" if apart < MOST_APART else f"results differ by {apart:.1e}"
        return {
            "model": model.name,
            "bits": self.scheme.bits,
            "m": m,
            "rows": rows,
            "us": times,
            "plans": {path: str(self.plan(m, path)) for path in PATHS},
            "apart": apart,
            "error": error,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.moe_paths", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--m", default="1024,2048,4096,8192,12288,16384,32768")
    parser.add_argument("--bits", default="4,8")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--read", type=Path, metavar="JSON", help="only print the table of a run")
    options = parser.parse_args(argv)
    if options.read:
        print(table(json.loads(options.read.read_text(encoding="utf-8"))["rows"]))
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    ms, rows = parse_ints(options.m), []
    for name in options.models.split(","):
        for bits in parse_ints(options.bits):
            paths = Paths(MODELS[name], Scheme(bits, options.group_size, "bfloat16"))
            paths.compile(ms)
            found = [paths.run(m, options.rounds) for m in ms]
            rows += found
            at = crossing([(row["rows"], row["us"]["decode"], row["us"]["dense"]) for row in found])
            told = "nowhere" if at is None else f"from {at:.0f} rows an expert on"
            print(f"{name} int{bits}: dense is faster {told}", flush=True)
            save(options.out, "swordfish-bench-moe-paths/1", rows)
            del paths
            torch.cuda.empty_cache()
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
