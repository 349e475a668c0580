"""The numbers of a report: instruction counts, bank conflicts, bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.conftest import Run


@pytest.mark.parametrize(
    ("stride", "bytes_", "wavefronts"),
    [
        (4, 4, 1),
        (8, 4, 2),
        (128, 4, 32),
        (132, 4, 1),
        (0, 4, 1),
        (8, 8, 2),
        (16, 16, 4),
        (64, 4, 16),
        (32, 16, 8),
        (144, 16, 4),
        (16, 8, 4),
    ],
)
def test_wavefronts_of_strided_stores(ptx_run: Run, stride: int, bytes_: int, wavefronts: int) -> None:
    value = {4: "tid", 8: "{tid, tid}", 16: "{tid, tid, tid, tid}"}[bytes_]
    kind = {4: "b32", 8: "v2.b32", 16: "v4.b32"}[bytes_]
    report = ptx_run(f"mad.lo.u32 %r1, lane, {stride}, smem; st.shared.{kind} [%r1], {value};", shared=8192)
    (line,) = report.shared
    assert (line.accesses, line.wavefronts) == (1, wavefronts)
    assert report.conflicts == wavefronts - line.ideal


def test_swizzled_matrix_rows_have_no_conflict(ptx_run: Run) -> None:
    fill = """mad.lo.u32 %r9, lane, 128, smem; mov.u32 %r8, 0;
    F: st.shared.v4.b32 [%r9], {0,0,0,0}; add.u32 %r9, %r9, 16; add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, 8; @%p1 bra F; bar.sync 0;"""
    load = "\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r1];"
    plain = fill + "mad.lo.u32 %r1, lane, 128, smem;" + load
    swizzled = (
        fill
        + "and.b32 %r6, lane, 7; shl.b32 %r6, %r6, 4; mad.lo.u32 %r1, lane, 128, smem; add.u32 %r1, %r1, %r6;"
        + load
    )
    assert ptx_run(plain).shared[-1].wavefronts == 32
    assert ptx_run(swizzled).shared[-1].wavefronts == 4


def test_instruction_counts_by_warp(ptx_run: Run) -> None:
    body = """setp.eq.u32 %p1, warp, 0; @%p1 bra OUT;
    mul.lo.u32 %r1, tid, 3; fma.rn.f32 %f1, %f2, %f3, %f4; OUT: bar.sync 0;"""
    report = ptx_run(body, block=64)
    assert report.by_warp[0].get("float", 0) == 0 and report.by_warp[1]["float"] == 1
    assert report.by_warp[1]["alu"] == report.by_warp[0]["alu"] + 1
    assert report.classes["barrier"] == 2 and sum(report.classes.values()) == report.instructions


def test_bulk_bytes(ptx_run: Run) -> None:
    body = """
    st.shared.v4.b32 [smem+512], {1, 2, 3, 4};
    fence.proxy.async.shared::cta;
    setp.ne.u32 %p1, tid, 0; @%p1 bra OUT;
    cp.async.bulk.global.shared::cta.bulk_group [b], [smem+512], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    OUT:
    """
    out = np.zeros(4, np.int32)
    report = ptx_run(body, (None, out))
    assert report.tma_store_bytes == 16 and report.tma_load_bytes == 0 and out.tolist() == [1, 2, 3, 4]


def test_without_checks_nothing_is_reported(ptx_run: Run) -> None:
    body = """ld.shared.b32 %r1, [smem];
    mul.wide.u32 %rd1, tid, 4; add.u64 %rd1, %rd1, b; st.global.b32 [%rd1], %r1;"""
    out = np.zeros(32, np.uint32)
    assert ptx_run(body, (None, out), checks=False).ok
    assert (out == 0xFFFFFFFF).all(), "memory that was never written holds NaN"
