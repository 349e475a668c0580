"""Mutation score of a kernel: every single-instruction mutant under several schedules.

Run from the repository's root; takes minutes to an hour. The survivors in ``docs/emulator.md`` (``gemm``, the
2-CTA test GEMM) and ``docs/prefill.md`` (the others: operand A's home and the tokens of the tile, or a
grouped product) come from here.

    python tools/mutation_score.py [--kernel gemm|tmem-32|shared-32|tmem-192|w13|w2] [--seeds 8]
        [--table FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from swordfish.emulator.mutate import Outcome, mutants, score
from swordfish.experts.grouped import ExpertGrouped
from tests.emulator import gemm_2cta
from tests.moe_layers import GroupedProblem, layer, routing
from tests.prefill_cases import BASE, Problem, schedule

Trial = Callable[[str, int], str]


def gemm(_: str) -> tuple[str, str, Trial]:
    """PTX, entry and trial of the test GEMM."""
    return gemm_2cta.ptx(), gemm_2cta.ENTRY, gemm_2cta.trial


def prefill(kernel: str) -> tuple[str, str, Trial]:
    """The same of a prefill kernel: long tiles of odd tails, and by turns many short ones."""
    home, tokens = kernel.split("-")
    config = replace(BASE, home=home, tokens=int(tokens))
    m = 2 * config.tokens + config.tokens // 2 + 3
    problems = [Problem(config, m, 448, 1216, 1), Problem(config, m, 1216, 192, 1)]
    return alternate(problems)


def grouped(kernel: str) -> tuple[str, str, Trial]:
    """The same of a product of experts: an expert without rows, long tiles and by turns many short ones."""
    config = ExpertGrouped(64, 2, 1)
    made = [layer(4, hidden, inner, bias=True) for hidden, inner in ((1216, 192), (192, 1216))]
    weights, ids = routing(75, 2, 3, skew=1.0)
    ids[ids == 2] = 3
    problems = [GroupedProblem(config, getattr(one, kernel), weights, ids) for one in made]
    return alternate(problems)


def alternate(problems: Sequence[Problem | GroupedProblem]) -> tuple[str, str, Trial]:
    """PTX, entry and trial of problems that share a kernel, by turns."""
    ptx, entry = problems[0].artifact.ptx, problems[0].artifact.metadata.entry
    results = []
    for problem in problems:
        problem.run(ptx).raise_on_findings()
        results.append(problem.out.clone())

    def trial(text: str, seed: int) -> str:
        at = seed % len(problems)
        report = problems[at].run(text, **schedule(seed // 2), tcgen05_fences=True, cluster_start=True)
        if report.findings:
            return ", ".join(sorted(report.kinds()))
        return "" if torch.equal(problems[at].out, results[at]) else "wrong result"

    return ptx, entry, trial


KERNELS = {"gemm": gemm} | dict.fromkeys(("tmem-32", "shared-32", "tmem-192"), prefill)
KERNELS |= dict.fromkeys(("w13", "w2"), grouped)


def main() -> None:
    """Print survivors as they show, then the score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default="gemm", choices=list(KERNELS))
    parser.add_argument("--seeds", type=int, default=8, help="schedules per mutant")
    parser.add_argument(
        "--wall", type=float, default=60.0, help="seconds after which a run counts as endless"
    )
    parser.add_argument("--table", type=Path, help="write all outcomes to this Markdown file")
    a = parser.parse_args()
    started = time.perf_counter()
    torch.set_num_threads(1)  # the mutants run in forked processes
    ptx, entry, trial = KERNELS[a.kernel](a.kernel)
    for seed in range(a.seeds):
        if reason := trial(ptx, seed):
            raise SystemExit(f"the kernel itself fails with seed {seed}: {reason}")

    def show(o: Outcome) -> None:
        if not o.caught:
            print(f"survived: line {o.mutant.line}, {o.mutant.change}: {o.mutant.old}", flush=True)

    candidates = mutants(ptx, entry)
    print(f"{len(candidates)} mutants", flush=True)
    result = score(candidates, trial, range(a.seeds), a.wall, show)
    seconds = time.perf_counter() - started
    print(f"{result.caught} of {len(result.outcomes)} mutants caught in {seconds:.0f} s")
    if a.table:
        a.table.write_text(result.table() + "\n")


if __name__ == "__main__":
    main()
