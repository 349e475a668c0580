"""Is the path that dispatch chooses the fastest one? A sweep over M, with more points where the plan changes.

    python -m bench.sweep_paths --shapes all --out sweep.json
    python -m bench.path_report sweep.json --plot sweep.svg

Times ``swordfish`` (what ``sf.mm`` runs), each path by itself, and the peers in one run, point by point in
turns: four points an octave, and the last M before and the first after each change of the plan. Peers other
than cuBLAS are timed at two points an octave. Ends with the report of
:mod:`bench.path_report`.

Graphs and rounds are shorter than those of :mod:`bench.run`, and where a launch is long compared with reading
the weight fewer copies of it are walked over, still more than twice the L2.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import report
from bench.adapters import Adapter, make
from bench.adapters.paths import PATHS
from bench.data import random_weight
from bench.device import describe_device
from bench.harness import estimate_us
from bench.path_report import SUBJECT, markdown
from bench.run import open_session, precompile, write
from bench.session import Loaded, Session
from bench.shapes import DTYPES, Problem, parse_shapes

__all__ = ["boundaries", "grid", "main", "points", "slim", "some_copies", "sweep"]

MAX_M = 8192
FINE = 1024
"""Up to so many rows each change of configuration counts; beyond, one tile of rows more hardly shows."""
GRAPH_US = 1000.0
ROUNDS = 5
WARM_UP_US = 3000.0
DROPPED = ("min_us", "p10_us", "p90_us", "replays", "bytes", "packed_bytes")


def grid(most: int = MAX_M, per_octave: int = 2) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to ``most``; with four an octave 1, 2, 3, 4, 5, 6, 7, 8, 10, ..."""
    octaves = (range(1 << i, 2 << i, max(1, (1 << i) // per_octave)) for i in range(most.bit_length()))
    return [m for octave in octaves for m in octave if m <= most]


def boundaries(plans: Sequence[tuple[str, Any]]) -> list[int]:
    """Every M whose path, and up to :data:`FINE` whose configuration, differs from that of M - 1;
    ``plans[i]`` is the path and configuration of M = i + 1."""
    pairs = zip(range(2, len(plans) + 1), plans, plans[1:], strict=False)
    return [m for m, before, after in pairs if before[0] != after[0] or (m <= FINE and before != after)]


def points(plans: Sequence[tuple[str, Any]]) -> list[int]:
    """Four points an octave, the last M before and the first after each change, and where a tile of 128 rows
    begins."""
    most, edges = len(plans), boundaries(plans)
    tiles = (m for m in range(129, FINE + 2, 128) if m <= most)
    return sorted({*grid(most, 4), *edges, *(m - 1 for m in edges), *tiles})


def plans_of(problem: Problem, most: int = MAX_M) -> list[tuple[str, Any]]:
    """Path and configuration of every M from 1 to ``most`` on the current device."""
    from bench.adapters.swordfish import scheme_of
    from swordfish.dispatch import plan, props_of

    props, scheme = props_of(torch.device("cuda", torch.cuda.current_device())), scheme_of(problem)
    found = (plan(m, problem.shape.n, problem.shape.k, scheme, props) for m in range(1, most + 1))
    return [(p.path, p.config) for p in found]


def some_copies(loaded: Loaded, flops: float, graph_us: float, l2_bytes: int) -> Loaded:
    """As many of the copies as fill a graph of ``graph_us``, but more than twice the L2, and two at least."""
    if not loaded.size:
        return loaded
    cold = 2 * l2_bytes // loaded.size + 1
    wanted = max(2, cold, int(graph_us / estimate_us(loaded.size, flops)))
    return Loaded(loaded.adapter, loaded.states[:wanted], loaded.size, loaded.error)


def split_peers(adapters: Sequence[Adapter]) -> tuple[list[Adapter], list[Adapter]]:
    """Those to time at every point, and those to time on the grid only."""
    always = [a for a in adapters if a.name.startswith((SUBJECT, "torch"))]
    return always, [a for a in adapters if a not in always]


def sweep(session: Session, problem: Problem, ms: Sequence[int]) -> None:
    """Time one shape at each of ``ms``. All paths share the copies of one packed weight."""
    weight = random_weight(problem, session.device)
    loaded: list[Loaded] = []
    for adapter in session.adapters:
        ours = next((entry for entry in loaded if entry.adapter.name == SUBJECT), None)
        if ours is not None and adapter.name.startswith(SUBJECT):
            loaded.append(Loaded(adapter, ours.states, ours.size, ours.error))
        else:
            loaded.append(session.load(adapter, functools.partial(adapter.prepare, weight)))
    always, _ = split_peers(session.adapters)
    on_grid = set(grid(max(ms)))
    for i, m in enumerate(ms):
        flops = 2.0 * m * problem.shape.k * problem.shape.n
        some = [
            some_copies(entry, flops, session.graph_us, session.l2_bytes)
            for entry in loaded
            if (m in on_grid or entry.adapter in always) and entry.adapter.supports(problem, m) is None
        ]
        session.point(weight, m, some, warm_up_us=None if i == 0 else WARM_UP_US)
        torch.cuda.empty_cache()  # every graph had a pool of its own, which a capture cannot take back


def slim(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what can be read off the others, so that thousands of them make a file to commit."""
    kept = {key: value for key, value in row.items() if key not in DROPPED and value not in ("", None)}
    kept["us"] = None if row["us"] is None else round(row["us"], 3)
    if "check" in row:
        kept["check"] = {"rms": float(f"{row['check']['rms']:.3g}")}
    if "clocks" in row:
        kept["clocks"] = {key: row["clocks"][key] for key in ("sm_mhz",) if key in row["clocks"]}
    if row["impl"].startswith(f"{SUBJECT}-"):
        kept.pop("config", None)
    return kept


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if anything that was to be timed failed or was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.sweep_paths", description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="all", help="names, KxN or 'all' (default)")
    parser.add_argument("--impl", default="humming,torch", help="peers")
    parser.add_argument("--bits", default="4", help="4, 8 or 4,8")
    parser.add_argument("--group-size", type=int, default=128, help="-1 for channelwise")
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES))
    parser.add_argument("--least", type=int, default=1, help="smallest M")
    parser.add_argument("--most", type=int, default=MAX_M, help="largest M")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    try:
        adapters = make([SUBJECT, *(f"{SUBJECT}-{path}" for path in PATHS), *options.impl.split(",")])
        problems = [
            Problem(shape, int(bits), options.group_size, options.dtype)
            for bits in options.bits.split(",")
            for shape in parse_shapes(options.shapes)
        ]
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    start = time.perf_counter()
    session = open_session(adapters, [], rounds=ROUNDS, graph_us=GRAPH_US)
    device = describe_device(torch.cuda.current_device())
    chosen = {problem: points(plans_of(problem, options.most)) for problem in problems}
    wanted = {problem: [m for m in ms if m >= options.least] for problem, ms in chosen.items()}
    print(f"{sum(map(len, wanted.values()))} points", flush=True)
    always, others = split_peers(session.adapters)
    precompile(always, [(p, m) for p, ms in wanted.items() for m in ms])
    precompile(others, [(p, m) for p, ms in wanted.items() for m in ms if m in set(grid(max(ms)))])
    arguments = {key: str(value) for key, value in vars(options).items() if key != "out"}
    for problem, ms in wanted.items():
        before = len(session.rows)
        sweep(session, problem, ms)
        session.rows[before:] = [slim(row) for row in session.rows[before:]]
        write(options.out, session, device, arguments)
        print(f"{problem.shape.name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(markdown(report.cases([{"rows": session.rows}])))
    failed = [row for row in session.rows if row.get("error")]
    for row in failed:
        print(f"{row['impl']} {row['shape']} M={row['m']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
