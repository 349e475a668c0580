"""The tuner's measuring: candidates, the check, timing, children that hang or die, and who wins."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.decode import RingConfig, choose
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime import KNOWN_ARCHS, DeviceProps
from swordfish.scheme import Scheme
from swordfish.tune.candidates import candidates, check, from_plain, pick, to_plain
from swordfish.tune.measure import (
    FINAL,
    NOT_REACHED,
    Outcome,
    Patience,
    Problem,
    Row,
    compile_problem,
    measure,
    problem_of,
    run_child,
    watch,
)
from swordfish.tune.operands import check_product, exact_product, random_weight, weight_bytes
from swordfish.tune.timing import Graph, launches_per_graph, medians, rotation_count, warm_up
from swordfish.tune.trial import CudaTrial
from tests.tune_simulation import SimulatedBackend, SimulatedTrials, TinyConfig

HOPPER = DeviceProps.for_target("sm_90a")
INT4 = Scheme(4, 128, "bfloat16")
SCHEMES = [
    INT4,
    Scheme(8, 32, "float16", "integer"),
    Scheme(4, -1, "float16", "offset"),
    Scheme(4, 64, "bfloat16", act_order=True),
]

# --- candidates


@pytest.mark.parametrize("arch", KNOWN_ARCHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_candidates_fit_every_device(arch: str, scheme: Scheme) -> None:
    props = DeviceProps.for_target(arch)
    for m, k, n in ((2, 4096, 4096), (16, 4096, 28672), (48, 8192, 8192), (1, 200, 72)):
        found = candidates(scheme, m, k, n, props)
        assert len(set(found)) == len(found) > 10
        for config in found[:: max(1, len(found) // 10)]:
            check(config, scheme, m, k, n, props)
            launch = config.launch_config(scheme, m, k, n)
            assert launch.shared_bytes <= props.smem_per_cta
            per_sm = (launch.shared_bytes + props.smem_reserved) * config.min_ctas
            assert per_sm <= props.smem_per_sm
            assert from_plain(to_plain(config)) == config
            assert not (isinstance(config, WideConfig) and config.wgmma and arch != "sm_90a")
        kinds = {(RingConfig,) if m <= 8 else (RingConfig, WideConfig)}
        assert {tuple(sorted({type(c) for c in found}, key=lambda t: t.__name__))} == kinds
        gathers = {c.gather for c in found if isinstance(c, RingConfig)}
        assert gathers == ({False, True} if scheme.act_order and m <= 2 and k % 64 == 0 else {False})


def test_candidates_surround_what_the_rules_choose() -> None:
    for m, k, n in (
        (1, 4096, 28672),
        (8, 8192, 8192),
        (16, 28672, 8192),
        (64, 4096, 4096),
        (200, 4096, 4096),
    ):
        default = choose(m, n, k, INT4, HOPPER).config
        found = [c for c in candidates(INT4, m, k, n, HOPPER) if type(c) is type(default)]
        assert min(differences(c, default) for c in found) <= 2


def differences(a: Any, b: Any) -> int:
    return sum(x != y for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


def test_pick_takes_neighbours_and_others_and_never_the_default() -> None:
    default = choose(1, 4096, 4096, INT4, HOPPER).config
    found = candidates(INT4, 1, 4096, 4096, HOPPER)
    picked = pick(found, default, 40)
    assert len(set(picked)) == 40 and default not in picked and set(picked) <= set(found)

    nearest = sorted(differences(c, default) for c in found if c != default)[19]
    assert max(differences(c, default) for c in picked[::2]) <= nearest
    assert max(differences(c, default) for c in picked[1::2]) > nearest
    assert picked == pick(found, default, 40) != pick(found, default, 40, seed=1)
    assert set(pick(found, default, 10**6)) == set(found) - {default}


@pytest.mark.parametrize(
    "plain",
    [
        {"kernel": "unknown", "config": {}},
        {"config": {}},
        {"kernel": "ring", "config": None},
        {"kernel": "ring", "config": {"rows": 1}},
        {"kernel": "ring", "config": {**vars(RingConfig(1)), "more": 1}},
        {"kernel": "ring", "config": {**vars(RingConfig(1)), "rows": 1.0}},
        {"kernel": "ring", "config": {**vars(RingConfig(1)), "gather": 1}},
        {"kernel": "ring", "config": {**vars(RingConfig(1)), "rows": 17}},
        {"kernel": "wide", "config": vars(RingConfig(1))},
    ],
)
def test_configurations_that_cannot_be_read(plain: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        from_plain(plain)


# --- operands and the check


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_random_weights_are_as_large_as_promised(scheme: Scheme) -> None:
    w = random_weight(scheme, 2048, 200, torch.device("cpu"), 0)
    assert w.words.nbytes + w.scale_rows.nbytes * (1 if w.zero_rows is None else 2) == weight_bytes(
        scheme, 2048, 200
    )
    assert 0.8 < float(sf.dequantize(w).double().std()) * math.sqrt(2048) < 1.25
    other = random_weight(scheme, 2048, 200, torch.device("cpu"), 1)
    assert not torch.equal(w.words, other.words) and not torch.equal(w.scale_rows, other.scale_rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_check_finds_a_block_left_out_of_one_column(dtype: torch.dtype) -> None:
    scheme = Scheme(4, 128, str(dtype).removeprefix("torch."))
    w = random_weight(scheme, 4096, 96, torch.device("cpu"), 0)
    x = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = exact_product(x, w)
    assert check_product(exact.to(dtype), exact) == ("", 1.0)
    less = exact.clone()
    less[:, 70] -= exact_product(x[:, :64], w.shard("k", 0, 64))[:, 70]
    wrong, _ = check_product(less.to(dtype), exact)
    assert wrong.startswith("column 70 is wrong")
    noisy = exact + 0.4 * torch.finfo(dtype).eps * exact.square().mean().sqrt()
    assert "times that of one rounding" in check_product(noisy.to(dtype), exact)[0]
    assert check_product(torch.full_like(less, torch.nan).to(dtype), exact)[0].startswith("192 of 192")


def trial(scheme: Scheme, m: int, k: int, n: int, backend: Any) -> CudaTrial:
    """The real trial with weights on the CPU, where the emulator runs the kernels."""
    weights = [random_weight(scheme, k, n, torch.device("cpu"), seed) for seed in range(2)]
    return CudaTrial(Problem(scheme, m, k, n, ()), weights, backend, "sm_90a")


def test_the_wide_kernel_passes_the_check() -> None:
    made = trial(SCHEMES[3], 11, 256, 72, SimulatedBackend())
    with sf.emulate("sm_90a") as emulation:
        for config in (WideConfig(16, 1, 1, 128, 3), WideConfig(8, 1, 1, 128, 3, 2)):
            wrong, rounding = made.check(config)
            assert not wrong and 0.99 < rounding < 1.1
        assert len(emulation.reports) == 2 * 2 * 2  # twice each: rows permuted, then one launch


@pytest.mark.parametrize("scheme", [INT4, SCHEMES[3], SCHEMES[1]], ids=str)
def test_real_kernels_pass_the_check(scheme: Scheme) -> None:
    made = trial(scheme, 2, 256, 72, SimulatedBackend())
    gather = scheme.act_order
    with sf.emulate("sm_90a") as emulation:
        for config in (RingConfig(2, warps=2), RingConfig(2, 1, 1, 2, 2, 2, gather=gather)):
            wrong, rounding = made.check(config)
            assert not wrong and 0.99 < rounding < 1.1
        assert len(emulation.reports) == 4 + 2 * gather  # what permutes x first is a launch of its own


def test_a_wrong_or_unsteady_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial(INT4, 1, 128, 64, SimulatedBackend())
    results = [made.exact.to(torch.bfloat16) for _ in range(4)]
    results[1][0, 5] = torch.nextafter(results[1][0, 5], torch.tensor(9.0, dtype=torch.bfloat16))
    results[2][0, 6] += 1
    supply = iter(results)
    monkeypatch.setattr(CudaTrial, "_launch", lambda self, config, weight: self.out.copy_(next(supply)))
    assert made.check(None)[0] == "two runs gave different bits"
    assert made.check(None)[0].startswith("column 6 is wrong")


# --- timing


def test_copies_pass_the_l2_and_graphs_hold_whole_rotations() -> None:
    assert rotation_count(8 << 20, 60 << 20) == 45  # six times an L2 of 60 MiB
    assert rotation_count(1 << 30, 60 << 20) == 2
    assert rotation_count(30 << 20, 1 << 20) == 30  # a small layer
    assert launches_per_graph(45, 8 << 20) % 45 == 0
    assert launches_per_graph(3, 1) == 513 and launches_per_graph(2, 1 << 30) == 8


def test_time_walks_over_all_copies_and_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimulatedBackend()
    made = trial(INT4, 1, 128, 64, backend)
    made.launches = 4
    seen: list[tuple[int, int]] = []

    def launch(self: CudaTrial, config: Any, weight: sf.PackedWeight) -> None:
        seen.append((config, next(i for i, w in enumerate(self.weights) if w is weight)))
        backend.spend(config)

    monkeypatch.setattr(CudaTrial, "_launch", launch)
    assert made.time([7]) == [7]
    assert sum(c for c, _ in seen) >= 100_000  # warmed up first
    assert [i for _, i in seen[:4]] == [0, 1, 0, 1]
    seen.clear()
    assert made.time([5, 9]) == [5, 9]
    assert [c for c, _ in seen[::4]][:4] == [5, 9, 9, 5]  # and each round begins with another


def test_medians_forget_the_first_replay_and_outliers() -> None:
    backend = SimulatedBackend()
    costs = iter([500.0, 8.0, 90.0, 8.0, 8.0, 7.0])
    graph = Graph(backend, [lambda: backend.spend(next(costs))], 1)
    assert medians(backend, [graph], 5) == [8.0]
    steady = Graph(backend, [lambda: backend.spend(1000.0)], 2)
    warm_up(backend, steady)
    assert backend.now >= 100_000


# --- the loop in the child


def configs(*slots: int) -> tuple[RingConfig, ...]:
    return tuple(RingConfig(1, slots=s) for s in slots)


def outcomes(slots: tuple[int, ...], rows: tuple[int, ...] = (1,)) -> list[Outcome]:
    return [Outcome(Problem(INT4, m, 256, 64, configs(*slots))) for m in rows]


def run(made: list[Outcome], trials: SimulatedTrials, deadline: float = math.inf) -> list[Any]:
    sent: list[Any] = []
    run_child(made, trials, sent.append, deadline)
    return sent


def test_every_configuration_is_announced_checked_and_timed() -> None:
    made = outcomes((2, 3, 4, 5))
    sent = run(made, SimulatedTrials({2: 10.0, 3: 9.0, 4: "wrong", 5: "raises"}))
    assert [message[:3] for message in sent[:4]] == [
        ("start", 0, 0),
        ("row", 0, 0),
        ("start", 0, 1),
        ("row", 0, 1),
    ]
    assert made[0].rows == {
        0: Row(10.0, 1.0),
        1: Row(9.0, 1.0),
        2: Row(None, 9.0, "column 3 is wrong"),
        3: Row(error="RuntimeError: simulated: raises"),
    }
    assert sent[-3:] == [("start", 0, FINAL), ("final", 0, {0: 10.0, 1: 9.0}), ("end",)]


def test_a_child_stops_when_the_device_is_lost_and_the_next_goes_on_behind() -> None:
    made, trials = outcomes((2, 3, 4)), SimulatedTrials({2: 10.0, 3: "lost", 4: 9.0})
    assert run(made, trials)[-1][:3] == ("row", 0, 1)
    sent = run(made, trials)
    assert sent[0] == ("start", 0, 2) and sent[-1] == ("end",)


def test_out_of_time_the_default_is_still_measured_and_later_problems_are_not() -> None:
    made = outcomes((2, 3), (1, 2))
    sent = run(made, SimulatedTrials({2: 10.0, 3: 9.0}), deadline=time.monotonic() - 1)
    assert sent == [("error", 0, NOT_REACHED), ("error", 1, NOT_REACHED), ("end",)]
    made = outcomes((2, 3))
    trials = SimulatedTrials({2: 10.0, 3: 9.0})

    def slow(problem: Problem) -> Any:
        time.sleep(0.05)
        return trials(problem)

    sent = []
    run_child(made, slow, sent.append, time.monotonic() + 0.04)
    assert list(made[0].rows) == [0] and sent[-2] == ("final", 0, {})


def test_a_problem_that_cannot_be_set_up_does_not_stop_the_others() -> None:
    sent = run(outcomes((2,), (1, 2)), SimulatedTrials({2: 10.0}, setup=1))
    assert sent[0] == ("error", 0, "RuntimeError: simulated: out of memory")
    assert ("row", 1, 0, Row(10.0, 1.0)) in sent


# --- who wins


@pytest.mark.parametrize(
    ("first", "final", "winner"),
    [
        ({0: 10.0, 1: 9.0, 2: 8.0}, {0: 10.0, 1: 9.0, 2: 9.5}, 1),  # the second timing decides
        ({0: 10.0, 1: 9.0}, {0: 10.0, 1: 9.81}, None),  # not by 2 %
        ({0: 10.0, 1: 9.0}, {0: 10.0, 1: 9.79}, 1),
        ({0: 10.0, 1: 11.0}, {}, None),
        ({0: None, 1: 9.0}, {}, None),  # nothing to compare with
        ({0: 10.0, 1: 9.0}, None, None),  # it hung meanwhile
    ],
)
def test_winner(first: dict[int, Any], final: dict[int, float] | None, winner: int | None) -> None:
    made = outcomes((2, 3, 4))[0]
    made.rows = {c: Row(us, 1.0, "" if us else "wrong") for c, us in first.items()}
    made.final = final
    assert (made.finalists() == []) == (first[0] is None or first[1] > 10)
    entry = made.entry()
    assert (entry is None) == (winner is None)
    if entry is not None and winner is not None and final is not None:
        assert (entry.config, entry.us) == (made.problem.configs[winner], final[winner])
        assert (entry.default, entry.default_us) == (made.problem.configs[0], 10.0)


def test_finalists_are_the_default_and_the_three_best() -> None:
    made = outcomes((2, 3, 4, 5, 6, 7))[0]
    made.rows = {c: Row(us, 1.0) for c, us in enumerate((10.0, 9.0, 12.0, 7.0, 8.0, 9.5))}
    assert made.finalists() == [0, 3, 4, 1]


# --- children and builds


def test_hanging_and_dying_children_cost_one_configuration_each() -> None:
    made = outcomes((2, 3, 4, 5), (1, 2))
    trials = SimulatedTrials({2: 10.0, 3: "hangs", 4: "dies", 5: 9.0})
    made[1].rows = {1: Row(error="spills", ran=False), 2: Row(error="spills", ran=False)}
    watch(made, trials, math.inf, Patience(start=100.0, run=1.5))
    assert [made[0].rows[c] for c in (1, 2)] == [Row(error="hangs"), Row(error="died")]
    assert [made[p].rows[c].us for p in (0, 1) for c in (0, 3)] == [10.0, 9.0, 10.0, 9.0]
    assert made[0].final == made[1].final == {0: 10.0, 3: 9.0}


def dies_at_once(problem: Problem) -> Any:
    raise SystemExit(3)


def test_children_that_cannot_start_are_given_up() -> None:
    made = outcomes((2,), (1, 2))
    watch(made, dies_at_once, math.inf)
    assert [o.error for o in made] == ["the measuring process died"] * 2
    assert all(o.failed and o.default_us is None for o in made)


def test_measure_compiles_then_times(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not compile is left out, and a shape that time does not allow is not begun."""
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path))
    problem = Problem(INT4, 1, 128, 64, (TinyConfig(2), TinyConfig(3), TinyConfig(4, broken=True)), 3)
    trials = SimulatedTrials({2: 10.0, 3: 9.0, 4: 1.0})
    [[outcome]] = measure([[problem]], HOPPER, trials, workers=1)
    assert outcome.rows[2].error.startswith("CompileError") and not outcome.rows[2].ran
    assert outcome.final == {0: 10.0, 1: 9.0} and not outcome.failed
    assert len([p for p in (tmp_path / "entries").rglob("*") if p.is_file()]) == 2
    late = measure([[problem]], HOPPER, trials, seconds=-1.0, workers=1)
    assert next(late)[0].error == NOT_REACHED


def test_problem_of_starts_with_the_rule_whatever_is_tuned() -> None:
    problem = problem_of(INT4, 8, 4096, 4096, HOPPER, most=5)
    assert problem.configs[0] == choose(8, 4096, 4096, INT4, HOPPER).config
    assert len(set(problem.configs)) == 6 and problem.of > 100


def test_spills_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spilling:
        class metadata:
            spill_bytes = 16

    monkeypatch.setattr("swordfish.runtime.registry.get_artifact", lambda source, arch: Spilling)
    assert compile_problem((RingConfig(1), INT4, 256, 64, "sm_90a")) == "spills 16 bytes of registers"
