"""The sweep over paths: which points, which copies, and the verdict, on a simulated device."""

from __future__ import annotations

import pytest

from bench import sweep_paths
from bench.harness import estimate_us
from bench.session import Loaded, Session
from bench.shapes import Problem, Shape
from tests.bench_simulation import SimulatedAdapter, SimulatedBackend

PROBLEM = Problem(Shape("t", 256, 384), group_size=64)


def test_grid_has_so_many_points_an_octave():
    assert sweep_paths.grid(32) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert sweep_paths.grid(20, 4) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]


def test_points_lie_on_both_sides_of_every_change():
    plans = ["a"] * 8 + ["b"] * 28 + ["c"] * 100
    assert sweep_paths.boundaries(plans) == [9, 37]
    found = sweep_paths.points(plans)
    assert {8, 9, 36, 37, 128, 129} <= set(found) and found == sorted(set(found))
    assert set(sweep_paths.grid(136, 4)) <= set(found) and max(found) <= 136


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


def test_the_verdict_counts_choices_near_the_fastest_and_names_the_worst(session):
    sweep_paths.sweep(session, PROBLEM, [2, 4, 5])
    (line,) = sweep_paths.verdict(session.rows)
    assert line == (
        "int4 g64 bfloat16: 2 of 3 points (66.7%) within 5% of the fastest path; worst 1.50, t at M=2"
    )
    for row in session.rows:
        if row["impl"] == "swordfish" and row["m"] == 5:
            row["config"] = "dense: M >= 5"
    assert sweep_paths.verdict(session.rows)[1] == "  dense chosen 1 times, 2.00 of cuBLAS or more (t at M=5)"
