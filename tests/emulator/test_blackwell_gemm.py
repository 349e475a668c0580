"""A 2-CTA tcgen05 GEMM: right under every schedule, and each of its defects caught and named."""

from __future__ import annotations

import pytest
import torch

from tests.emulator.gemm_2cta import gemm, ptx, trial

SCHEDULES = range(8)


@pytest.mark.parametrize("tile_n", [64, 128, 256])
def test_right_under_every_schedule(tile_n: int) -> None:
    """The exact product, no finding, whatever the completion order and the warp order."""
    for seed in SCHEDULES:
        report, d, exact = gemm(ptx(tile_n=tile_n), n=256, tile_n=tile_n, seed=seed, tcgen05_fences=True)
        report.raise_on_findings()
        assert torch.equal(d, exact), f"seed {seed}"


def test_speed() -> None:
    """A 256x256x512 tile takes under 2 seconds with checks on."""
    report, d, exact = gemm(ptx(tile_n=256), m=256, n=256, k=512, tile_n=256)
    report.raise_on_findings()
    assert torch.equal(d, exact)
    assert report.seconds < 2, f"{report.seconds:.2f} s"


def test_counts() -> None:
    """Bytes by TMA and conflicts of shared memory follow from the tile sizes."""
    report, _, _ = gemm(ptx())
    assert (
        report.tma_load_bytes == 3 * 4 * (256 + 128) * 64 * 2
    )  # tiles, k steps, rows of A and B, bytes of a row
    assert report.tma_store_bytes == 768 * 128 * 4
    assert report.conflicts == 0


@pytest.mark.parametrize(
    ("defect", "kinds"),
    [
        ("NO_FULL_WAIT", {"race", "uninitialised"}),
        ("NO_EMPTY_WAIT", {"race"}),
        ("NO_LOAD_WAIT", {"tmem race"}),
        ("NO_PROXY_FENCE", {"proxy fence"}),
        ("NO_DEALLOC", {"tmem leak"}),
        ("PER_CTA_EXPECTS_PAIR", {"deadlock"}),
    ],
)
def test_defect_is_caught_and_named(defect: str, kinds: set[str]) -> None:
    """Every schedule reports the defect, without luck."""
    for seed in range(4):
        report, _, _ = gemm(ptx(defect), seed=seed)
        assert report.kinds() & kinds, f"seed {seed}: {report.kinds()}"


@pytest.mark.parametrize("defect", ["BAD_SWIZZLE", "BAD_DESCRIPTOR"])
def test_wrong_descriptor_shows_in_the_result(defect: str) -> None:
    """A wrong swizzle or a start address off by one (16 bytes) is well synchronised, and wrong."""
    for seed in range(2):
        assert trial(ptx(defect), seed)
        _, d, exact = gemm(ptx(defect), seed=seed, checks=False)
        assert not torch.equal(d, exact)


def test_per_cta_tma_that_expects_its_own_bytes_corrupts_the_peer_half() -> None:
    """The leader starts when its own half of B is there; the peer's half may be late.

    With checks the race is reported under every schedule. Without them the result depends on the
    schedule, and only columns of the peer's half of B are ever wrong.
    """
    text = ptx("PER_CTA_EXPECTS_OWN")
    results = []
    for seed in range(12):
        report, _, _ = gemm(text, seed=seed)
        assert report.kinds() & {"race", "uninitialised"}, f"seed {seed}: {report.kinds()}"
        _, d, exact = gemm(text, seed=seed, checks=False)
        assert torch.equal(d[:, :64], exact[:, :64]), "the leader's half of B is always complete"
        results.append(torch.equal(d[:, 64:], exact[:, 64:]))
    assert any(results) and not all(results), "some schedules hide the defect, others show it"


def test_deadlock_report_names_barriers() -> None:
    """The report lists stuck warps with their PTX line and the state of the barrier they wait on."""
    report, _, _ = gemm(ptx("PER_CTA_EXPECTS_PAIR"))
    text = next(f.text for f in report.findings if f.kind == "deadlock")
    assert "CTA 0 warp 1" in text and "bytes pending" in text and "line" in text
