"""A whole run on a simulated device: floors chosen, results checked before timing, failures kept as rows."""

from __future__ import annotations

import json

import pytest
import torch

from bench.adapters import ADAPTERS, make
from bench.chain import run_chain
from bench.floor import READERS
from bench.run import main, write
from bench.session import Session, summarize_clocks
from bench.shapes import Problem, Shape
from swordfish.runtime.compile import compile_source
from tests.bench_simulation import SimulatedAdapter, SimulatedBackend, SimulatedFloor

PROBLEM = Problem(Shape("t", 256, 384), group_size=64)
BEST = READERS[2].label


def _session(backend, adapters, costs=None):
    floor = SimulatedFloor(backend, {BEST: 2.0} if costs is None else costs)
    return Session(
        adapters,
        [floor],
        backend,
        l2_bytes=1 << 10,
        device="cpu",
        rounds=3,
        read_clocks=lambda: {"sm_mhz": 1980.0},
        log=lambda line: None,
    )


@pytest.fixture(autouse=True)
def small_rotation(monkeypatch):
    monkeypatch.setattr("bench.harness.WARM_UP_US", 0.0)
    monkeypatch.setattr("swordfish.tune.timing.ROTATION_BYTES", 1 << 20)
    monkeypatch.setattr("swordfish.tune.timing.SMALL_LAYER_COPIES", 3)
    monkeypatch.setattr("bench.harness.MAX_LAUNCHES", 8)


def test_a_run_times_what_is_right_and_explains_what_is_not():
    backend = SimulatedBackend()

    def spoil(out):
        out[:, 7] = 0

    def explode(out):
        raise RuntimeError("no such kernel")

    adapters = [
        SimulatedAdapter("good", backend, 4.0),
        SimulatedAdapter("wrong", backend, 1.0, spoil),
        SimulatedAdapter("raises", backend, 1.0, explode),
        SimulatedAdapter("small", backend, 3.0, limit=2),
    ]
    session = _session(backend, adapters)
    session.run(PROBLEM, [1, 5])
    rows = {(row["impl"], row["m"]): row for row in session.rows}
    assert len(rows) == 10
    good = rows["good", 5]
    assert good["us"] == pytest.approx(4.0) and good["check"]["ok"] and good["clocks"]["sm_mhz"] == 1980.0
    assert good["launches"] % good["buffers"] == 0 and good["packed_bytes"] == PROBLEM.packed_bytes
    assert rows["floor", 1]["us"] == pytest.approx(2.0) and rows["floor", 1]["config"] == BEST
    assert rows["wrong", 1]["us"] is None and "column 7" in rows["wrong", 1]["error"]
    assert rows["raises", 5]["us"] is None and "no such kernel" in rows["raises", 5]["error"]
    assert rows["small", 1]["us"] == pytest.approx(3.0)
    assert rows["small", 5]["skipped"] == "M above 2" and not rows["small", 5]["error"]


def test_an_error_that_only_the_graph_makes_is_caught():
    backend = SimulatedBackend()
    adapter = SimulatedAdapter("late", backend, 1.0)
    original = backend.replay

    def replay(graph):
        adapter.spoil = lambda out: out.mul_(1.5)
        original(graph)

    session = _session(backend, [adapter])
    session.tune_floors = lambda *a: None
    backend.replay = replay
    session.run(PROBLEM, [2])
    (row,) = [row for row in session.rows if row["impl"] == "late"]
    assert row["us"] is None and row["error"].startswith("wrong result")


def test_every_copy_of_the_weight_is_its_own():
    backend = SimulatedBackend()
    seen = set()

    class Recorder(SimulatedAdapter):
        def run(self, state, x, out):
            seen.add(state["dense"].data_ptr())
            return super().run(state, x, out)

    session = _session(backend, [Recorder("r", backend, 1.0)])
    session.run(PROBLEM, [1])
    (row,) = [row for row in session.rows if row["impl"] == "r"]
    assert len(seen) == row["buffers"] >= 3


def test_a_chain_is_timed_per_layer_and_each_gemm_checked():
    backend = SimulatedBackend()
    problems = [
        Problem(Shape(f"t{i}", k, n), group_size=64)
        for i, (k, n) in enumerate([(256, 384), (256, 512), (512, 256)])
    ]

    class Stale(SimulatedAdapter):
        """Reads its input before the kernel ahead has written it."""

        def run(self, state, x, out):
            return super().run(state, torch.roll(x, 1, dims=1) if x.shape[1] == 512 else x, out)

    session = _session(backend, [SimulatedAdapter("good", backend, 4.0), Stale("stale", backend, 1.0)])
    run_chain(session, problems, 2)
    rows = {row["impl"]: row for row in session.rows}
    assert rows["good"]["us"] == pytest.approx(12.0) and rows["good"]["kind"] == "chain"
    assert rows["floor"]["us"] == pytest.approx(6.0)
    assert rows["stale"]["us"] is None and rows["stale"]["error"].startswith("wrong result")
    assert rows["good"]["packed_bytes"] == sum(p.packed_bytes for p in problems)


def test_the_floor_is_the_fastest_reader_and_all_are_recorded():
    backend = SimulatedBackend()
    session = _session(backend, [], {reader.label: 10.0 + i for i, reader in enumerate(READERS)})
    session.run(PROBLEM, [1])
    assert session.rows[0]["us"] == pytest.approx(10.0)
    assert session.readers[0]["us"] == pytest.approx({r.label: 10.0 + i for i, r in enumerate(READERS)})


@pytest.mark.parametrize("programmatic", [False, True])
def test_every_reader_compiles_for_hopper_and_blackwell(programmatic):
    assert len({reader.label for reader in READERS}) == len(READERS)
    for reader in READERS:
        assert reader.chunk * reader.depth * reader.ctas_per_sm <= 224 << 10
        assert reader.threads * reader.ctas_per_sm <= 2048
    for reader in READERS[::3]:
        for arch in ("sm_90a", "sm_100a"):
            metadata = compile_source(reader.source(programmatic), arch).metadata
            assert metadata.spill_bytes == 0 and metadata.max_threads == reader.threads
            assert reader.launch_config(132, programmatic).grid == (132 * reader.ctas_per_sm, 1, 1)


def test_json_holds_rows_readers_and_method(tmp_path):
    backend = SimulatedBackend()
    session = _session(backend, [SimulatedAdapter("good", backend, 4.0)])
    session.run(PROBLEM, [1])
    path = tmp_path / "deep" / "x.json"
    write(path, session, {"name": "simulated"}, {"m": "1"})
    document = json.loads(path.read_text())
    assert document["schema"] == "swordfish-bench/1" and document["device"]["name"] == "simulated"
    assert [row["impl"] for row in document["rows"]] == ["floor", "good"]
    assert "torch" in document["versions"] and "median" in document["method"]["timing"]


def test_clock_summary():
    samples = [{"sm_mhz": 1980.0, "power_w": None}, {"sm_mhz": 1500.0, "power_w": 400.0}, {"sm_mhz": 1700.0}]
    expected = {"sm_mhz": 1700.0, "sm_mhz_min": 1500.0, "sm_mhz_max": 1980.0, "power_w": 400.0}
    assert summarize_clocks(samples) == expected
    assert summarize_clocks([]) == {}


def test_adapters_say_why_they_are_not_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for adapter in make(list(ADAPTERS)):
        assert adapter.available() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("humming", "marlin", "machete"):
        (adapter,) = make([name])
        assert "not importable" in adapter.available()
    with pytest.raises(ValueError, match="nope"):
        make(["nope"])


def test_the_dense_adapter_rounds_the_exact_weight_once():
    from bench.data import activations, check, random_weight, reference

    weight = random_weight(PROBLEM, "cpu")
    (adapter,) = make(["torch"])
    x = activations(3, PROBLEM, "cpu")
    out = torch.full((3, 384), float("nan"), dtype=torch.bfloat16)
    result = adapter.run(adapter.prepare(weight), x, out)
    assert result.data_ptr() == out.data_ptr() and check(out, reference(weight, x), "bfloat16").ok


def test_without_a_gpu_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--m", "1"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--m", "zero"])
