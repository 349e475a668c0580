"""The prefill kernels on the emulator, against the fp64 product and, with one-hot rows, bit for bit.

Checkers are on; a finding fails the test. The kernels also run on a GPU through the same calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import swordfish as sf
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.prefill.config import ARCHITECTURES, PrefillConfig
from swordfish.prefill.report import VARIANTS, name
from swordfish.prefill.run import launch_prefill
from swordfish.runtime.cute import keep_workers
from tests.backends import quantised
from tests.prefill_cases import (
    activations,
    assert_close,
    check_code,
    check_count,
    config_of,
    run,
    weight_for,
)


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """One compiler process for the module."""
    with keep_workers():
        yield


SEEDS = range(int(os.environ.get("SWORDFISH_SEEDS", "5")))


def products(config: PrefillConfig) -> list[tuple[int, int, int, int]]:
    """``(M, N, K, pairs)``: all tails, N an odd multiple of 64 and of 128, K % 128 = 64, K long enough for
    every ring to wrap twice, and several tiles for one CTA."""
    ring = max(config.input_stages, config.operand_stages // 2)
    return [
        (1, 192, 192, 2),
        (63, 384, 256 * ring + 64, 2),
        (64, 192, 320, 1),
        (129, 128, 320, 2),
        (300, 320, 192, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("config", VARIANTS, ids=name)
def test_every_variant(config: PrefillConfig) -> None:
    """Every kernel compiles for every architecture as it should, agrees with the fp64 product under every
    schedule with the same bits, and returns the weight for one-hot rows."""
    artifacts = [check_code(config, arch) for arch in ARCHITECTURES]
    for artifact in artifacts:
        check_count(config, artifact)
    assert min(artifact.metadata.build_seconds for artifact in artifacts) < 4
    for m, n, k, pairs in products(config):
        w = weight_for(config, k, n)
        x = activations(m, w)
        results = [run(x, w, config, seed, pairs) for seed in SEEDS]
        assert_close(results[0], x, w)
        assert all(torch.equal(results[0], other) for other in results[1:])
    w = weight_for(config, 320, 192, bias=False)
    rows = torch.eye(320, dtype=w.dtype)[7::3]
    assert torch.equal(run(rows, w, config), sf.dequantize(w)[7::3])


def test_the_same_bits_on_every_architecture() -> None:
    w = quantised(576, 200, bias=True)
    x = activations(130, w)
    results = [run(x, w, config_of(w, tokens=128, slices=2), arch=arch) for arch in ARCHITECTURES]
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize(
    "scheme",
    [
        {"group_size": 256},
        {"group_size": -1, "zeros": "offset"},
        {"bits": 8, "group_size": 384, "zeros": "integer", "dtype": torch.float16},
    ],
    ids=str,
)
def test_groups_of_several_stages(scheme: dict[str, object]) -> None:
    """They share the kernel of group size 128, which is told how many stages a group spans."""
    w = quantised(832, 192, **scheme)  # type: ignore[arg-type]
    config = config_of(w, tokens=64)
    assert config.flat()["group_size"] == 128
    rows = torch.eye(832, dtype=w.dtype)[5::9]
    assert torch.equal(run(rows, w, config), sf.dequantize(w)[5::9])


def test_scales_of_every_size_are_exact() -> None:
    """Zero, tiny, and far above 2**-5, where the plain subnormal idiom overflows; negative ones too."""
    sizes = torch.tensor([0.0, 1e-27, -(2.0**-5), 0.75, -300.0, 65280.0, 1e7, -1e-10])
    codes = torch.randint(0, 16, (128, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    w = sf.pack(codes, sizes.repeat(8)[None], bits=4, group_size=128, dtype=torch.bfloat16)
    y = run(torch.eye(128, dtype=w.dtype), w, config_of(w, tokens=64))
    assert torch.equal(y, sf.dequantize(w)) and (y[:, ::8] == 0).all()


def test_bias_and_act_order() -> None:
    """The gather that permutes x is a launch of its own, before the kernel."""
    w = quantised(320, 192, group_size=64, act_order=True, bias=True)
    x = activations(100, w)
    assert_close(run(x, w, config_of(w, tokens=64)), x, w)


@pytest.mark.parametrize("group_size", [128, -1])
def test_split_over_k_is_added_in_order(group_size: int) -> None:
    """Slices of unequal length, the last one short; the reduction scales, adds the bias and rounds once."""
    w = quantised(1344, 200, group_size=group_size, bias=True)
    x = activations(70, w)
    results = [
        run(x, w, config_of(w, tokens=64, slices=slices), seed) for seed, slices in ((0, 4), (1, 4), (2, 2))
    ]
    for y in results:
        assert_close(y, x, w)
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("slices", [1, 2])
def test_operands_of_any_strides(slices: int) -> None:
    """What bulk copies cannot read or write goes through a copy: offsets, transposes, odd rows."""
    w = quantised(324, 72)
    config = config_of(w, tokens=32, slices=slices)
    x, expected = activations(40, w), None
    outs = [
        torch.empty(40, 72),
        torch.empty(72, 40).T,
        torch.empty(40, 80)[:, 3:75],
        torch.empty(40, 80)[:, :72],
    ]
    views = [x, x.T.contiguous().T, torch.cat([x, x], 1)[:, :324], x.clone()]
    for view, out in zip(views, outs, strict=True):
        out = (
            out.to(w.dtype)
            if out.is_contiguous()
            else torch.empty_strided(out.shape, out.stride(), dtype=w.dtype)
        )
        with sf.emulate("sm_100a") as emulation:
            launch_prefill(config, view, w, None, out, pairs=1)
        for report in emulation.reports:
            report.raise_on_findings()
        expected = out.clone() if expected is None else expected
        assert torch.equal(out, expected)
    assert_close(expected, x, w)


def test_one_row_that_is_expanded() -> None:
    w = quantised(192, 64)
    x = torch.ones(1, dtype=w.dtype).expand(1, 192)
    assert_close(run(x, w, config_of(w, tokens=32)), x, w)


def test_no_rows_and_wrong_operands() -> None:
    w = quantised(128, 64)
    config = config_of(w, tokens=32)
    x, y = torch.zeros(4, 128, dtype=w.dtype), torch.zeros(4, 64, dtype=w.dtype)
    with sf.emulate("sm_100a") as emulation:
        launch_prefill(config, x[:0], w, None, y[:0])
        assert not emulation.reports, "nothing is launched"
    for bad, kind, message in [
        ((x.half(), w, None, y), ArgumentTypeError, "x.dtype=torch.float16"),
        ((x[:, :64], w, None, y), ArgumentError, r"x.shape=\(4, 64\)"),
        ((x.to("meta"), w, None, y), ArgumentError, "x.device=meta"),
        ((x, w, y[0, :8], y), ArgumentError, r"bias.shape=\(8,\)"),
        ((x, w, None, y[:3]), ArgumentError, r"out.shape=\(3, 64\)"),
        ((x, quantised(128, 64, group_size=64), None, y), ArgumentError, r"config\.scheme"),
        ((x, quantised(128, 60), None, y[:, :60]), ArgumentError, "n=60"),
    ]:
        with pytest.raises(kind, match=message), sf.emulate("sm_100a"):
            launch_prefill(config, *bad)
