"""The accumulation of mma.sync and wgmma: one model gives every recorded result, its neighbours do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.silicon.accumulation import Model, accumulate
from tests.silicon.case import Array
from tests.silicon.fragments import unpack_c16, unpack_c32
from tests.silicon.matmul_data import KINDS, operands
from tests.silicon.recording import Recording

RECORDING = Recording.load(Path(__file__).parents[1] / "silicon" / "recorded" / "h200.xz")
MMA = [
    (16, "f16", "f32"),
    (16, "bf16", "f32"),
    (16, "f16", "f16"),
    (8, "f16", "f32"),
    (8, "f16", "f16"),
    (8, "bf16", "f32"),
]
WGMMA = [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")]


def _results(name: str, acc: str) -> Array:
    raw = RECORDING.outputs[name][0]
    return unpack_c32(raw, 8) if acc == "f32" else unpack_c16(raw, 8)


def samples() -> Iterator[tuple[str, str, str, tuple[Array, Array, Array], Array]]:
    """Name, operand type, accumulator type, operands, recorded result."""
    for k, fmt, acc in MMA:
        for kind in KINDS:
            name = f"mma/m16n8k{k}.{acc}.{fmt}.{kind}"
            yield name, fmt, acc, operands(kind, fmt, acc, 8, 16, 8, k, name=name), _results(name, acc)
    for fmt, acc in WGMMA:
        for kind in KINDS:
            name = f"m64n8k16.{acc}.{fmt}.{kind}"
            batch = 8 if kind in ("powers", "order") else 2
            args = operands(kind, fmt, acc, batch, 64, 8, 16, name=name)
            yield f"wgmma/{name}", fmt, acc, args, _results(f"wgmma/{name}", acc)


SAMPLES = list(samples())


def first_mismatch(model: Model) -> str | None:
    """The first sample that the model does not reproduce, last ones (the sharpest kinds) first."""
    for name, fmt, acc, args, recorded in reversed(SAMPLES):
        if (accumulate(*args, fmt, acc, model) != recorded).any():
            return name
    return None


def test_model_reproduces_every_result() -> None:
    assert sum(recorded.size for *_, recorded in SAMPLES) > 100_000
    assert first_mismatch(Model()) is None


@pytest.mark.parametrize(
    "other",
    [
        Model(fraction=24),
        Model(fraction=26),
        Model(block=8),
        Model(block=4),
        Model(toward_zero=False),
        Model(zeros_count=True),
        Model(nearest_f32=True),
        Model(twice=True),
        Model(least=-132),
        Model(least=-134),
    ],
    ids=str,
)
def test_neighbouring_models_are_refuted(other: Model) -> None:
    assert first_mismatch(other) is not None


def test_results_do_not_depend_on_the_place_in_k() -> None:
    """One block: permuting the products leaves the model's result as it is."""
    _, fmt, acc, (a, b, c), recorded = SAMPLES[1]
    order = np.random.default_rng(0).permutation(a.shape[-1])
    assert np.array_equal(accumulate(a[:, :, order], b[:, order], c, fmt, acc, Model()), recorded)
