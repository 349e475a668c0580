"""``swordfish tune``: configurations timed on this GPU, and the faster ones kept for dispatch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from swordfish.cli.weights import Weight
from swordfish.errors import ArgumentError, UnsupportedDeviceError
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.tune.measure import NOT_REACHED, Outcome, measure, problem_of
from swordfish.tune.table import ROWS, Table, row_bucket, table_path
from swordfish.tune.trial import CudaTrials

_SHOWN_FAILURES = 3

__all__ = ["parse_rows", "report_rows", "tune_command"]


def parse_rows(text: str) -> list[int]:
    """Row buckets of the rows in ``"1,8,20"`` (here 1, 8 and 24), each once."""
    buckets: dict[int, None] = {}
    for part in text.split(","):
        rows = row_bucket(int(part)) if part.strip().isdigit() and int(part) > 0 else None
        if rows is None:
            raise ArgumentError("--m", repr(text), f"rows from 1 to {ROWS[-1]}, separated by commas")
        buckets[rows] = None
    return list(buckets)


def tune_command(
    weights: Sequence[Weight],
    rows: Sequence[int],
    device: str,
    *,
    seconds: float | None = None,
    most: int = 64,
    workers: int | None = None,
    top: int = 0,
    report: Path | None = None,
    dry_run: bool = False,
) -> int:
    """Tune the weights for the row buckets and print what was found; 1 if something could not be measured.

    The table and the report are written after each weight. Raises ``ArgumentError`` without any weight or on
    a device that is no CUDA device, ``UnsupportedDeviceError`` without a GPU that has kernels.
    """
    if not weights:
        raise ArgumentError("--checkpoint / --shape", "nothing", "at least one checkpoint or shape")
    index, props = _device(device)
    console = Console(highlight=False, soft_wrap=True)
    named = {(w.scheme, w.k, w.n): w for w in weights}
    shapes = [[problem_of(s, m, k, n, props, most=most) for m in rows] for s, k, n in named]
    kernels = sum(len(problem.configs) for shape in shapes for problem in shape)
    console.print(f"{kernels} configurations of {len(shapes)} weights on {props.name}, {props.arch}")
    failed, faster, told = 0, 0, []
    outcomes_of = measure(shapes, props, CudaTrials(index), seconds=seconds, workers=workers)
    for weight, outcomes in zip(named.values(), outcomes_of, strict=True):
        console.print(f"\n{weight.size}, {weight}")
        for outcome in outcomes:
            _show(console, outcome, top)
            failed += bool(outcome.failed)
            faster += outcome.entry() is not None
            told.append(report_rows(outcome))
        if not dry_run:
            _store(outcomes, props)
        if report is not None:
            report.write_text(json.dumps(told, indent=1), encoding="utf-8")
    console.print(f"\n{faster} of {len(told)} problems have a faster configuration than the default")
    if not dry_run:
        console.print(f"kept in {table_path(props)}")
    return 1 if failed else 0


def _device(text: str) -> tuple[int, DeviceProps]:
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("cpu")
    if device.type != "cuda":
        raise ArgumentError("--device", repr(text), "a CUDA device, such as cuda:0")
    if not torch.cuda.is_available():
        raise UnsupportedDeviceError("tuning measures on a GPU, and torch sees none; see `swordfish doctor`")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ArgumentError("--device", repr(text), f"one of the {torch.cuda.device_count()} GPUs")
    return index, device_props(index)


def _store(outcomes: Sequence[Outcome], props: DeviceProps) -> None:
    """Winners into the table; where the default has just won, an older entry goes. The file is read again,
    because another process may have written since."""
    table = Table.load(props)
    for outcome in outcomes:
        if outcome.default_us is not None:
            problem = outcome.problem
            table.put(problem.scheme, problem.m, problem.k, problem.n, outcome.entry())
    table.save()


def _show(console: Console, outcome: Outcome, top: int) -> None:
    """Print what came of a problem and its ``top`` configurations."""
    configs, rows, default = outcome.problem.configs, outcome.rows, outcome.default_us
    times = sorted((row.us, c) for c, row in rows.items() if row.us is not None)
    head = f"  M={outcome.problem.m:<4d}"
    if default is None:
        console.print(f"{head}no result: {outcome.failed or NOT_REACHED}", markup=False)
    else:
        entry = outcome.entry()
        found = (
            "stays"
            if entry is None
            else f"{default / entry.us:.3f} x the time of the best, {entry.us:.2f} us"
        )
        console.print(f"{head}{len(times)} timed of {outcome.problem.of}; default {default:.2f} us, {found}")
        console.print(f"      default      {configs[0]}")
        if entry is not None:
            console.print(f"      best         {entry.config}")
    for us, c in times[:top]:
        console.print(f"      {us:9.2f} us  {configs[c]}, error {rows[c].rounding:.3f} of one rounding")
    for c, row in [(c, row) for c, row in rows.items() if row.error and row.ran][:_SHOWN_FAILURES]:
        console.print(f"      failed       {configs[c]}: {row.error}", markup=False)


def report_rows(outcome: Outcome) -> dict[str, Any]:
    """Everything about a problem as JSON values; configurations as text."""
    problem = outcome.problem
    names = [str(config) for config in problem.configs]
    entry = outcome.entry()
    return {
        "scheme": asdict(problem.scheme),
        "m": problem.m,
        "k": problem.k,
        "n": problem.n,
        "of": problem.of,
        "default": names[0],
        "winner": None if entry is None else str(entry.config),
        "rows": [{"config": names[c], **asdict(row)} for c, row in sorted(outcome.rows.items())],
        "final": [{"config": names[c], "us": us} for c, us in (outcome.final or {}).items()],
        "error": outcome.error,
    }
