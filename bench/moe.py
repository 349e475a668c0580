"""Time expert layers: gate_up and down, each alone and one after the other, and the whole layer.

python -m bench.moe --models qwen3-30b-a3b --m 1,4,16 --out moe.json

``swordfish`` includes the activation, the router weights and, where its kernel wants tokens in order,
gathering them; ``humming`` is its two GEMMs alone. ``layer`` is sorting to the final sum, from ids to
tokens.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.adapters.humming_moe import HummingExperts
from bench.data import check
from bench.device import ClockReader, save
from bench.harness import Contender, CudaBackend, clone_state, measure
from bench.moe_data import MODELS, MoeShape, reference_products
from bench.moe_layers import ROUTES, SILU, ColdLayers
from bench.session import failure, rounds_for
from bench.shapes import parse_ints
from swordfish.experts import moe, plan_layer
from swordfish.experts.layer import layer_sources, weight_bytes, workspace_bytes
from swordfish.runtime.registry import compile_many
from swordfish.scheme import Scheme

__all__ = ["main"]

GRAPH_US = 2000.0
BOUNDS = (1, 4, 16, 64)
"""Tokens whose geometric mean is printed."""

Call = Callable[[int], torch.Tensor]


class Session:
    """Times one model for several numbers of tokens and collects rows."""

    def __init__(self, model: MoeShape, scheme: Scheme, peers: Sequence[str], rounds: int) -> None:
        self.model, self.scheme, self.rounds = model, scheme, rounds
        self.layers = ColdLayers.make(model, scheme)
        self.backend = CudaBackend()
        self.peers: dict[str, HummingExperts] = {}
        self.states: dict[str, list[dict[str, torch.Tensor]]] = {}
        for name in peers:
            try:
                self.peers[name] = HummingExperts(model, scheme, pdl=name.endswith("pdl"))
                for which, ours in (("gate_up", self.layers.w13), ("down", self.layers.w2)):
                    state = self.peers[name].prepare(which, ours[0])
                    if which not in self.states:
                        self.states[which] = [state, *(clone_state(state) for _ in ours[1:])]
            except Exception as error:  # another library's: its rows stay empty, the others go on
                self.peers.pop(name, None)
                print(f"{name}: {failure(error)}", file=sys.stderr)

    def compile(self, ms: Sequence[int]) -> None:
        """Everything that a run will need."""
        layers = self.layers
        for name, peer in list(self.peers.items()):
            try:
                peer.compile(ms)
            except Exception as error:
                del self.peers[name]
                print(f"{name}: {failure(error)}", file=sys.stderr)
        plans = [plan_layer(layers.w13[0], layers.w2[0], m, self.model.top_k) for m in ms]
        weights = layers.w13[0], layers.w2[0]
        compile_many([(s, layers.props.arch) for plan in plans for s in layer_sources(plan, *weights, SILU)])

    def run(self, m: int) -> list[dict[str, Any]]:
        """Check everything, then time it."""
        layers, model = self.layers, self.model
        layers.set_tokens(m)
        first, h, second = reference_products(layers.x, layers.w13[0], layers.w2[0], layers.routes[0], SILU)
        plan = plan_layer(layers.w13[0], layers.w2[0], m, model.top_k)
        active = sum(route.active for route in layers.routes) / ROUTES
        guess = 4 + max(model.active_bytes(active) / 3e6, 6 * h.numel() * model.hidden / 5e8)
        rows: dict[str, dict[str, Any]] = {
            f"{impl} {what}": {"model": model.name, "m": m, "active": active, "impl": impl, "what": what,
                               "bytes": model.active_bytes(active), "us": None, "error": ""}
            for impl in ("swordfish", *self.peers)
            for what in ("gate_up", "down", "both", *(["layer"] if impl == "swordfish" else []))
        }  # fmt: skip
        contenders = []
        for name, (call, expected) in self._calls(m, plan, first, h, second).items():
            try:
                contenders.append(self._contender(name, call, expected, guess))
            except Exception as error:
                rows[name]["error"] = failure(error)
        clocks = ClockReader(torch.cuda.current_device())
        samples: list[dict[str, float | None]] = []
        timings = measure(
            contenders,
            self.backend,
            rounds=rounds_for(guess * len(layers.w13), self.rounds),
            sample=lambda: samples.append(clocks.read()),
        )
        for name, timing in timings.items():
            rows[name] |= {"us": timing.median_us, "p10_us": timing.p10_us, "p90_us": timing.p90_us}
        for name, row in rows.items():
            if row["impl"] == "swordfish":
                row["config"] = str(plan)
                weights = layers.w13[0], layers.w2[0]
                held = workspace_bytes(m, model.top_k, *weights, plan)
                row["workspace_bytes"] = held + weight_bytes(plan, *weights)
            row["clocks"] = [s.get("sm_mhz") for s in samples]
            if row["error"]:
                print(f"{model.name} M={m} {name}: {row['error']}", file=sys.stderr)
        print(_line(model, m, active, rows), flush=True)
        return list(rows.values())

    def _calls(
        self, m: int, plan: Any, first: torch.Tensor, h: torch.Tensor, second: torch.Tensor
    ) -> dict[str, tuple[Call, torch.Tensor]]:
        """By name: a call of an index, and what the first one must give."""
        layers, k = self.layers, len(self.layers.w13)
        routing = layers.routings(plan.gate_up.block_rows)[0]
        in_order = layers.in_order(routing)
        width, hidden = self.model.intermediate, self.model.hidden
        pairs = m * self.model.top_k
        total = second.view(m, self.model.top_k, hidden).sum(1)

        def both(i: int) -> torch.Tensor:
            made = layers.call("gate_up", plan.gate_up, i, in_order)
            return layers.call("down", plan.down, i, made)

        def layer(i: int) -> torch.Tensor:
            route = layers.routes[i % ROUTES]
            return moe(layers.x, layers.w13[i % k], layers.w2[i % k], route.weights, route.ids)

        calls: dict[str, tuple[Call, torch.Tensor]] = {
            "swordfish gate_up": (lambda i: layers.call("gate_up", plan.gate_up, i, in_order), in_order),
            "swordfish down": (lambda i: layers.call("down", plan.down, i, in_order), second),
            "swordfish both": (both, second),
            "swordfish layer": (layer, total),
        }
        unweighted = second / layers.routes[0].weights.flatten()[:, None]
        for name, peer in self.peers.items():
            routes = {w: [peer.route(w, m, r) for r in layers.routes] for w in ("gate_up", "down")}
            mid = torch.empty(pairs, 2 * width, dtype=layers.x.dtype, device="cuda")
            out = torch.empty(pairs, hidden, dtype=layers.x.dtype, device="cuda")

            def launch(
                which: str,
                i: int,
                peer: HummingExperts = peer,
                routes: Any = routes,
                mid: Any = mid,
                out: Any = out,
            ) -> torch.Tensor:
                x, to = (layers.x, mid) if which == "gate_up" else (h, out)
                return peer.run(which, m, self.states[which][i % k], routes[which][i % ROUTES], x, to)

            def pair(i: int, launch: Any = launch) -> torch.Tensor:
                launch("gate_up", i)
                return launch("down", i)  # type: ignore[no-any-return]

            calls[f"{name} gate_up"] = (functools.partial(launch, "gate_up"), first)
            calls[f"{name} down"] = (functools.partial(launch, "down"), unweighted)
            calls[f"{name} both"] = (pair, unweighted)
        return calls

    def _contender(self, name: str, call: Call, expected: torch.Tensor, guess: float) -> Contender:
        result = call(0)
        verdict = check(result[:, : expected.shape[1]], expected.double(), self.scheme.dtype)
        if not verdict.ok:
            raise ValueError(f"wrong result: {verdict.message}")
        copies = len(self.layers.w13)
        count = max(copies, min(ROUTES * copies, round(GRAPH_US / guess)))
        graph, _ = self.backend.capture([functools.partial(call, i) for i in range(count)], 1)
        return Contender(name, graph, count)


def _line(model: MoeShape, m: int, active: float, rows: dict[str, dict[str, Any]]) -> str:
    def us(name: str) -> str:
        value = rows[name]["us"] if name in rows else None
        return "-" if value is None else f"{value:.1f}"

    parts = [
        f"{impl} {us(f'{impl} gate_up')}+{us(f'{impl} down')} both {us(f'{impl} both')}"
        for impl in dict.fromkeys(row["impl"] for row in rows.values())
    ]
    whole = us("swordfish layer")
    return f"{model.name:14} M={m:<5} {active:5.1f} experts | {' | '.join(parts)} | layer {whole}"


def _ratios(rows: Sequence[dict[str, Any]], what: str) -> dict[tuple[str, int], float]:
    """The best peer's time over ours by model and tokens; ``sum`` adds gate_up and down."""
    times: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if row["us"] is not None and (
            row["what"] == what or (what == "sum" and row["what"] in ("gate_up", "down"))
        ):
            entry = times.setdefault((row["model"], row["m"]), {})
            entry[row["impl"]] = entry.get(row["impl"], 0.0) + row["us"]
    return {
        key: min(t for impl, t in entry.items() if impl != "swordfish") / entry["swordfish"]
        for key, entry in times.items()
        if "swordfish" in entry and len(entry) > 1
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if anything that was to be timed failed or was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.moe", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--m", default="1,4,16,64,256,1024,4096")
    parser.add_argument("--peers", default="humming,humming-pdl")
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    scheme = Scheme(options.bits, options.group_size, "bfloat16")
    ms = parse_ints(options.m)
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        start = time.perf_counter()
        session = Session(MODELS[name], scheme, [p for p in options.peers.split(",") if p], options.rounds)
        session.compile(ms)
        print(f"{name}: ready after {time.perf_counter() - start:.0f} s", flush=True)
        for m in ms:
            rows += session.run(m)
            arguments = {key: str(value) for key, value in vars(options).items() if key != "out"}
            save(options.out, "swordfish-bench-moe/1", rows, arguments=arguments)
        del session
    for what in ("sum", "both"):
        ratios = _ratios(rows, what)
        few = [ratio for (_, m), ratio in ratios.items() if m in BOUNDS]
        if few:
            mean = math.exp(sum(map(math.log, few)) / len(few))
            print(f"{what}: best peer / ours, M in {BOUNDS}: geometric mean {mean:.2f}, least {min(few):.2f}")
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
