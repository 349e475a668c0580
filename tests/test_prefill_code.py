"""Compiled prefill kernels on the emulator: what must fail, and how busy shared memory is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.model import step_cycles
from swordfish.runtime.cute import keep_workers
from tests.prefill_cases import BASE, Problem


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """One compiler process for the module."""
    with keep_workers():
        yield


def test_a_load_of_one_cta_hangs_or_corrupts() -> None:
    """The paired load is not optional. A load of one CTA signals its own barrier: the leader, told to
    expect the bytes of both, waits for ever; told to expect its own, it multiplies by what its peer has not
    yet fetched."""
    config = replace(BASE, tokens=32)
    problem = Problem(config, 40, 256, 512, 1)
    good = problem.artifact.ptx
    assert problem.run(good).ok
    right = problem.out.clone()
    single, changed = re.subn(r"(cp\.async\.bulk\.tensor\.2d\S*)\.cta_group::2", r"\1", good)
    assert changed == 2
    # A paired load clears the rank in the barrier's address, to signal the leader's; a plain one may not.
    single, changed = re.subn(r"and\.b32 (\s*%r\d+, %r\d+), -16777224;", r"mov.b32 \1;", single)
    assert changed == 1
    assert "deadlock" in problem.run(single).kinds()

    expected = 2 * 2 * config.token_step_bytes
    pattern = rf"(mov\.b32 \s*%r\d+, ){expected}(;\s*mbarrier\.arrive\.expect_tx)"
    halved, changed = re.subn(pattern, rf"\g<1>{expected // 2}\2", single)
    assert changed == 1
    assert any("race" in problem.run(halved, seed).kinds() for seed in range(3))
    delays = {"policy": "heavy", "warp_policy": "greedy", "checks": False}  # one schedule of six is unlucky
    corrupt = (
        not problem.run(halved, seed, **delays).kinds() and not torch.equal(problem.out, right)
        for seed in range(64)
    )
    assert any(corrupt), "it ends, and some schedule shows wrong rows"


@pytest.mark.parametrize("tokens", [128, 192, 256])
def test_shared_memory_is_faster_than_the_tensor_core(tokens: int) -> None:
    """Wavefronts of the Transform, counted, plus what TMA writes and the MMA reads at 128 bytes a clock,
    per step."""
    config = replace(BASE, tokens=tokens)
    counted, loaded = shared_traffic(config)
    assert counted + (loaded + config.token_step_bytes) / 128 < step_cycles(config).mma == 2 * tokens


@pytest.mark.parametrize("tokens", [128, 192, 256])
def test_wavefronts_of_the_shared_home(tokens: int) -> None:
    """Counted ones are fewer than the MMA's cycles in the article's home for operand A as well; there the
    operand that the MMA reads (64 x 128 numbers a step) makes shared memory the bound all the same."""
    config = replace(BASE, tokens=tokens, home="shared")
    counted, loaded = shared_traffic(config)
    mma = step_cycles(config).mma
    assert counted < mma == 2 * tokens < counted + (loaded + config.token_step_bytes + 64 * 128 * 2) / 128


def shared_traffic(config: PrefillConfig) -> tuple[float, float]:
    """Wavefronts of warps, and bytes that TMA writes, of a CTA and step of 64 k."""
    k = 3072
    problem = Problem(config, config.tokens, 256, k, 1)
    report = problem.run(problem.artifact.ptx)
    report.raise_on_findings()
    steps = 2 * (k // 64)  # of both CTAs
    assert report.tma_load_bytes == steps * (4096 + 128 + config.token_step_bytes)
    counted = sum(line.wavefronts for line in report.shared if line.executed > 8) / steps
    return counted, report.tma_load_bytes / steps
