"""The measured tables of docs/decode.md, made from result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.decode_page import chain_text, figures_table, main, rewrite, schemes_table
from tests.test_bench_report import _document, _row

BASE = [
    _row("floor", "a", 1, 4.0),
    _row("swordfish", "a", 1, 5.0, check={"rounding": 1.0}),
    _row("humming", "a", 1, 10.0),
    _row("humming-pdl", "a", 1, 8.0),
    _row("floor", "b", 1, 100.0),
    _row("swordfish", "b", 1, 100.0, check={"rounding": 1.02}),
    _row("humming", "b", 1, 90.0),
    _row("floor", "a", 16, 4.0),
    _row("swordfish", "a", 16, 6.0),
    _row("humming", "a", 16, None, error="out of memory"),
]
ACT_ORDER = [
    _row("floor", "a", 1, 5.0, act_order=True),
    _row("swordfish", "a", 1, 7.5, act_order=True),
    _row("floor", "b", 1, 100.0, act_order=True),
    _row("swordfish", "b", 1, 120.0, act_order=True),
]
CHAIN = [_row("swordfish", "llama", 1, 34.5, kind="chain"), _row("humming", "llama", 1, 56.4, kind="chain")]


def test_figures() -> None:
    lines = figures_table([_document(BASE)]).splitlines()
    assert lines[0] == "| M |  | a | b | geometric mean |"
    assert lines[2:5] == [
        "|  | floor | 4.00 | 100 |  |",
        "| 1 | swordfish | 5.00 | 100 | 1.12 of the floor |",
        "|  | humming | 10.00 | 90.0 | 1.34 times ours |",
    ]
    assert lines[5] == "| 16 | swordfish | 6.00 |  |  |"
    # Against humming-pdl where it is faster than humming.
    assert "| geometric mean | 1.20 |" in lines and "| least | 0.90 |" in lines
    assert lines[-1].startswith("The error of every row is at most 1.02 times")


def test_schemes_are_relative_to_the_base() -> None:
    lines = schemes_table([_document(BASE), _document(ACT_ORDER)]).splitlines()
    assert lines[0] == "|  | M = 1 |"
    assert lines[2] == "| act-order | 1.20 |"  # 1.5 over 1.25, and 1.2


def test_chain() -> None:
    assert chain_text([_document(CHAIN)]) == "M = 1: 34.5 us a layer, humming 56.4."


def test_the_page_is_rewritten_between_its_marks(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("before\n<!-- chain -->\nold\n<!-- end chain -->\nafter\n")
    results.write_text(json.dumps(_document(CHAIN)))
    for _ in range(2):
        assert main([str(page), str(results)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- chain -->\nM = 1: 34.5") and text.endswith(
        "<!-- end chain -->\nafter\n"
    )
    assert "old" not in text
    with pytest.raises(ValueError, match="block=figures"):
        rewrite(text, {"figures": "x"})


def test_the_page_has_all_blocks() -> None:
    page = Path(__file__).parents[1] / "docs" / "decode.md"
    rewrite(page.read_text(encoding="utf-8"), {"figures": "", "chain": "", "schemes": ""})
