"""Mutation score of the 2-CTA test GEMM: every single-instruction mutant under several schedules.

Run from the repository's root; takes minutes. The table of survivors in ``docs/emulator.md`` comes from here.

    python tools/mutation_score.py [--seeds 8] [--table FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from swordfish.emulator.mutate import Outcome, mutants, score
from tests.emulator.gemm_2cta import ENTRY, ptx, trial


def main() -> None:
    """Print survivors as they show, then the score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8, help="schedules per mutant")
    parser.add_argument(
        "--wall", type=float, default=60.0, help="seconds after which a run counts as endless"
    )
    parser.add_argument("--table", type=Path, help="write all outcomes to this Markdown file")
    a = parser.parse_args()
    started = time.perf_counter()
    torch.set_num_threads(1)  # the mutants run in forked processes
    for seed in range(a.seeds):
        if reason := trial(ptx(), seed):
            raise SystemExit(f"the kernel itself fails with seed {seed}: {reason}")

    def show(o: Outcome) -> None:
        if not o.caught:
            print(f"survived: line {o.mutant.line}, {o.mutant.change}: {o.mutant.old}", flush=True)

    result = score(mutants(ptx(), ENTRY), trial, range(a.seeds), a.wall, show)
    seconds = time.perf_counter() - started
    print(f"{result.caught} of {len(result.outcomes)} mutants caught in {seconds:.0f} s")
    if a.table:
        a.table.write_text(result.table() + "\n")


if __name__ == "__main__":
    main()
