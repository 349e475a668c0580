"""Rotation, graph sizes, interleaving and statistics of the timing harness, on a simulated clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from bench.harness import (
    Contender,
    Timing,
    clone_state,
    launches_per_graph,
    measure,
    rotation_count,
    state_bytes,
)
from bench.session import rounds_for
from bench.shapes import SHAPES, Problem
from tests.bench_simulation import SimulatedBackend

L2 = 60 << 20


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda s: s.name)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rotation_is_past_the_l2_for_every_shape(shape, bits):
    size = shape.k * shape.n * bits // 8
    count = rotation_count(size, L2)
    assert count * size >= 192 << 20
    assert count * size >= 6 * L2
    assert count >= 2
    if size * 30 <= 1 << 30:
        assert count >= 30
    assert count * size < 4 << 30


def test_a_graph_holds_whole_rotations_and_lasts_about_two_milliseconds():
    assert launches_per_graph(30, 5.0) == 420
    assert launches_per_graph(30, 0.1) == 540  # capped at 512, rounded up to whole rotations
    assert launches_per_graph(2, 1e6) == 2
    for buffers in (2, 7, 30):
        for estimate in (3.0, 17.0, 400.0, 20000.0):
            launches = launches_per_graph(buffers, estimate)
            assert launches % buffers == 0
            assert launches * estimate >= min(2000.0, 512 * estimate)


def test_long_graphs_are_replayed_less_often():
    assert rounds_for(2000.0) == 20
    assert rounds_for(10.0) == 20
    assert rounds_for(4000.0) == 10
    assert rounds_for(1e6) == 7
    assert rounds_for(1e6, limit=3) == 3


def test_measure_divides_by_units_and_keeps_contenders_apart():
    backend = SimulatedBackend()
    contenders = []
    for name, cost, launches in (("a", 5.0, 40), ("b", 8.0, 10), ("c", 2.5, 4)):

        def call(cost=cost):
            backend.spend(cost)
            return torch.empty(0)

        graph, _ = backend.capture([call], launches)
        contenders.append(Contender(name, graph, launches))
    times = measure(contenders, backend, rounds=6, warm_up_us=0)
    assert {name: t.median_us for name, t in times.items()} == pytest.approx({"a": 5.0, "b": 8.0, "c": 2.5})
    assert all(t.replays == 6 for t in times.values())


def test_measure_interleaves_and_rotates_who_goes_first():
    backend = SimulatedBackend()
    graphs = [([lambda: None], i) for i in range(3)]
    contenders = [Contender(name, graph, 1) for name, graph in zip("abc", graphs, strict=True)]
    measure(contenders, backend, rounds=3, warm_up_us=0)
    order = [repeats for _, repeats in backend.replayed]
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2, 1, 2, 0]


def test_a_drift_of_the_machine_touches_all_contenders_alike():
    backend = SimulatedBackend()

    def call():
        backend.spend(10 + backend.now / 1000)
        return torch.empty(0)

    contenders = [Contender(name, backend.capture([call], 1)[0], 1) for name in "ab"]
    times = measure(contenders, backend, rounds=100, warm_up_us=0)
    assert times["a"].median_us == pytest.approx(times["b"].median_us, rel=2e-3)
    assert times["a"].p90_us > 1.1 * times["a"].p10_us


def test_clocks_are_sampled_once_a_round_and_not_in_the_warm_up():
    backend = SimulatedBackend()
    samples = []
    contender = Contender("a", ([lambda: backend.spend(1)], 1), 1)
    measure([contender], backend, rounds=4, warm_up_us=2.5, sample=lambda: samples.append(backend.now))
    assert samples == [4.0, 5.0, 6.0, 7.0]  # three rounds of 1 us first


def test_measure_refuses_equal_names():
    contender = Contender("a", ([], 1), 1)
    with pytest.raises(ValueError, match="distinct names"):
        measure([contender, contender], SimulatedBackend())


def test_timing_statistics():
    timing = Timing.from_samples([5.0, 1.0, 3.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    assert (timing.median_us, timing.min_us, timing.p10_us, timing.p90_us, timing.replays) == (
        6.0,
        1.0,
        2.0,
        10.0,
        11,
    )


@dataclass(frozen=True)
class _Packed:
    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    problem: Problem


def test_clones_have_their_own_memory_and_keep_pitch_and_offset():
    base = torch.arange(64 * 5, dtype=torch.float32).view(5, 64)
    packed = _Packed(torch.arange(12, dtype=torch.int32), base[1:, 3:50], None, Problem(SHAPES["8b.o"]))
    copy = clone_state({"w": [packed], "n": 3})["w"][0]
    assert type(copy) is _Packed and copy.problem == packed.problem and copy.zeros is None
    assert copy.scales.stride() == (64, 1) and copy.scales.storage_offset() == 67
    torch.testing.assert_close(copy.scales, packed.scales, rtol=0, atol=0)
    assert copy.scales.untyped_storage().data_ptr() != packed.scales.untyped_storage().data_ptr()
    assert copy.words.data_ptr() != packed.words.data_ptr()


def test_state_bytes_counts_each_storage_once():
    base = torch.zeros(100, dtype=torch.int32)
    assert (
        state_bytes({"a": base, "b": base[10:20], "c": [torch.zeros(3, dtype=torch.int16)], "d": "x"}) == 406
    )
    with pytest.raises(TypeError, match="expected tensors"):
        state_bytes({"x": 1})
