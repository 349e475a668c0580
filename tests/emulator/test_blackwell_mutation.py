"""The mutation tool, and a sample of the 2-CTA GEMM's mutants; the whole is `tools/mutation_score.py`."""

from __future__ import annotations

import re

import torch

from swordfish.emulator.mutate import mutants, score
from tests.emulator.gemm_2cta import ENTRY, ptx, trial

SMALL = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .pred %p1;
.reg .b32 %r<9>;
shl.b32 %r2, %r1, 3;
add.s32 %r3, %r2, 1024;
add.s32 %r7, %r6, 5;
@%p1 bar.sync 1, 128;
W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], %r4;
fence.proxy.async.shared::cta;
ret;
}
"""

# Dropping these changes nothing that the kernel relies on (of the fences: some); docs/emulator.md says why.
HARMLESS = re.compile(r"^(tcgen05\.relinquish_alloc_permit|tcgen05\.fence|bar\.warp\.sync)")


def test_mutants_of_a_small_kernel() -> None:
    """Synchronisation is dropped and weakened; constants change where they reach a barrier's address,
    and nowhere else.
    """
    found = {(m.line, m.change) for m in mutants(SMALL, "k")}
    assert (10, "dropped") in found and (10, "barrier of one warp") in found
    assert (11, "wait dropped") in found
    assert {(12, "dropped"), (12, "proxy fence -> ordinary fence")} <= found
    assert any(line == 8 and "1024" in change for line, change in found)
    assert any(line == 7 and "constant 3" in change for line, change in found)
    assert not any(line == 9 for line, _ in found), "%r7 feeds nothing"


def test_mutant_text_differs_in_one_line() -> None:
    """A mutant is the kernel with one statement changed."""
    original = SMALL.split("\n")
    for m in mutants(SMALL, "k"):
        changed = [k + 1 for k, (a, b) in enumerate(zip(original, m.ptx.split("\n"), strict=True)) if a != b]
        assert changed == [m.line], m


def test_score_tells_caught_from_survived() -> None:
    """A hang, a crash of the trial and a reason are all caught; only an empty reason in every schedule
    survives.
    """
    sample = mutants(SMALL, "k")[:4]

    def fake(text: str, seed: int) -> str:
        if text == sample[0].ptx:
            while True:
                pass
        if text == sample[1].ptx:
            raise ValueError("no such operand")
        return "race" if text == sample[2].ptx and seed == 1 else ""

    outcomes = score(sample, fake, range(2), wall=0.5).outcomes
    assert outcomes[0].reason == "no end"
    assert outcomes[1].reason == "ValueError: no such operand"
    assert (outcomes[2].reason, outcomes[2].schedules) == ("race", 2)
    assert not outcomes[3].caught


def test_sample_of_the_gemm() -> None:
    """Every fourth mutant that drops or weakens synchronisation is caught."""
    candidates = [
        m for m in mutants(ptx(), ENTRY) if "constant" not in m.change and not HARMLESS.match(m.old)
    ]
    assert len(candidates) > 40
    torch.set_num_threads(1)  # the mutants run in forked processes
    assert not trial(ptx(), 0)
    result = score(candidates[::4], trial, range(4))
    assert not result.survivors, result.table()
