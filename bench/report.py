"""Tables and plots from result files: ``python -m bench.report a.json b.json --markdown t.md --plot t.svg``.

Every ratio is taken within one run: a time over the floor, or over another library, that was measured
interleaved with it. ``--peers`` adds published figures as a separate column, which enters no ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Case", "cases", "geomean", "load", "main", "markdown", "plot", "summary"]

FLOORS = ("floor", "pdl-floor")
SCHEME = ("bits", "group_size", "dtype", "zeros", "act_order")
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """All times of one problem in one run: microseconds by implementation."""

    kind: str
    shape: str
    m: int
    scheme: str
    times: dict[str, float]
    problems: dict[str, str]
    flops: float = 0.0
    configs: dict[str, str] = field(default_factory=dict)

    def over_floor(self, impl: str) -> float | None:
        """Time of ``impl`` over the plain floor."""
        return _ratio(self.times.get(impl), self.times.get("floor"))

    def tflops(self, impl: str) -> float | None:
        """TFLOP/s of a single launch: 2 M N K over the time. A floor computes nothing."""
        us = self.times.get(impl)
        return self.flops / us / 1e6 if us and impl not in FLOORS else None

    def over_torch(self, impl: str) -> float | None:
        """Time of ``impl`` over that of cuBLAS with the 16-bit weight."""
        return _ratio(self.times.get(impl), self.times.get("torch"))

    def best_peer(self, subject: str) -> str | None:
        """The fastest implementation that is neither the subject, nor a variant of it, nor a floor."""
        peers = {
            impl: us
            for impl, us in self.times.items()
            if impl not in FLOORS and impl.split("-")[0] != subject.split("-")[0]
        }
        return min(peers, key=lambda impl: peers[impl]) if peers else None

    def speedup(self, subject: str, peer: str | None = None) -> float | None:
        """How many times faster the subject is than ``peer``, by default the best one."""
        peer = peer or self.best_peer(subject)
        return _ratio(self.times.get(peer) if peer else None, self.times.get(subject))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def geomean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of what is there; ``None`` of nothing."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def load(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Result documents. Raises ``ValueError`` on a file that is not one."""
    documents = []
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("schema") != "swordfish-bench/1":
            raise ValueError(f"file={path} is not allowed: expected results of bench.run")
        documents.append(document)
    return documents


def scheme_name(row: Row) -> str:
    """``int4 g128 bfloat16``, with ``zeros`` and ``act-order`` where they apply."""
    group = "channelwise" if row["group_size"] == -1 else f"g{row['group_size']}"
    extras = [name for key, name in (("zeros", "zeros"), ("act_order", "act-order")) if row.get(key)]
    return " ".join([f"int{row['bits']}", group, row["dtype"], *extras])


def cases(documents: Sequence[dict[str, Any]]) -> list[Case]:
    """One case per run and problem, in the order of the files. Where several runs timed a problem with the
    same implementations, the last one counts."""
    found: dict[tuple[Any, ...], Case] = {}
    for document in documents:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in document["rows"]:
            key = (row["kind"], row["shape"], row["m"], *(row[name] for name in SCHEME))
            groups.setdefault(key, []).append(row)
        for key, rows in groups.items():
            times = {row["impl"]: float(row["us"]) for row in rows if row["us"] is not None}
            reasons = {row["impl"]: row.get("error") or row.get("skipped") or "" for row in rows}
            problems = {impl: reason for impl, reason in reasons.items() if reason}
            first = rows[0]
            flops = 2.0 * first["m"] * first.get("k", 0) * first.get("n", 0)
            configs = {row["impl"]: str(row.get("config", "")) for row in rows}
            case = Case(
                first["kind"],
                first["shape"],
                first["m"],
                scheme_name(first),
                times,
                problems,
                flops,
                configs,
            )
            found[(*key, frozenset(reasons))] = case
    return list(found.values())


def _implementations(selected: Sequence[Case]) -> list[str]:
    names = dict.fromkeys(impl for case in selected for impl in (*case.times, *case.problems))
    return [*(f for f in FLOORS if f in names), *(name for name in names if name not in FLOORS)]


def _cell(case: Case, impl: str) -> str:
    us = case.times.get(impl)
    if us is None:
        return "-" if impl in case.problems else ""
    over = case.over_floor(impl)
    return f"{us:.2f}" if impl in FLOORS or over is None else f"{us:.2f} ({over:.2f})"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def summary(selected: Sequence[Case], subject: str) -> list[str]:
    """A table per scheme: for each M, geometric means and extremes over the shapes, for one
    implementation."""
    lines: list[str] = []
    peers = [i for i in _implementations(selected) if i not in FLOORS and i.split("-")[0] != subject]
    for scheme in dict.fromkeys(case.scheme for case in selected):
        rows = []
        for m in sorted({case.m for case in selected if case.scheme == scheme}):
            group = [c for c in selected if c.scheme == scheme and c.m == m and subject in c.times]
            over = [c.over_floor(subject) for c in group]
            faster = [c.speedup(subject) for c in group]
            known = [value for value in over if value is not None]
            gains = [value for value in faster if value is not None]
            rows.append(
                [
                    str(m),
                    str(len(group)),
                    _number(geomean(over)),
                    _number(max(known, default=None)),
                    _number(geomean(faster)),
                    _number(min(gains, default=None)),
                    *(_number(geomean(c.speedup(subject, peer) for c in group)) for peer in peers),
                ]
            )
        header = ["M", "shapes", "over the floor", "worst", "faster than the best peer", "least"]
        lines += ["", f"{subject}, {scheme}: geometric means over the shapes", ""]
        lines += _table([*header, *(f"than {peer}" for peer in peers)], rows)
    return lines


def markdown(
    documents: Sequence[dict[str, Any]], subject: str = "swordfish", peers: dict[str, Any] | None = None
) -> str:
    """The report as text: where it was measured, a table per scheme and M, summaries, and what failed."""
    lines: list[str] = []
    for document in documents:
        device, versions = document["device"], document["versions"]
        clocks = [r["clocks"]["sm_mhz"] for r in document["rows"] if r.get("clocks", {}).get("sm_mhz")]
        span = f", SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz while timing" if clocks else ""
        lines.append(
            f"{device['name']}, driver {device.get('driver', '?')}{span}; {document['method']['timing']}."
        )
        lines.append("; ".join(f"{name} {version}" for name, version in versions.items()) + ".")
    everything = cases(documents)
    published = _published(peers)
    for kind, title in (("linear", "Single launches"), ("chain", "Dependent chain, per layer")):
        selected = [case for case in everything if case.kind == kind]
        if not selected:
            continue
        lines += ["", f"## {title}", "", "Microseconds, in brackets over the plain floor."]
        for scheme, m in dict.fromkeys((case.scheme, case.m) for case in selected):
            group = [case for case in selected if (case.scheme, case.m) == (scheme, m)]
            names = _implementations(group)
            extra = sorted({i for c in group for i in published.get((c.shape, m), {})})
            rows = [
                [c.shape, *(_cell(c, i) for i in names)]
                + [
                    f"{published[c.shape, m][i]:.1f}" if i in published.get((c.shape, m), {}) else ""
                    for i in extra
                ]
                for c in group
            ]
            means = ["geometric mean", *(_number(geomean(c.over_floor(i) for c in group)) for i in names)]
            lines += ["", f"### {scheme}, M = {m}", ""]
            lines += _table(
                ["shape", *names, *(f"{i} (file)" for i in extra)], [*rows, means + [""] * len(extra)]
            )
        lines += summary(selected, subject)
    failures = [(c, i, p) for c in everything for i, p in c.problems.items()]
    if failures:
        lines += ["", "## Not timed", ""]
        lines += [f"- {impl}, {c.shape}, M = {c.m}, {c.scheme}: {reason}" for c, impl, reason in failures]
    return "\n".join(lines) + "\n"


def _published(peers: dict[str, Any] | None) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in (peers or {}).get("linear", []):
        found.setdefault((row["shape"], row["m"]), {})[row["impl"]] = float(row["us"])
    return found


METRICS: dict[str, tuple[str, Callable[[Case, str], float | None]]] = {
    "floor": ("time over the cold-read floor", Case.over_floor),
    "tflops": ("TFLOP/s", Case.tflops),
    "torch": ("time over cuBLAS", Case.over_torch),
}
"""What can be plotted: the axis title and the value of one implementation."""


def plot(
    documents: Sequence[dict[str, Any]], path: Path, scheme: str | None = None, metric: str = "floor"
) -> None:
    """A figure against M, one panel per shape, in the format of ``path``'s suffix: time over the plain floor,
    or with ``metric="tflops"`` the rate, or with ``metric="torch"`` time over cuBLAS.

    Raises ``ValueError`` if no single launch was timed with ``scheme`` (default: the first one found).
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    single = [case for case in cases(documents) if case.kind == "linear"]
    scheme = scheme or next((case.scheme for case in single), "")
    selected = [case for case in single if case.scheme == scheme]
    if not selected:
        raise ValueError(f"scheme={scheme!r} is not allowed: expected one that was timed")
    shapes = list(dict.fromkeys(case.shape for case in selected))
    title, value = METRICS[metric]
    names = [name for name in _implementations(selected) if name != metric]
    columns = min(4, len(shapes))
    rows = math.ceil(len(shapes) / columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(4 * columns, 3.2 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis, shape in zip(axes.flat, shapes, strict=False):
        group = sorted((case for case in selected if case.shape == shape), key=lambda case: case.m)
        for position, name in enumerate(names):
            points = [(case.m, y) for case in group if (y := value(case, name)) is not None]
            if points:
                style = {"color": f"C{position}", "zorder": 3 - position / 100}  # the first one on top
                axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=name, **style)
        if metric in ("floor", "torch"):
            axis.axhline(1.0, color="black", lw=0.8, ls=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(title=shape, xlabel="M")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(shapes) :]:
        axis.set_visible(False)
    axes[0][0].set_ylabel(title)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1)
    figure.suptitle(f"{documents[0]['device']['name']}, {scheme}")
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report, or write it where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--subject", default="swordfish", help="whose summary to make")
    parser.add_argument("--peers", type=Path, help="JSON with a list 'linear' of {shape, m, impl, us}")
    parser.add_argument("--markdown", type=Path, help="write the tables here instead of printing them")
    parser.add_argument("--plot", type=Path, help="write a figure: .svg, .png or .pdf")
    parser.add_argument("--metric", choices=tuple(METRICS), default="floor", help="what the figure shows")
    options = parser.parse_args(argv)
    try:
        documents = load(options.files)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    peers = json.loads(options.peers.read_text(encoding="utf-8")) if options.peers else None
    text = markdown(documents, options.subject, peers)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    if options.plot:
        plot(documents, options.plot, metric=options.metric)
    return 0


if __name__ == "__main__":
    sys.exit(main())
