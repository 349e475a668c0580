"""The measured tables of ``docs/decode.md``: ``python -m bench.decode_page docs/decode.md decode.json ...``.

Takes the results of any number of runs of ``bench.run``: int4 with groups of 128 for the main table, other
schemes for the comparison with it, chains. Text between ``<!-- NAME -->`` and ``<!-- end NAME -->`` is
replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report import Case, cases, geomean, load

__all__ = ["chain_text", "figures_table", "main", "rewrite", "schemes_table"]

BASE = "int4 g128 bfloat16"
SUBJECT = "swordfish"
PEER = "humming"
NAMES = {
    "int8 g128 bfloat16": "int8 g128",
    "int4 g128 bfloat16 zeros": "integer zero points",
    "int4 g128 float16": "fp16",
    "int4 g64 bfloat16": "group 64",
    "int4 g32 bfloat16": "group 32",
    "int4 channelwise bfloat16": "channelwise",
    "int4 g128 bfloat16 act-order": "act-order",
}


def _us(value: float | None) -> str:
    """Three digits or two decimals, whichever is less."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 20 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _mean(group: Sequence[Case], value: Callable[[Case], float | None]) -> str:
    mean = geomean(map(value, group))
    return "" if mean is None else f"{mean:.2f}"


def figures_table(documents: Sequence[dict[str, Any]]) -> str:
    """Microseconds of a launch by M and shape, with what they are relative to the floor or to the peer; then
    geometric means over the best of all peers."""
    single = [c for c in cases(documents) if c.kind == "linear" and c.scheme == BASE and SUBJECT in c.times]
    shapes = list(dict.fromkeys(case.shape for case in single))
    rows: list[list[str]] = []
    best: list[list[str]] = []
    for m in sorted({case.m for case in single}):
        group = {case.shape: case for case in single if case.m == m}
        found = [group[shape] for shape in shapes if shape in group]

        def line(impl: str, title: str, note: str, by_shape: dict[str, Case] = group) -> list[str]:
            times = (by_shape[s].times.get(impl) if s in by_shape else None for s in shapes)
            return [title, impl, *map(_us, times), note]

        if not rows:
            rows.append(line("floor", "", ""))
        over_floor = f"{_mean(found, lambda c: c.over_floor(SUBJECT))} of the floor"
        rows.append(line(SUBJECT, str(m), over_floor if m <= 8 else ""))
        if any(PEER in case.times for case in found):
            rows.append(line(PEER, "", f"{_mean(found, lambda c: c.speedup(SUBJECT, PEER))} times ours"))
        gains = [gain for case in found if (gain := case.speedup(SUBJECT)) is not None]
        if gains:
            best.append([str(m), f"{geomean(gains):.2f}", f"{min(gains):.2f}"])
    lines = _table(["M", "", *shapes, "geometric mean"], rows)
    if best:
        lines += ["", "Against the best of all the others in the file, for each shape:", ""]
        means, least = [b[1] for b in best], [b[2] for b in best]
        table = [["geometric mean", *means], ["least", *least]]
        lines += _table(["M", *(b[0] for b in best)], table)
    errors = [
        row["check"]["rounding"]
        for document in documents
        for row in document["rows"]
        if row["impl"] == SUBJECT and row["kind"] == "linear" and row.get("check")
    ]
    if errors:
        lines += ["", f"The error of every row is at most {max(errors):.2f} times that of one rounding."]
    return "\n".join(lines)


def schemes_table(documents: Sequence[dict[str, Any]]) -> str:
    """Time over the scheme's own floor, relative to the base scheme: geometric means over the shapes."""
    single = [c for c in cases(documents) if c.kind == "linear" and c.over_floor(SUBJECT) is not None]
    base = {(case.m, case.shape): case.over_floor(SUBJECT) for case in single if case.scheme == BASE}
    relative: dict[str, dict[int, list[float]]] = {}
    for case in single:
        own, reference = case.over_floor(SUBJECT), base.get((case.m, case.shape))
        if case.scheme != BASE and own and reference:
            relative.setdefault(case.scheme, {}).setdefault(case.m, []).append(own / reference)
    ms = sorted({m for by_m in relative.values() for m in by_m})
    order = [*(s for s in NAMES if s in relative), *(s for s in relative if s not in NAMES)]
    rows = [
        [NAMES.get(s, s), *(f"{geomean(relative[s][m]):.2f}" if m in relative[s] else "" for m in ms)]
        for s in order
    ]
    return "\n".join(_table(["", *(f"M = {m}" for m in ms)], rows))


def chain_text(documents: Sequence[dict[str, Any]]) -> str:
    """One line for each chain that was timed."""
    lines = []
    for case in cases(documents):
        if case.kind == "chain" and SUBJECT in case.times:
            others = [
                f"{name} {_us(us)}"
                for name, us in case.times.items()
                if name not in (SUBJECT, "floor", "pdl-floor")
            ]
            floor = (
                f"; the plain floors of the four add up to {_us(case.times['floor'])}"
                if "floor" in case.times
                else ""
            )
            told = f", {', '.join(others)}" if others else ""
            lines.append(f"M = {case.m}: {_us(case.times[SUBJECT])} us a layer{told}{floor}.")
    return "\n".join(lines)


def rewrite(text: str, blocks: dict[str, str]) -> str:
    """The page with the text of each named block replaced.

    Raises:
        ValueError: the page has no such block.
    """
    for name, content in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"block={name} is not allowed: expected {begin} and {end} in the page")
        text = f"{head}{begin}\n{content}\n{end}{tail}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the blocks for which the files hold results."""
    parser = argparse.ArgumentParser(prog="python -m bench.decode_page", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(argv)
    documents = load(options.files)
    found = cases(documents)
    blocks = {}
    if any(case.kind == "linear" and case.scheme == BASE for case in found):
        blocks["figures"] = figures_table(documents)
    if any(case.kind == "linear" and case.scheme != BASE for case in found):
        blocks["schemes"] = schemes_table(documents)
    if any(case.kind == "chain" for case in found):
        blocks["chain"] = chain_text(documents)
    options.page.write_text(rewrite(options.page.read_text(encoding="utf-8"), blocks), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
