"""A warp-specialised Hopper GEMM (TMA multicast, mbarrier ring, wgmma, cluster of two), right and broken on
purpose."""

from __future__ import annotations

import re
import time

import pytest
import torch

from tests.emulator import gemm_sm90
from tests.emulator.gemm_sm90 import Problem

POLICIES = ("late", "eager", "mixed", "heavy")


@pytest.fixture(scope="module")
def text() -> str:
    return gemm_sm90.ptx()


@pytest.mark.parametrize("policy", POLICIES)
def test_right_under_every_policy(text: str, policy: str) -> None:
    first: torch.Tensor | None = None
    for seed, warps in enumerate(("random", "greedy", "round_robin")):
        p = Problem.random(256, 256, 256)
        gemm_sm90.run(p, text, policy=policy, seed=seed, warp_policy=warps).raise_on_findings()
        assert p.relative_error() < 2**-8
        assert first is None or torch.equal(first, p.c), (
            "the order of sums is fixed, so no schedule changes a bit"
        )
        first = p.c


def test_counts(text: str) -> None:
    p = Problem.random(256, 256, 512)
    report = gemm_sm90.run(p, text)
    per_cta = (128 + 256) * 512 * 2
    assert report.tma_load_bytes == 2 * per_cta
    assert sum(row.get("tma", 0) for row in report.by_warp[8:9]) == report.classes["tma"] == 2 * 2 * 8
    assert [row.get("wgmma", 0) >= 2 * 8 * 4 for row in report.by_warp] == [True] * 8 + [False] * 4


def test_fast_enough(text: str) -> None:
    p = Problem.random(256, 256, 512)
    started = time.process_time()
    gemm_sm90.run(p, text)
    assert time.process_time() - started < 2


def mutants(text: str) -> dict[str, str]:
    """Single changes that each break the protocol."""

    def drop(pattern: str, which: int) -> str:
        found = list(re.finditer(pattern, text))
        m = found[which]
        return text[: m.start()] + text[m.end() :]

    def swap(pattern: str, new: str, count: int = 0) -> str:
        changed, n = re.subn(pattern, new, text, count=count)
        assert n
        return changed

    wait = r"\{\s*\.reg \.pred p;\s*W: mbarrier.try_wait[^}]*\}"  # the producer's, then the consumers'
    return {
        "full wait dropped": drop(wait, -1),
        "empty wait dropped": drop(wait, 0),
        "wgmma wait dropped": swap(r"wgmma.wait_group.sync.aligned 0;", ""),
        "wgmma wait weakened": swap(r"wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
        "mbarrier init fence dropped": swap(r"fence.mbarrier_init.release.cluster;", ""),
        "first cluster barrier dropped": drop(
            r"barrier.cluster.arrive.aligned;\s*barrier.cluster.wait.aligned;", 0
        ),
        "last cluster barrier dropped": drop(
            r"barrier.cluster.arrive.aligned;\s*barrier.cluster.wait.aligned;", -1
        ),
        "empty arrivals to one CTA only": swap(
            r"mapa.shared::cluster.u32 (%r\d+), (%r\d+), %r\d+;", r"mov.u32 \1, \2;"
        ),
        "relaxed arrive": swap(
            r"mbarrier.arrive.release.cluster.shared::cluster.b64",
            "mbarrier.arrive.relaxed.cluster.shared::cluster.b64",
        ),
        "fewer bytes expected": swap(r"(mov.u32\s+%r\d+), 49152;", r"\1, 49136;"),
        "multicast to itself only": swap(r"mov.u16\s+(%rs\d+), 3;", r"mov.u16 \1, 1;"),
        "swizzle of the descriptor off": swap("4611686293305360384", str(4611686293305360384 + (1 << 62))),
    }


def test_every_mutant_is_caught(text: str) -> None:
    survivors = []
    for name, broken in mutants(text).items():
        assert broken != text, name
        for seed in range(6):
            p = Problem.random(256, 256, 320)
            report = gemm_sm90.run(p, broken, seed=seed, policy=POLICIES[seed % 4])
            if report.findings or not p.relative_error() < 2**-8:
                break
        else:
            survivors.append(name)
    assert survivors == []
