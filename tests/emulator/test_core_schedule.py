"""Scheduling: reproducible by seed, every lane makes progress, polls and barriers of every kind end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulator.conftest import Run

ORDER = """
atom.global.add.u32 %r1, [a], 1;
setp.ne.u32 %p1, lane, 0;
@%p1 bra OUT;
mul.wide.u32 %rd1, %r1, 4;
add.u64 %rd1, %rd1, b;
st.global.b32 [%rd1], warp;
OUT:
"""


def order(ptx_run: Run, **options: object) -> tuple[int, ...]:
    counter, out = np.zeros(1, np.int32), np.full(256, -1, np.int32)
    ptx_run(ORDER, (counter, out), block=256, **options).raise_on_findings()
    return tuple(out[out >= 0].tolist())


def test_seed_decides_the_order(ptx_run: Run) -> None:
    orders = [order(ptx_run, seed=s) for s in range(8)]
    assert len(set(orders)) > 4
    assert [order(ptx_run, seed=s) for s in range(8)] == orders


def test_warp_policies_differ(ptx_run: Run) -> None:
    assert order(ptx_run, warp_policy="greedy") == tuple(range(8))
    assert order(ptx_run, warp_policy="random", seed=1) != tuple(range(8))


@pytest.mark.parametrize("warps", ["random", "greedy", "round_robin"])
def test_lane_that_waits_for_a_lane_of_its_warp(ptx_run: Run, warps: str) -> None:
    """Independent thread scheduling: lane 0 spins on a flag that lane 1 sets later in the text."""
    body = """
    st.shared.b32 [smem], 0;
    bar.warp.sync -1;
    setp.ne.u32 %p1, lane, 0;
    @%p1 bra SET;
    SPIN: ld.volatile.shared.b32 %r1, [smem]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;
    bra DONE;
    SET: st.volatile.shared.b32 [smem], 1;
    DONE: bar.warp.sync -1;
    """
    assert ptx_run(body, warp_policy=warps).kinds() <= {"race"}  # the first store is weak


@pytest.mark.parametrize("policy", ["late", "eager", "mixed", "heavy"])
@pytest.mark.parametrize("warps", ["random", "greedy", "round_robin"])
def test_polling_without_suspension_ends(ptx_run: Run, policy: str, warps: str) -> None:
    body = """
    setp.ne.u32 %p1, tid, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [smem], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+128], [a], 128, [smem];
    READY: bar.sync 0;
    POLL: mbarrier.test_wait.parity.shared::cta.b64 %p2, [smem], 0; @!%p2 bra POLL;
    and.b32 %r1, tid, 31; mad.lo.u32 %r1, %r1, 4, smem; ld.shared.b32 %r2, [%r1+128];
    """
    ptx_run(
        body, (np.arange(32, dtype=np.int32), None), block=64, policy=policy, warp_policy=warps
    ).raise_on_findings()


def test_spinning_for_ever_is_a_livelock(ptx_run: Run) -> None:
    flag = np.zeros(1, np.int32)
    report = ptx_run(
        "SPIN: ld.volatile.global.b32 %r1, [a]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;", (flag, None)
    )
    assert report.kinds() == {"livelock"}


def test_named_barriers_of_producer_and_consumer(cuda_run: Run) -> None:
    source = r"""
    extern "C" __global__ void k(int* out) {
      __shared__ int slot[32];
      const int w = threadIdx.x / 32, l = threadIdx.x % 32;
      for (int i = 0; i < 9; i++) {
        if (w == 0) {
          if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
          slot[l] = i * 100 + l;
          asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
          asm volatile("bar.sync 1, 64;" ::: "memory");
          out[i * 32 + l] = slot[31 - l];
          if (i < 8) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
      }
    }"""
    for seed in range(4):
        out = torch.zeros(9, 32, dtype=torch.int32)
        cuda_run(source, [out], block=64, seed=seed).raise_on_findings()
        assert torch.equal(out, torch.arange(9)[:, None] * 100 + torch.arange(31, -1, -1)[None, :])


def test_cp_async_ring(cuda_run: Run) -> None:
    source = r"""
    extern "C" __global__ void k(const int4* in, int* out, int n) {
      __shared__ __align__(16) int4 ring[4][32];
      const int l = threadIdx.x;
      auto load = [&](int i) {
        unsigned d = (unsigned)__cvta_generic_to_shared(&ring[i % 4][l]);
        const int4* s = in + i * 32 + l;
        if (i < n) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(d), "l"(s) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
      };
      for (int i = 0; i < DEPTH; i++) load(i);
      for (int i = 0; i < n; i++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(DEPTH - 1) : "memory");
        __syncwarp();
        int4 v = ring[i % 4][l ^ 1];
        out[i * 32 + l] = v.x + v.y + v.z + v.w;
        __syncwarp();
        load(i + DEPTH);
      }
    }"""
    data = torch.arange(12 * 32 * 4, dtype=torch.int32)
    sums = data.view(12, 32, 4).sum(2)[:, torch.arange(32) ^ 1].int()
    for policy in ("late", "mixed"):
        out = torch.zeros(12, 32, dtype=torch.int32)
        cuda_run(source.replace("DEPTH", "3"), [data, out, np.int32(12)], policy=policy).raise_on_findings()
        assert torch.equal(out, sums)
    out = torch.zeros(12, 32, dtype=torch.int32)
    report = cuda_run(
        source.replace("DEPTH - 1", "3").replace("DEPTH", "3"), [data, out, np.int32(12)], policy="late"
    )
    assert report.findings or not torch.equal(out, sums)


def test_clusters_that_wait_for_later_clusters(ptx_run: Run) -> None:
    """A CTA spins on a counter that later CTAs raise: they start beside it once it makes no progress."""
    body = """
    mov.u32 %r1, %ctaid.x;
    setp.ne.u32 %p1, tid, 0; @%p1 bra OUT;
    atom.add.release.gpu.global.u32 %r2, [a], 1;
    setp.ne.u32 %p2, %r1, 0; @%p2 bra OUT;
    SPIN: ld.acquire.gpu.global.u32 %r3, [a]; setp.lt.u32 %p3, %r3, 3; @%p3 bra SPIN;
    st.global.u32 [b], %r3;
    OUT:
    """
    counter, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    ptx_run(body, (counter, out), grid=3).raise_on_findings()
    assert out[0] == 3
