"""Every checker catches the defect that it is for, names the place, and stays silent on the correct
kernel."""

from __future__ import annotations

import numpy as np
import pytest

from swordfish.emulator import Report
from tests.emulator.conftest import Run

INIT = """
setp.ne.u32 %p1, tid, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [smem], 1;
mbarrier.init.shared::cta.b64 [smem+8], 1;
FENCE_INIT
READY:
bar.sync 0;
"""
FENCED = INIT.replace("FENCE_INIT", "fence.mbarrier_init.release.cluster;")
LOAD = """
@%p1 bra LOADED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], EXPECT;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+1024], [a], 256, [smem];
LOADED:
"""
WAIT = """
WAITING:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [smem], PARITY;
@!%p2 bra WAITING;
"""
READ = """
mad.lo.u32 %r1, tid, 4, smem;
ld.shared.b32 %r2, [%r1+1024];
mul.wide.u32 %rd1, tid, 4;
add.u64 %rd1, %rd1, b;
st.global.b32 [%rd1], %r2;
"""


def load_kernel(*, fenced: bool = True, expect: int = 256, parity: int = 0, wait: bool = True) -> str:
    parts = [FENCED if fenced else INIT.replace("FENCE_INIT", ""), LOAD.replace("EXPECT", str(expect))]
    parts.append(WAIT.replace("PARITY", str(parity)) if wait else "")
    return "".join([*parts, READ])


def data() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(64, dtype=np.int32), np.zeros(64, np.int32)


def only(report: Report, kind: str) -> str:
    assert report.kinds() == {kind}, [str(f) for f in report.findings]
    return str(report.findings[0])


@pytest.mark.parametrize("policy", ["late", "eager", "mixed", "heavy"])
@pytest.mark.parametrize("seed", range(3))
def test_correct_bulk_load_is_clean(ptx_run: Run, policy: str, seed: int) -> None:
    a, b = data()
    ptx_run(load_kernel(), (a, b), block=64, policy=policy, seed=seed).raise_on_findings()
    assert (a == b).all()


def test_dropped_wait_is_a_race(ptx_run: Run) -> None:
    for seed in range(4):
        report = ptx_run(load_kernel(wait=False), data(), block=64, policy="eager", seed=seed)
        assert report.kinds() & {"race", "uninitialised"}
        assert all("ld.shared.b32" in f.source or "cp.async.bulk" in f.source for f in report.findings)


def test_wrong_parity_passes_too_early(ptx_run: Run) -> None:
    kinds = set().union(
        *(ptx_run(load_kernel(parity=1), data(), block=64, policy="late", seed=s).kinds() for s in range(4))
    )
    assert kinds & {"race", "uninitialised"}


def test_too_many_expected_bytes_deadlock(ptx_run: Run) -> None:
    report = ptx_run(load_kernel(expect=272), data(), block=64)
    text = only(report, "deadlock")
    assert "parity 0" in text and "16 bytes pending" in text and "warp 1" in text
    assert "mbarrier.try_wait" in report.findings[0].source


def test_too_few_expected_bytes_leave_a_count(ptx_run: Run) -> None:
    reports = [ptx_run(load_kernel(expect=240), data(), block=64, seed=s) for s in range(4)]
    assert all(r.kinds() & {"mbarrier", "deadlock", "race", "uninitialised"} for r in reports)


def test_unfenced_mbarrier_init(ptx_run: Run) -> None:
    text = only(ptx_run(load_kernel(fenced=False), data(), block=64), "proxy fence")
    assert "fence.mbarrier_init" in text


def test_mbarrier_before_init(ptx_run: Run) -> None:
    text = only(ptx_run("mbarrier.arrive.shared::cta.b64 _, [smem+16];", block=32), "mbarrier")
    assert "before mbarrier.init" in text and "0x410" in text


def test_mbarrier_count_underflow(ptx_run: Run) -> None:
    body = FENCED + "mbarrier.arrive.shared::cta.b64 _, [smem], 3;"
    assert "underflow" in only(ptx_run(body), "mbarrier")


def test_init_used_without_synchronisation(ptx_run: Run) -> None:
    body = (
        FENCED.replace("bar.sync 0;", "")
        + "setp.ne.u32 %p3, tid, 40; @%p3 bra OUT; mbarrier.arrive.shared::cta.b64 _, [smem]; OUT:"
    )
    kinds = set().union(*(ptx_run(body, block=64, seed=s).kinds() for s in range(6)))
    assert kinds <= {"race", "mbarrier"} and kinds


STORE = """
mad.lo.u32 %r1, tid, 4, smem;
st.shared.b32 [%r1+1024], tid;
FENCE
bar.sync 0;
setp.ne.u32 %p1, tid, 0;
@%p1 bra DONE;
cp.async.bulk.global.shared::cta.bulk_group [b], [smem+1024], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
"""


def test_missing_proxy_fence(ptx_run: Run) -> None:
    a, b = data()
    ptx_run(STORE.replace("FENCE", "fence.proxy.async.shared::cta;"), (a, b), block=64).raise_on_findings()
    assert (b == np.arange(64)).all()
    report = ptx_run(STORE.replace("FENCE", ""), data(), block=64)
    text = only(report, "proxy fence")
    assert "fence.proxy.async" in text and "cp.async.bulk.global" in report.findings[0].source


def test_source_reused_before_bulk_read(ptx_run: Run) -> None:
    body = STORE.replace("FENCE", "fence.proxy.async.shared::cta;").replace(
        "cp.async.bulk.wait_group 0;", "st.shared.b32 [smem+1024], 7;"
    )
    assert "race" in ptx_run(body, data(), block=64, policy="late").kinds()


EXCHANGE = """
mad.lo.u32 %r1, tid, 4, smem;
st.shared.b32 [%r1], tid;
BARRIER
xor.b32 %r2, tid, 32;
mad.lo.u32 %r3, %r2, 4, smem;
ld.shared.b32 %r4, [%r3];
mul.wide.u32 %rd1, tid, 4;
add.u64 %rd1, %rd1, b;
st.global.b32 [%rd1], %r4;
"""


def test_missing_bar_sync_is_a_race_whatever_the_schedule(ptx_run: Run) -> None:
    ptx_run(EXCHANGE.replace("BARRIER", "bar.sync 0;"), data(), block=64).raise_on_findings()
    for seed in range(4):
        report = ptx_run(EXCHANGE.replace("BARRIER", ""), data(), block=64, seed=seed)
        assert report.kinds() & {"race", "uninitialised"}
        finding = report.findings[0]
        assert finding.warp in (0, 1) and finding.address >= 0x400 and finding.line > 0


def test_write_after_read_without_barrier(ptx_run: Run) -> None:
    body = EXCHANGE.replace("BARRIER", "bar.sync 0;") + "st.shared.b32 [%r1], %r4;"
    assert {ptx_run(body, data(), block=64, seed=s).kinds() == {"race"} for s in range(3)} == {True}


def test_uninitialised_read(ptx_run: Run) -> None:
    text = only(ptx_run("ld.shared.b32 %r1, [smem+64];"), "uninitialised")
    assert "0x440" in text


def test_out_of_bounds_shared(ptx_run: Run) -> None:
    text = only(ptx_run("st.shared.b32 [smem+4096], 1;"), "out of bounds")
    assert "0x1400" in text


def test_out_of_bounds_global(ptx_run: Run) -> None:
    a, b = data()
    text = only(
        ptx_run("mul.wide.u32 %rd1, tid, 4; add.u64 %rd1, %rd1, a; ld.global.b32 %r1, [%rd1];", (a[:31], b)),
        "out of bounds",
    )
    assert "124 bytes into args[0] of 124 bytes" in text and "lane 31" in text


@pytest.mark.parametrize("address", [-1, -8, 1 << 60])
def test_addresses_at_the_end_of_the_range(ptx_run: Run, address: int) -> None:
    body = f"mov.b64 %rd1, {address}; ld.global.b8 %r1, [%rd1]; st.global.b8 [%rd1], %r1;"
    report = ptx_run(body, data())
    assert [f.text.split(" of 1 ")[0] for f in report.findings] == ["global read", "global write"]


def test_null_pointer(ptx_run: Run) -> None:
    assert "0x0" in only(ptx_run("ld.global.b32 %r1, [a];"), "out of bounds")


def test_write_to_read_only_array(ptx_run: Run) -> None:
    a, b = data()
    a.flags.writeable = False
    assert "read-only" in only(ptx_run("st.global.b32 [a], 1;", (a, b)), "out of bounds")


def test_misaligned(ptx_run: Run) -> None:
    assert "8 bytes" in only(ptx_run("st.shared.b64 [smem+4], 1;"), "misaligned")


def test_barrier_of_some_warps_deadlocks(ptx_run: Run) -> None:
    body = "setp.ne.u32 %p1, warp, 0; @%p1 bra OUT; bar.sync 1, 96; OUT: bar.sync 0;"
    text = only(ptx_run(body, block=64), "deadlock")
    assert "barrier 1, 32 of 96" in text and "barrier 0" in text


def test_lanes_that_never_converge(ptx_run: Run) -> None:
    body = (
        "setp.eq.u32 %p1, lane, 3; @%p1 bra OUT; bar.warp.sync 0xffffffff; bra END; OUT: bar.sync 1, 64; END:"
    )
    text = only(ptx_run(body), "deadlock")
    assert "0x8" in text


def test_missing_cluster_barrier_reaches_exited_cta(ptx_run: Run) -> None:
    body = """
    mov.u32 %r1, %cluster_ctarank;
    st.shared.b32 [smem], %r1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra OUT;
    mapa.shared::cluster.u32 %r2, smem, 0;
    mov.u32 %r5, 0;
    LOOP: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 600; @%p2 bra LOOP;
    ld.shared::cluster.b32 %r3, [%r2];
    OUT: LAST
    """
    ptx_run(
        body.replace("LAST", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
        grid=2,
        cluster=2,
    ).raise_on_findings()
    reports = [ptx_run(body.replace("LAST", ""), grid=2, cluster=2, seed=s) for s in range(4)]
    assert any("exited CTA" in r.kinds() for r in reports)


def test_remote_write_needs_cluster_barrier(ptx_run: Run) -> None:
    body = """
    mov.u32 %r1, %cluster_ctarank;
    xor.b32 %r2, %r1, 1;
    mapa.shared::cluster.u32 %r3, smem, %r2;
    START
    st.shared::cluster.b32 [%r3], %r1;
    SYNC
    ld.shared.b32 %r4, [smem];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    both = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    unstarted = body.replace("START", "").replace("SYNC", both)
    assert ptx_run(unstarted, grid=2, cluster=2, cluster_start=True).kinds() == {"cluster start"}
    body = body.replace("START", both)
    ptx_run(
        body.replace("SYNC", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
        grid=2,
        cluster=2,
    ).raise_on_findings()
    relaxed = body.replace("SYNC", "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;")
    assert ptx_run(relaxed, grid=2, cluster=2).kinds() == {"race"}
    assert ptx_run(body.replace("SYNC", ""), grid=2, cluster=2).kinds() & {"race", "uninitialised"}


def test_too_much_shared_memory(ptx_run: Run) -> None:
    text = only(ptx_run("", shared=232449), "resources")
    assert "232448" in text


def test_divergent_aligned_instruction_waits_for_the_warp(ptx_run: Run) -> None:
    body = """setp.lt.u32 %p1, lane, 16; @%p1 bra LOW; add.u32 %r1, %r1, 1;
    LOW: ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [smem];"""
    report = ptx_run("mad.lo.u32 %r9, tid, 16, smem; st.shared.v4.b32 [%r9], {0, 0, 0, 0}; " + body)
    assert report.kinds() == set()


def test_trap(ptx_run: Run) -> None:
    assert only(ptx_run("trap;"), "trap")


def test_wgmma_result_before_wait(ptx_run: Run) -> None:
    regs = ", ".join(f"%f{k}" for k in range(4))
    body = f"""
    mad.lo.u32 %r1, tid, 16, smem;
    st.shared.v4.b32 [%r1], {{0, 0, 0, 0}}; st.shared.v4.b32 [%r1+2048], {{0, 0, 0, 0}};
    fence.proxy.async; bar.sync 0;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;
    mov.b64 %rd1, 0x0000000800080040;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{regs}}}, %rd1, %rd1, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    WAIT
    add.f32 %f5, %f0, %f1;
    """
    ptx_run(body.replace("WAIT", "wgmma.wait_group.sync.aligned 0;"), block=128).raise_on_findings()
    assert only(ptx_run(body.replace("WAIT", ""), block=128), "in-flight register")


def test_exit_before_a_bulk_store_has_read_its_source(ptx_run: Run) -> None:
    body = STORE.replace("FENCE", "fence.proxy.async.shared::cta;").replace("cp.async.bulk.wait_group 0;", "")
    text = only(ptx_run(body, data(), block=64, policy="late"), "exited CTA")
    assert "asynchronous access" in text and "cp.async.bulk.global" in text
