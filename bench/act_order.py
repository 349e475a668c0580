"""What act-order costs, and what is left of it where x comes in packed order.

python -m bench.act_order --out act-order.json

Linear layers: int4 without act-order, with it, and with x in packed order. Expert layers, from ids to the
result: the same three, where the last one has the order of down folded into gate and up.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import swordfish as sf
from bench.adapters.swordfish import Swordfish
from bench.data import activations, check, random_weight, reference
from bench.device import save
from bench.harness import (
    Contender,
    CudaBackend,
    clone_state,
    estimate_us,
    launches_per_graph,
    measure,
    rotation_count,
    state_bytes,
)
from bench.moe_data import MODELS, MoeShape, hidden_states, random_experts, routes
from bench.moe_layers import SILU
from bench.shapes import Problem, Shape, parse_ints, parse_shapes
from swordfish.experts import ExpertWeights, plan_layer
from swordfish.experts.layer import layer_sources
from swordfish.experts.reference import reference_layer
from swordfish.runtime.device import device_props
from swordfish.runtime.registry import compile_many
from swordfish.scheme import Scheme

__all__ = ["KINDS", "ordered_experts", "table"]

KINDS = ("plain", "act-order", "packed order")
EXPERT_COPIES = 2
"""Of the weights of a layer; they are far larger than the L2, so a second one is enough to find them cold."""

ROUTES = 8

Call = Callable[[int], torch.Tensor]
"""One launch, or one layer, with the copy of the weights of that number."""


def ordered_experts(
    w13: ExpertWeights, w2: ExpertWeights, seed: int = 0
) -> tuple[tuple[ExpertWeights, ExpertWeights], tuple[ExpertWeights, ExpertWeights]]:
    """Weights with the tensors of these and random row orders: each stacked alone, and as a layer."""

    def ordered(w: ExpertWeights, seed: int) -> ExpertWeights:
        g = torch.Generator(device=w.device).manual_seed(seed)
        keys = torch.rand(w.experts, w.packed_k, device=w.device, generator=g)
        tensors = {**w.tensors(), "perm": keys.argsort(dim=1).int()}
        scheme = replace(w.scheme, act_order=True)
        return ExpertWeights.from_tensors(tensors, scheme, w.shape, gated=w.gated)

    first, second = ordered(w13, seed), ordered(w2, seed + 1)
    gate_up, down = (map(w.expert, range(w.experts)) for w in (first, second))
    return (first, second), ExpertWeights.stack_layer(gate_up, down, w13.experts)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each shape and number of rows; what act-order adds, before and after."""
    lines = [f"| | rows | {' | '.join(KINDS)} | added | in packed order |", "|---" * (len(KINDS) + 4) + "|"]
    for row in rows:
        plain, ordered, packed = (row["us"][kind] for kind in KINDS)
        times = " | ".join(f"{us:.2f}" for us in (plain, ordered, packed))
        name, m = row["name"], row["m"]
        lines.append(f"| {name} | {m} | {times} | {ordered - plain:+.2f} | {packed - plain:+.2f} |")
    return "\n".join(lines)


def _time(
    name: str,
    m: int,
    calls: dict[str, tuple[Call, torch.Tensor]],
    number: int,
    *,
    repeats: int,
    checked: Sequence[int],
    rounds: int,
) -> dict[str, Any]:
    """Times ``number`` calls of each kind by turns, after comparing those of the indices ``checked`` with
    what they must give."""
    backend, contenders, errors = CudaBackend(), [], []
    for kind, (call, exact) in calls.items():
        for index in checked:
            verdict = check(call(index), exact, "bfloat16")
            if not verdict.ok:
                errors.append(f"{kind}: {verdict.message}")
        graph, _ = backend.capture([functools.partial(call, i) for i in range(number)], repeats)
        contenders.append(Contender(kind, graph, number * repeats))
    timings = measure(contenders, backend, rounds=rounds)
    times = {kind: timing.median_us for kind, timing in timings.items()}
    print(f"{name} M={m}: " + "  ".join(f"{k} {us:.2f}" for k, us in times.items()), *errors, flush=True)
    return {"name": name, "m": m, "us": times, "error": "; ".join(errors)}


def linear(shape: Shape, m: int, rounds: int) -> dict[str, Any]:
    """One product of m rows."""
    plain = Problem(shape)
    problems = {"plain": plain, "act-order": replace(plain, act_order=True)}
    Swordfish().precompile([(problem, m) for problem in problems.values()])
    calls: dict[str, tuple[Call, torch.Tensor]] = {}
    copies = repeats = 0
    for kind, problem in problems.items():
        weight = random_weight(problem, "cuda")
        x = activations(m, problem, "cuda")
        exact, packed = reference(weight, x), Swordfish().prepare(weight)
        size = state_bytes(packed)
        copies = rotation_count(size, device_props(packed.device).l2_bytes)
        launches = launches_per_graph(copies, estimate_us(size, 2.0 * m * shape.k * shape.n))
        repeats = launches // copies
        states = [packed, *(clone_state(packed) for _ in range(copies - 1))]

        def call(i: int, x: torch.Tensor = x, states: Sequence[Any] = states) -> torch.Tensor:
            return sf.mm(x, states[i])

        calls[kind] = call, exact
        if problem.act_order:
            free = [state.in_packed_order() for state in states]
            calls["packed order"] = functools.partial(call, x=packed.gather(x), states=free), exact
    ends = (0, copies - 1)
    return _time(f"{shape.k} x {shape.n}", m, calls, copies, repeats=repeats, checked=ends, rounds=rounds)


def experts(model: MoeShape, ms: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """A layer for each number of tokens."""
    scheme = Scheme(4, 128, "bfloat16")
    w13 = random_experts(model.experts, model.hidden, 2 * model.intermediate, scheme, gated=True)
    w2 = random_experts(model.experts, model.intermediate, model.hidden, scheme, gated=False, seed=1)
    layers = dict(zip(KINDS, ((w13, w2), *ordered_experts(w13, w2)), strict=True))
    props = device_props(w13.device)
    sources = {
        (source, props.arch): None
        for m in ms
        for pair in layers.values()
        for source in layer_sources(plan_layer(*pair, m, model.top_k), *pair, SILU)
    }
    compile_many(list(sources))
    copies = {kind: [pair, clone_state(pair)] for kind, pair in layers.items()}
    rows = []
    for m in ms:
        taken = routes(model, m, ROUTES)
        x = hidden_states(m, model.hidden, scheme.torch_dtype)
        calls: dict[str, tuple[Call, torch.Tensor]] = {}
        for kind, (first, second) in layers.items():
            exact = torch.empty(m, model.hidden, dtype=torch.float64, device="cuda")
            reference_layer(x, first, second, taken[0].weights, taken[0].ids, None, SILU, exact)

            def call(i: int, kind: str = kind, x: torch.Tensor = x, taken: Any = taken) -> torch.Tensor:
                route = taken[i // EXPERT_COPIES]
                gate_up, down = copies[kind][i % EXPERT_COPIES]
                return sf.moe(x, gate_up, down, route.weights, route.ids)

            calls[kind] = call, exact
        number, ends = ROUTES * EXPERT_COPIES, range(EXPERT_COPIES)
        rows.append(_time(model.name, m, calls, number, repeats=1, checked=ends, rounds=rounds))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.act_order", description=__doc__)
    parser.add_argument("--shapes", default="8b.o,8b.qkv,8b.down,70b.o", help="names or KxN of linear layers")
    parser.add_argument("--m", default="16", help="their rows")
    parser.add_argument("--models", default="qwen1.5-a2.7b", help=f"of experts: some of {', '.join(MODELS)}")
    parser.add_argument("--tokens", default="64,256", help="of the expert layers")
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
    ms = parse_ints(options.m)
    rows = [linear(shape, m, options.rounds) for shape in parse_shapes(options.shapes) for m in ms]
    for name in options.models.split(","):
        rows += experts(MODELS[name], parse_ints(options.tokens), options.rounds)
    save(options.out, "swordfish-bench-act-order/1", rows)
    print(table(rows))
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
