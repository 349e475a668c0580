"""What a sweep over paths says, as Markdown: ``python -m bench.path_report sweep.json --plot sweep.svg``.

``--rows 512,1024`` prints for these M what the paths reach of cuBLAS, each by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.report import Case, geomean
from bench.shapes import parse_ints

__all__ = ["NEAR", "main", "markdown", "rates", "regret", "table", "verdict"]

SUBJECT = "swordfish"
NEAR = 1.05
"""A choice within this ratio of the fastest path is as good as it: times are good to 1 or 2 %."""


def regret(case: Case) -> float | None:
    """Time of the chosen path over that of the fastest path; ``None`` where no path was timed by itself."""
    paths = [us for name, us in case.times.items() if name.startswith(f"{SUBJECT}-")]
    chosen = case.times.get(SUBJECT)
    return chosen / min(paths) if paths and chosen else None


def path_of(case: Case) -> str:
    """The path that was chosen: the first word of its plan."""
    return case.configs.get(SUBJECT, "").split(" ")[0].rstrip(":")


def verdict(cases: Sequence[Case]) -> list[str]:
    """How good the choices were: a sentence for all points, one for those where dense was chosen."""
    known = [(value, case) for case in cases if (value := regret(case)) is not None]
    if not known:
        return []
    near = sum(value <= NEAR for value, _ in known)
    worst, where = max(known, key=lambda pair: pair[0])
    lines = [
        f"{near} of {len(known)} points ({near / len(known):.1%}) within {NEAR - 1:.0%} of the fastest path; "
        f"worst {worst:.2f} times as long, {where.shape} at M = {where.m}."
    ]
    dense = [case for case in cases if path_of(case) == "dense"]
    rates = [(rate, case) for case in dense if (rate := case.speedup(SUBJECT, "torch")) is not None]
    if rates:
        least, where = min(rates, key=lambda pair: pair[0])
        lines.append(
            f"Dense was chosen at {len(rates)} points, {least:.2f} or more of cuBLAS "
            f"({where.shape} at M = {where.m})."
        )
    return lines


def table(cases: Sequence[Case]) -> list[str]:
    """A row for each power of two: paths chosen, speed over cuBLAS and Humming, the worst regret."""
    lines = [
        "| M | paths | times as fast as cuBLAS | least | as Humming | least | worst of a path |",
        "|---|---|---|---|---|---|---|",
    ]
    for m in sorted({case.m for case in cases if case.m & (case.m - 1) == 0}):
        group = [case for case in cases if case.m == m and SUBJECT in case.times]
        chosen = Counter(path_of(case) for case in group)
        cells = [", ".join(f"{path} {count}" for path, count in chosen.most_common())]
        for peer in ("torch", "humming"):
            rates = [rate for case in group if (rate := case.speedup(SUBJECT, peer)) is not None]
            mean = geomean(rates)
            cells += [f"{mean:.2f}", f"{min(rates):.2f}"] if mean is not None else ["", ""]
        worst = max((value for case in group if (value := regret(case)) is not None), default=None)
        cells.append("" if worst is None else f"{worst:.2f}")
        lines.append(f"| {m} | {' | '.join(cells)} |")
    return lines


def rates(cases: Sequence[Case], ms: Sequence[int]) -> str:
    """Rates of the wide kernel and of dense over that of cuBLAS at these M: geometric mean over the shapes,
    and the least in parentheses."""
    lines = ["| M | " + " | ".join(f"{m:,}" for m in ms) + " |", "|---" * (1 + len(ms)) + "|"]
    for scheme in dict.fromkeys(case.scheme for case in cases):
        for path in ("wide", "dense"):
            cells = [f"{scheme}, {path}"]
            for m in ms:
                group = [case for case in cases if case.scheme == scheme and case.m == m]
                found = [v for c in group if (v := c.speedup(f"{SUBJECT}-{path}", "torch")) is not None]
                mean = geomean(found)
                cells.append("" if mean is None else f"{mean:.2f} ({min(found):.2f})")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown(cases: Sequence[Case]) -> str:
    """Verdict and table for each scheme."""
    lines: list[str] = []
    for scheme in dict.fromkeys(case.scheme for case in cases):
        group = [case for case in cases if case.scheme == scheme]
        shapes = len({case.shape for case in group})
        lines += [f"{scheme}, {shapes} shapes. {' '.join(verdict(group))}", "", *table(group), ""]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; with ``--plot`` also write a figure of the first scheme, time over cuBLAS."""
    parser = argparse.ArgumentParser(prog="python -m bench.path_report", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, help=".svg, .png or .pdf")
    parser.add_argument("--rows", type=parse_ints, help="M of a table of the paths by themselves")
    options = parser.parse_args(argv)
    try:
        documents = report.load(options.files)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    cases = report.cases(documents)
    print(rates(cases, options.rows) if options.rows else markdown(cases))
    if options.plot:
        report.plot(documents, options.plot, metric="torch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
