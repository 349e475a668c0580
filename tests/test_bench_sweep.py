"""The sweep over paths: which points, which copies, and the verdict, on a simulated device."""

from __future__ import annotations

import json

import pytest

from bench import path_report, sweep_paths
from bench.harness import estimate_us
from bench.session import Loaded, Session
from bench.shapes import Problem, Shape
from tests.bench_simulation import SimulatedAdapter, SimulatedBackend

PROBLEM = Problem(Shape("t", 256, 384), group_size=64)


def test_grid_has_so_many_points_an_octave():
    assert sweep_paths.grid(32) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert sweep_paths.grid(20, 4) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]


def test_points_lie_on_both_sides_of_every_change():
    plans = [("decode", "a")] * 8 + [("decode", "b")] * 28 + [("dense", None)] * 100
    assert sweep_paths.boundaries(plans) == [9, 37]
    found = sweep_paths.points(plans)
    assert {8, 9, 36, 37, 128, 129} <= set(found) and found == sorted(set(found))
    assert set(sweep_paths.grid(136, 4)) <= set(found) and max(found) <= 136


def test_beyond_a_thousand_rows_only_paths_make_points():
    plans = [("decode", m // 100) for m in range(1500)] + [("dense", None)] * 10
    edges = sweep_paths.boundaries(plans)
    assert edges[-2:] == [1001, 1501] and len(edges) == 11


def test_long_launches_walk_over_fewer_copies_that_still_pass_the_l2():
    loaded = Loaded(SimulatedAdapter("a", SimulatedBackend(), 1.0), list(range(50)), size=10_000_000)
    few = sweep_paths.some_copies(loaded, flops=6e11, graph_us=1000.0, l2_bytes=60_000_000)
    assert estimate_us(loaded.size, 6e11) > 1000 and few.states == list(range(13))  # 130 MB
    many = sweep_paths.some_copies(loaded, flops=0.0, graph_us=1000.0, l2_bytes=60_000_000)
    assert many.states == loaded.states
    assert len(sweep_paths.some_copies(loaded, 6e11, 1000.0, 1_000_000).states) == 2


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr("bench.harness.WARM_UP_US", 0.0)
    monkeypatch.setattr("swordfish.tune.timing.ROTATION_BYTES", 1 << 20)
    monkeypatch.setattr("swordfish.tune.timing.SMALL_LAYER_COPIES", 3)
    backend = SimulatedBackend()
    adapters = [
        SimulatedAdapter("swordfish", backend, 3.0),
        SimulatedAdapter("swordfish-ring", backend, 2.0, limit=2),
        SimulatedAdapter("swordfish-wide", backend, 3.0),
        SimulatedAdapter("torch", backend, 6.0),
        SimulatedAdapter("humming", backend, 5.0),
    ]
    return Session(
        adapters, [], backend, l2_bytes=1 << 10, device="cpu", rounds=2, graph_us=20.0, log=lambda line: None
    )


def test_a_sweep_shares_the_weight_and_times_peers_on_the_grid(session, monkeypatch):
    prepared = []
    for adapter in session.adapters:
        original = adapter.prepare
        monkeypatch.setattr(
            adapter, "prepare", lambda w, a=adapter, o=original: prepared.append(a.name) or o(w)
        )
    sweep_paths.sweep(session, PROBLEM, [2, 4, 5])
    assert prepared == ["swordfish", "torch", "humming"]
    timed = {m: {row["impl"] for row in session.rows if row["m"] == m and row["us"]} for m in (2, 4, 5)}
    everything = {"swordfish", "swordfish-ring", "swordfish-wide", "torch", "humming"}
    assert timed == {
        2: everything,
        4: everything - {"swordfish-ring"},
        5: {"swordfish", "swordfish-wide", "torch"},
    }
    assert not [row for row in session.rows if row["error"]]


def test_the_report_counts_choices_near_the_fastest_and_names_the_worst(session, tmp_path, capsys):
    sweep_paths.sweep(session, PROBLEM, [2, 4, 5])
    for row in session.rows:
        if row["impl"] == "swordfish":
            row["config"] = "dense: M >= 5" if row["m"] == 5 else "decode wide(tokens=16): M < 5"
    session.rows = [sweep_paths.slim(row) for row in session.rows]
    document = {"schema": "swordfish-bench/1", "rows": session.rows, "device": {"name": "Simulated"}}
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(document))
    assert path_report.main([str(path), "--plot", str(tmp_path / "sweep.svg")]) == 0
    assert capsys.readouterr().out.splitlines()[:5] == [
        "int4 g64 bfloat16, 1 shapes. 2 of 3 points (66.7%) within 5% of the fastest path; "
        "worst 1.50 times as long, t at M = 2. "
        "Dense was chosen at 1 points, 2.00 or more of cuBLAS (t at M = 5).",
        "",
        "| M | paths | times as fast as cuBLAS | least | as Humming | least | worst of a path |",
        "|---|---|---|---|---|---|---|",
        "| 2 | decode 1 | 2.00 | 2.00 | 1.67 | 1.67 | 1.50 |",
    ]
    assert (tmp_path / "sweep.svg").read_text().startswith("<?xml")


def test_a_slim_row_keeps_what_the_reports_need(session):
    sweep_paths.sweep(session, PROBLEM, [2])
    session.rows[0]["us"], session.rows[0]["clocks"] = 12.34567, {"sm_mhz": 1900.0, "power_w": 500.0}
    row = sweep_paths.slim(session.rows[0])
    assert row["us"] == 12.346 and row["clocks"] == {"sm_mhz": 1900.0} and set(row["check"]) == {"rms"}
    assert {"shape", "m", "k", "n", "bits", "impl", "launches", "buffers"} <= row.keys()
    assert not {"error", "skipped", "p90_us"} & row.keys()
    failed = sweep_paths.slim({**session.rows[0], "us": None, "error": "wrong result"})
    assert failed["us"] is None and failed["error"] == "wrong result"
