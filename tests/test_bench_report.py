"""Ratios, means, tables and plots made from result files."""

from __future__ import annotations

import json

import pytest

from bench.report import cases, geomean, load, main, markdown, plot


def _row(impl, shape, m, us, **more):
    return {
        "kind": "linear",
        "shape": shape,
        "m": m,
        "bits": 4,
        "group_size": 128,
        "dtype": "bfloat16",
        "zeros": False,
        "act_order": False,
        "impl": impl,
        "us": us,
        "clocks": {"sm_mhz": 1900.0},
        **more,
    }


def _document(rows):
    return {
        "schema": "swordfish-bench/1",
        "device": {"name": "Simulated", "driver": "1.2"},
        "versions": {"torch": "2.11"},
        "method": {"timing": "median of replays"},
        "rows": rows,
    }


ROWS = [
    _row("floor", "a", 1, 4.0),
    _row("pdl-floor", "a", 1, 3.0),
    _row("swordfish", "a", 1, 5.0),
    _row("humming", "a", 1, 10.0),
    _row("humming-pdl", "a", 1, 8.0),
    _row("torch", "a", 1, 20.0),
    _row("floor", "b", 1, 10.0),
    _row("swordfish", "b", 1, 10.0),
    _row("humming", "b", 1, 9.0),
    _row("torch", "b", 1, None, error="wrong result: column 7"),
]


def test_geometric_mean():
    assert geomean([1.0, 4.0, None]) == pytest.approx(2.0)
    assert geomean([None]) is None


def test_ratios_are_over_the_floor_and_the_best_peer_of_the_same_case():
    a, b = cases([_document(ROWS)])
    assert a.over_floor("swordfish") == 1.25 and b.over_floor("swordfish") == 1.0
    assert a.best_peer("swordfish") == "humming-pdl" and a.speedup("swordfish") == pytest.approx(1.6)
    assert a.speedup("swordfish", "torch") == pytest.approx(4.0)
    assert b.best_peer("swordfish") == "humming" and b.speedup("swordfish") == pytest.approx(0.9)
    assert a.best_peer("humming-pdl") == "swordfish"
    assert b.problems == {"torch": "wrong result: column 7"} and b.over_floor("torch") is None


def test_runs_are_not_mixed_and_a_repeated_run_replaces_the_first():
    first = _document([_row("floor", "a", 1, 4.0), _row("swordfish", "a", 1, 8.0)])
    other = _document([_row("floor", "a", 1, 5.0), _row("torch", "a", 1, 15.0)])
    again = _document([_row("floor", "a", 1, 4.0), _row("swordfish", "a", 1, 6.0)])
    found = cases([first, other, again])
    assert [(c.over_floor("swordfish"), c.over_floor("torch")) for c in found] == [(1.5, None), (None, 3.0)]


def test_markdown_has_cells_means_and_failures():
    text = markdown(
        [_document(ROWS)], peers={"linear": [{"shape": "a", "m": 1, "impl": "marlin", "us": 9.3}]}
    )
    assert "| a | 4.00 | 3.00 | 5.00 (1.25) | 10.00 (2.50) | 8.00 (2.00) | 20.00 (5.00) | 9.3 |" in text
    assert "| b | 10.00 |  | 10.00 (1.00) | 9.00 (0.90) |  | - |  |" in text
    assert "| geometric mean | 1.000 | 0.750 | 1.118 | 1.500 | 2.000 | 5.000 |  |" in text
    # M, shapes, over the floor, worst, faster than the best peer, least, than humming, humming-pdl, torch
    assert "| 1 | 2 | 1.118 | 1.250 | 1.200 | 0.900 | 1.342 | 1.600 | 4.000 |" in text
    assert "- torch, b, M = 1, int4 g128 bfloat16: wrong result: column 7" in text
    assert "SM clock 1900 to 1900 MHz" in text and "torch 2.11" in text


def test_schemes_and_chains_get_sections_of_their_own():
    rows = [
        *ROWS,
        _row("swordfish", "a", 1, 7.0, zeros=True, group_size=-1),
        _row("floor", "q+o", 1, 30.0, kind="chain"),
    ]
    text = markdown([_document(rows)])
    assert "### int4 channelwise bfloat16 zeros, M = 1" in text
    assert text.index("## Single launches") < text.index("## Dependent chain, per layer")


def test_command_writes_tables_and_a_figure(tmp_path, capsys):
    source = tmp_path / "x.json"
    source.write_text(
        json.dumps(_document([*ROWS, _row("floor", "a", 8, 4.0), _row("swordfish", "a", 8, 6.0)]))
    )
    assert main([str(source), "--markdown", str(tmp_path / "t.md"), "--plot", str(tmp_path / "t.svg")]) == 0
    assert "| a |" in (tmp_path / "t.md").read_text()
    assert (tmp_path / "t.svg").read_text().count("<svg") == 1
    assert main([str(source)]) == 0
    assert "geometric mean" in capsys.readouterr().out
    with pytest.raises(ValueError, match="scheme='int8"):
        plot(load([source]), tmp_path / "u.svg", scheme="int8 g128 float16")


def test_rates(tmp_path):
    rows = [_row("floor", "a", 8, 4.0, k=1000, n=500), _row("swordfish", "a", 8, 2.0, k=1000, n=500)]
    (case,) = cases([_document(rows)])
    assert case.tflops("swordfish") == pytest.approx(4.0) and case.tflops("floor") is None
    plot([_document(rows)], tmp_path / "r.svg", metric="tflops")
    assert "TFLOP/s" in (tmp_path / "r.svg").read_text()


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "y.json"
    other.write_text("[]")
    with pytest.raises(ValueError, match=r"expected results of bench\.run"):
        load([other])
    with pytest.raises(SystemExit):
        main([str(other)])
