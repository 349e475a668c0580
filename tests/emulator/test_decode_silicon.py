"""The emulated decode kernels against results recorded on an H200: equal bits.

Each case runs the configuration that the H200 ran, so the order of every sum is the same, and rules may
change since; on Blackwell up to 4 rows, which the ring kernel serves. (On sm_100a, mma.sync is emulated with
Hopper's accumulation; nobody has recorded Blackwell's.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import swordfish as sf
from swordfish.decode import RingConfig
from tests.silicon.decode import CASES, Case, chosen, parse, run

RECORDED = Path(__file__).parents[1] / "silicon" / "recorded" / "decode_h200.npz"


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equal_to_the_h200(case: Case, recorded: dict[str, np.ndarray]) -> None:
    config = parse(str(recorded[f"config:{case.name}"]))
    with sf.emulate("sm_90a", seed=1):
        np.testing.assert_array_equal(run(case, config, "sm_90a"), recorded[case.name])


@pytest.mark.parametrize("case", [c for c in CASES if c.m <= 4], ids=lambda c: c.name)
def test_blackwell_code_gives_the_same_bits(case: Case, recorded: dict[str, np.ndarray]) -> None:
    config = parse(str(recorded[f"config:{case.name}"]))
    assert isinstance(config, RingConfig)
    with sf.emulate("sm_100a", seed=2):
        np.testing.assert_array_equal(run(case, config, "sm_100a"), recorded[case.name])


def test_most_cases_are_what_dispatch_runs(recorded: dict[str, np.ndarray]) -> None:
    """Otherwise it is time to record again."""
    with sf.emulate("sm_90a"):
        same = [str(chosen(case)) == str(recorded[f"config:{case.name}"]) for case in CASES]
    assert 4 * sum(same) >= 3 * len(same)
