"""A first look at a machine: ``python -m bench.smoke [--out x.json]``.

Prints versions, clocks and copy bandwidth, the floor of each Llama shape with every way of reading, and what
the other libraries need at a few M. A few minutes at most; nothing of Swordfish's kernels is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.adapters import make
from bench.device import ClockReader, copy_bandwidth, describe_device, versions
from bench.floor import Floor
from bench.run import open_session, precompile, write
from bench.shapes import SHAPES, Problem, parse_ints, parse_shapes

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if something failed that was to be timed, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m bench.smoke", description=__doc__)
    parser.add_argument("--shapes", default="all")
    parser.add_argument("--m", default="1")
    parser.add_argument("--impl", default="humming,humming-pdl,torch,marlin,machete")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    start = time.perf_counter()
    device = describe_device(torch.cuda.current_device())
    for name, value in [*versions().items(), *device.items()]:
        print(f"{name}: {value}")
    clocks = ClockReader(torch.cuda.current_device())
    print(f"idle: {clocks.read()}")
    print(f"copy: {copy_bandwidth():.2f} TB/s (read + written)", flush=True)
    print(f"busy: {clocks.read()}")
    session = open_session(make(options.impl.split(",")), [Floor(), Floor(programmatic=True)])
    problems = [Problem(shape) for shape in parse_shapes(options.shapes)]
    ms = parse_ints(options.m)
    precompile(session.adapters, [(problem, m) for problem in problems for m in ms])
    for problem in problems:
        before = len(session.readers)
        session.run(problem, ms)
        for entry in session.readers[before:]:
            ordered = sorted(entry["us"].items(), key=lambda item: item[1])
            print(
                f"  {entry['floor']:9} " + "; ".join(f"{label}: {us:.2f}" for label, us in ordered),
                flush=True,
            )
        write(options.out, session, device, {key: str(value) for key, value in vars(options).items()})
    print(f"{time.perf_counter() - start:.0f} s; shapes {', '.join(SHAPES)}")
    failed = [row for row in session.rows if row["error"]]
    for row in failed:
        print(f"{row['impl']} {row['shape']} M={row['m']}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
