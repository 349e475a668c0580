"""Time implementations and write a result file.

python -m bench.run --shapes 8b.o,70b.o --m 1,8,16 --impl swordfish,humming,torch --out x.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import harness
from bench.adapters import ADAPTERS, make
from bench.adapters.base import Adapter
from bench.chain import run_chain
from bench.device import ClockReader, describe_device, versions
from bench.floor import Floor
from bench.harness import CudaBackend
from bench.session import MAX_ROUNDS, Session, failure
from bench.shapes import CHAIN, DTYPES, SHAPES, Problem, parse_ints, parse_shapes
from swordfish.tune import timing

__all__ = ["main", "method", "open_session", "precompile", "write"]


def method() -> dict[str, Any]:
    """How times were taken, for the record."""
    return {
        "timing": "CUDA graphs over rotating cold buffers, contenders interleaved, median of replays",
        "graph_us": harness.GRAPH_US,
        "warm_up_us": harness.WARM_UP_US,
        "rotation_bytes_min": timing.ROTATION_BYTES,
        "rotation_l2_multiple": timing.L2_MULTIPLE,
        "small_layer_buffers": timing.SMALL_LAYER_COPIES,
        "floor": "the fastest of several kernels that stream the packed bytes once; plain launches",
        "pdl-floor": "the same, with programmatic dependent launch",
        "data": "normal codes, uniform positive scales, normal activations",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--shapes", default="all", help="names, KxN or 'all' (default)")
    parser.add_argument("--m", default="1,8,16,32", help="numbers of tokens, or 'decode', 'prefill'")
    parser.add_argument("--impl", default="swordfish,humming,torch", help=f"some of {', '.join(ADAPTERS)}")
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--group-size", type=int, default=128, help="-1 for channelwise")
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES))
    parser.add_argument("--zeros", action="store_true", help="integer zero points")
    parser.add_argument("--act-order", action="store_true", help="a permuted group index")
    parser.add_argument(
        "--chain", action="store_true", help="a dependent chain of Llama 8B's GEMMs instead of shapes"
    )
    parser.add_argument(
        "--no-pdl-floor", action="store_true", help="leave out the floor with dependent launch"
    )
    parser.add_argument("--rounds", type=int, default=MAX_ROUNDS, help="replays per implementation")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser


def open_session(
    adapters: Sequence[Adapter],
    floors: Sequence[Floor],
    *,
    rounds: int = MAX_ROUNDS,
    graph_us: float = harness.GRAPH_US,
) -> Session:
    """A session on the current CUDA device, without the implementations that are not available (which it
    names)."""
    usable = []
    for adapter in adapters:
        reason = adapter.available()
        if reason is None:
            usable.append(adapter)
        else:
            print(f"{adapter.name}: not available: {reason}", file=sys.stderr)
    device = torch.cuda.current_device()
    clocks = ClockReader(device)
    print(f"clocks: {clocks.source}")
    return Session(
        usable,
        floors,
        CudaBackend(),
        l2_bytes=describe_device(device)["l2_bytes"],
        rounds=rounds,
        graph_us=graph_us,
        read_clocks=clocks.read,
        log=lambda line: print(line, flush=True),
    )


def precompile(adapters: Sequence[Adapter], problems: Sequence[tuple[Problem, int]]) -> None:
    """Let every implementation compile in parallel what the run will need. One that cannot is named; it
    then compiles when it is first called."""
    for adapter in adapters:
        start = time.perf_counter()
        wanted = [(problem, m) for problem, m in problems if adapter.supports(problem, m) is None]
        try:
            adapter.precompile(wanted)
        except Exception as error:  # another library's compiler: report it and time the others
            print(f"{adapter.name}: precompiling failed: {failure(error)}", file=sys.stderr)
            continue
        seconds = time.perf_counter() - start
        if seconds > 0.5:
            print(f"{adapter.name}: precompiled {len(wanted)} problems in {seconds:.1f} s", flush=True)


def write(path: Path | None, session: Session, device: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Everything so far as JSON; called after each shape, so that a crash loses one shape."""
    if path is None:
        return
    document = {
        "schema": "swordfish-bench/1",
        "device": device,
        "versions": versions(),
        "method": method(),
        "arguments": arguments,
        "readers": session.readers,
        "rows": session.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if any implementation that was to be timed failed or was wrong."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        shapes, ms = parse_shapes(options.shapes), parse_ints(options.m)
        adapters = make(options.impl.split(","))
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    if options.chain:
        shapes = [SHAPES[name] for name in CHAIN]
    problems = [
        Problem(shape, options.bits, options.group_size, options.dtype, options.zeros, options.act_order)
        for shape in shapes
    ]
    floors = [Floor()] if options.no_pdl_floor else [Floor(), Floor(programmatic=True)]
    session = open_session(adapters, floors, rounds=options.rounds)
    device = describe_device(torch.cuda.current_device())
    arguments = {key: str(value) for key, value in vars(options).items() if key != "out"}
    precompile(session.adapters, [(problem, m) for problem in problems for m in ms])
    if options.chain:
        for m in ms:
            run_chain(session, problems, m)
            write(options.out, session, device, arguments)
    else:
        for problem in problems:
            session.run(problem, ms)
            write(options.out, session, device, arguments)
    failed = [row for row in session.rows if row["error"]]
    for row in failed:
        print(f"{row['impl']} {row['shape']} M={row['m']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
