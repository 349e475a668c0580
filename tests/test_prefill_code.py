"""What the prefill kernels compile to: for every architecture, without spills, with the instructions they
should have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from swordfish.emulator import Report
from swordfish.emulator import run as emulate
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.count import count_transform, disassemble
from swordfish.prefill.launch import Grid, arguments, source
from swordfish.prefill.model import step_cycles
from swordfish.prefill.report import ARCHITECTURES, VARIANTS
from swordfish.runtime import DeviceProps, get_artifact
from swordfish.runtime.artifact import Artifact
from swordfish.runtime.cute import keep_workers
from swordfish.runtime.launch import _for_emulator
from swordfish.scheme import Scheme
from tests.backends import quantised

BASE = PrefillConfig(Scheme(4, 128, "bfloat16"))
REGISTERS = 65536


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """One compiler process for the module."""
    with keep_workers():
        yield


def check_code(config: PrefillConfig, arch: str) -> Artifact:
    """No spills, the shared memory declared, registers for the threads declared, and the right
    instructions."""
    artifact = get_artifact(source(config), arch)
    meta = artifact.metadata
    assert meta.arch == arch and meta.spill_bytes == 0 and meta.local_bytes == 0
    assert meta.dynamic_shared_bytes == config.shared_bytes and meta.max_threads == config.threads
    assert -(-meta.registers // 8) * 8 * config.threads <= REGISTERS
    group = f"cta_group::{config.ctas}"
    operand = r"\[%r\d+\], \[%r\d+\], %rd\d+" if config.home == "tmem" else r"\[%r\d+\], %rd\d+, %rd\d+"
    wanted = [
        rf"tcgen05\.mma\.{group}\.kind::f16\S* {operand}",
        rf"tcgen05\.commit\.{group}\.",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans",
        r"tcgen05\.st\.sync\.aligned\.16x128b\.x8"
        if config.home == "tmem"
        else r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared",
        r"st\.global" if config.partial else r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta",
    ]
    if config.ctas == 2:
        wanted.append(r"cp\.async\.bulk\.tensor\.2d\.[^\s]*cta_group::2")
    for pattern in wanted:
        assert re.search(pattern, artifact.ptx), pattern
    assert ("tcgen05.st" in artifact.ptx) == (config.home == "tmem")
    return artifact


def instructions_allowed(config: PrefillConfig) -> float:
    """SASS instructions of the Transform per weight: 1.7 for int4 bf16 with one scale per stage, 2.3
    otherwise."""
    s = config.scheme
    simple = s.dtype == "bfloat16" and s.zeros == "none" and s.group_size in (-1, 128)
    return 1.7 if simple else 2.3 if s.bits == 4 else 2.5


def check_count(config: PrefillConfig, artifact: Artifact) -> None:
    """PTX counts moves and address arithmetic that the assembler removes; SASS is what counts, where it can
    be had."""
    ptx = count_transform(config, artifact)
    assert ptx.weights % (128 * config.turn // config.transform_groups) == 0 < ptx.weights
    assert ptx.per_weight <= instructions_allowed(config) + 1
    text = disassemble(artifact)
    if text is not None:
        assert count_transform(config, artifact, text).per_weight <= instructions_allowed(config)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("home", ["tmem", "shared"])
def test_default_tile_on_every_architecture(home: str, arch: str) -> None:
    config = replace(BASE, home=home)
    check_count(config, check_code(config, arch))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("config", VARIANTS, ids=lambda c: "-".join(str(v) for v in c.flat().values()))
def test_every_variant(config: PrefillConfig, arch: str) -> None:
    artifact = check_code(config, arch)
    check_count(config, artifact)


class Problem:
    """Two token tiles and two row tiles of a small kernel, to be run with changed PTX."""

    def __init__(self, config: PrefillConfig, m: int, n: int, k: int, pairs: int) -> None:
        w = quantised(k, n)
        self.x = torch.randn(m, k, generator=torch.Generator().manual_seed(1)).to(w.dtype)
        self.out = torch.zeros(m, n, dtype=w.dtype)
        self.artifact = get_artifact(source(config), "sm_100a")
        self.grid = Grid.of(config, m, n, k, DeviceProps.for_target("sm_100a"), pairs=pairs)
        self.launch = self.grid.launch_config(config)
        self.args = [_for_emulator(a) for a in arguments(config, self.grid, self.x, w, None, self.out, None)]

    def run(self, ptx: str, seed: int = 0, **options: Any) -> Report:
        self.out.fill_(float("nan"))
        entry = self.artifact.metadata.entry
        return emulate(ptx, entry, self.args, self.launch, arch="sm_100a", seed=seed, **options)


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
    k = 768
    problem = Problem(config, tokens, 256, k, 1)
    report = problem.run(problem.artifact.ptx)
    report.raise_on_findings()
    steps = 2 * (k // 64)  # of both CTAs
    assert report.tma_load_bytes == steps * (4096 + 128 + config.token_step_bytes)
    counted = sum(line.wavefronts for line in report.shared if line.executed > 8) / steps
    model = step_cycles(config)
    bytes_per_step = report.tma_load_bytes / steps + config.token_step_bytes
    assert counted + bytes_per_step / 128 < model.mma == 2 * tokens
