"""Tables of expert layers from a result file: ``python -m bench.moe_report moe.json --peers h200.json``.

Prints Markdown. Ratios are taken within the run; ``--peers`` adds published sums of gate_up and down as a
column of its own (JSON with a list ``moe`` of {model, m, impl, gate_up_us, down_us}).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "markdown"]

FEW = (1, 4, 16, 64)
OURS = "swordfish"


class Times:
    """Microseconds of one model and number of tokens, by implementation and what was timed."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = {(row["impl"], row["what"]): row for row in rows}

    @property
    def peers(self) -> list[str]:
        return list(dict.fromkeys(impl for impl, _ in self.rows if impl != OURS))

    def us(self, impl: str, what: str) -> float | None:
        """``sum`` is gate_up and down, each timed on its own."""
        if what == "sum":
            parts = [self.us(impl, part) for part in ("gate_up", "down")]
            return None if None in parts else sum(part for part in parts if part is not None)
        row = self.rows.get((impl, what))
        return None if row is None else row["us"]

    def speedup(self, what: str) -> float | None:
        """The best peer's time over ours."""
        ours = self.us(OURS, what)
        theirs = [us for peer in self.peers if (us := self.us(peer, what)) is not None]
        return min(theirs) / ours if ours and theirs else None


def _times(document: dict[str, Any]) -> dict[str, dict[int, Times]]:
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in document["rows"]:
        found.setdefault(row["model"], {}).setdefault(row["m"], []).append(row)
    return {model: {m: Times(rows) for m, rows in by_m.items()} for model, by_m in found.items()}


def markdown(document: dict[str, Any], published: Sequence[dict[str, Any]] = ()) -> str:
    """A table for each model and the geometric means."""
    times = _times(document)
    others = list(dict.fromkeys(row["impl"] for row in published))
    lines: list[str] = []
    for model, by_m in times.items():
        peers = next(iter(by_m.values())).peers
        header = [
            "tokens", "experts", "MB", "gate_up + down", "sum", "both", "TB/s", "layer", "workspace MB",
            *peers, "best peer over sum", *(f"{impl} (published)" for impl in others),
        ]  # fmt: skip
        lines += ["", f"**{model}**", "", _row(header), _row(["---"] * len(header))]
        for m, entry in by_m.items():
            row = entry.rows[OURS, "gate_up"]
            total, both = entry.us(OURS, "sum"), entry.us(OURS, "both")
            known = {(r["impl"]): r for r in published if r["model"] == model and r["m"] == m}
            lines.append(
                _row(
                    [
                        f"{m}",
                        f"{row['active']:.1f}",
                        f"{row['bytes'] / 1e6:.0f}",
                        f"{_us(entry.us(OURS, 'gate_up'))} + {_us(entry.us(OURS, 'down'))}",
                        _us(total),
                        _us(both),
                        "" if both is None else f"{row['bytes'] / both / 1e6:.2f}",
                        _us(entry.us(OURS, "layer")),
                        f"{row['workspace_bytes'] / 2**20:.1f}",
                        *(_us(entry.us(peer, "sum")) for peer in peers),
                        _ratio(entry.speedup("sum")),
                        *(
                            _us(known[impl]["gate_up_us"] + known[impl]["down_us"]) if impl in known else ""
                            for impl in others
                        ),
                    ]
                )
            )
    lines += ["", *_means(times)]
    return "\n".join(lines).strip() + "\n"


def _means(times: dict[str, dict[int, Times]]) -> list[str]:
    lines = []
    for what in ("sum", "both"):
        few = [
            ratio
            for by_m in times.values()
            for m, entry in by_m.items()
            if m in FEW and (ratio := entry.speedup(what)) is not None
        ]
        if few:
            mean = math.exp(sum(map(math.log, few)) / len(few))
            counts = ", ".join(map(str, FEW))
            lines.append(
                f"Best peer over ours, `{what}`, at {counts} tokens: geometric mean {mean:.2f}, "
                f"least {min(few):.2f}."
            )
    return lines


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.moe_report", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--peers", type=Path)
    options = parser.parse_args(argv)
    document = json.loads(options.result.read_text(encoding="utf-8"))
    published = json.loads(options.peers.read_text(encoding="utf-8"))["moe"] if options.peers else []
    print(markdown(document, published), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
