"""Tables of measurements in the documentation are those of the result files that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench import act_order, decode_page, dequantise, moe_paths, moe_report, path_report, report

ROOT = Path(__file__).resolve().parent.parent
RUN = "2026-12-01-h200"


def results(*names: str) -> list[dict[str, Any]]:
    """Result documents of the run by what follows its name."""
    paths = [ROOT / "bench" / "results" / f"{RUN}-{name}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def block(text: str, name: str) -> str:
    """What stands between two marks of a page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end(?: of)? {name} -->", text, re.DOTALL)
    assert found is not None, name
    return found[1]


def assert_tables_in(text: str, generated: str) -> None:
    lines = [line for line in generated.splitlines() if line.startswith("|")]
    assert len(lines) > 2 and [line for line in lines if line not in text] == []


def test_decode() -> None:
    schemes = sorted(
        path.stem.removeprefix(f"{RUN}-") for path in (ROOT / "bench/results").glob(f"{RUN}-schemes-*")
    )
    documents = results("decode", *schemes, "chain")
    made = {
        "figures": decode_page.figures_table(documents),
        "schemes": decode_page.schemes_table(documents),
        "chain": decode_page.chain_text(documents),
    }
    assert decode_page.rewrite(page("decode"), made) == page("decode")


def test_decode_in_the_readme() -> None:
    cases = [case for case in report.cases(results("decode")) if case.kind == "linear"]
    rows = sorted({case.m for case in cases})
    wanted = ["rows", *map(str, rows)]
    over, humming, best = [], [], []
    for m in rows:
        group = [case for case in cases if case.m == m]
        over.append(report.geomean(case.over_floor("swordfish") for case in group))
        humming.append(report.geomean(case.speedup("swordfish", "humming") for case in group))
        best.append(report.geomean(case.speedup("swordfish") for case in group))
    table = [line.strip("|").split("|") for line in (ROOT / "README.md").read_text().splitlines()]
    at = next(i for i, cells in enumerate(table) if [cell.strip() for cell in cells] == wanted)
    for values, cells in zip((over, humming, best), table[at + 2 : at + 5], strict=True):
        assert [cell.strip() for cell in cells[1:]] == [f"{value:.2f}" for value in values]


def test_paths() -> None:
    text = page("dispatch")
    int4, int8 = results("sweep", "sweep-70b.gate_up"), results("sweep-int8")
    assert block(text, "report") == path_report.markdown(report.cases(int4)).strip()
    found = block(text, "rates")
    ms = [int(cell.replace(",", "")) for cell in found.splitlines()[0].strip("| ").split(" | ")[1:]]
    assert found == path_report.rates(report.cases([*int4, *int8]), ms)


def test_dense() -> None:
    (document,) = results("dequantise")
    assert_tables_in(page("dense"), dequantise.markdown(document["rows"]))


def test_experts() -> None:
    (times,), (paths,) = results("moe"), results("moe-paths")
    assert_tables_in(page("moe"), moe_report.markdown(times))
    generated = moe_paths.table(paths["rows"])
    assert_tables_in(page("moe"), generated)
    assert generated.splitlines()[-1] in page("moe")


def test_act_order() -> None:
    (document,) = results("act-order")
    for row in document["rows"]:
        us = [row["us"][kind] for kind in act_order.KINDS]
        if " x " in row["name"]:
            line, text = f"| {row['name']} | {' | '.join(f'{v:.2f}' for v in us)} |", page("decode")
        else:
            line, text = f"| {row['m']} | {' | '.join(f'{v:.1f}' for v in us)} |", page("moe")
        assert line in text
