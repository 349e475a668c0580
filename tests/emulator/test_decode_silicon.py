"""The emulated decode kernels against results recorded on an H200: equal bits.

Each case runs the configuration that the H200 ran, so the order of every sum is the same; for Blackwell that
holds up to 4 rows, where both run the ring kernel. (On sm_100a, mma.sync is emulated with Hopper's
accumulation; nobody has recorded Blackwell's.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import swordfish as sf
from tests.silicon.decode import CASES, Case, operands, run

RECORDED = Path(__file__).parents[1] / "silicon" / "recorded" / "decode_h200.npz"


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equal_to_the_h200(case: Case, recorded: dict[str, np.ndarray]) -> None:
    with sf.emulate("sm_90a", seed=1):
        chosen = sf.explain(operands(case)[1], case.m).config
        assert str(chosen) == str(recorded[f"config:{case.name}"]), "record again: the rules have changed"
        np.testing.assert_array_equal(run(case, "cpu"), recorded[case.name])


@pytest.mark.parametrize("case", [c for c in CASES if c.m <= 4], ids=lambda c: c.name)
def test_blackwell_code_gives_the_same_bits(case: Case, recorded: dict[str, np.ndarray]) -> None:
    with sf.emulate("sm_90a"):
        hopper = sf.explain(operands(case)[1], case.m).config
    with sf.emulate("sm_100a", seed=2):
        blackwell = sf.explain(operands(case)[1], case.m).config
        if str(hopper) != str(blackwell):
            pytest.fail(f"another configuration on more SMs ({blackwell}): choose a case with the same one")
        np.testing.assert_array_equal(run(case, "cpu"), recorded[case.name])
