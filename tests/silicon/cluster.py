"""Thread block clusters: identities, addresses, distributed shared memory, arrivals and cluster barriers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Case
from .ptx import copy_out, kernel, mbarrier_wait, thread0

__all__ = ["MEET", "PEER", "RANKS", "TILE", "cases", "zeros"]

TILE = 1024
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"
RANKS = (
    ".reg .b32 rank, size, peer, remote;\nmov.u32 rank, %cluster_ctarank;\nmov.u32 size, %cluster_nctarank;"
)
PEER = (
    f"{RANKS}\nadd.u32 peer, rank, 1;\nrem.u32 peer, peer, size;\n"
    "mapa.shared::cluster.u32 remote, smem, peer;"
)
_ROW = "mul.wide.u32 %rd9, gtid, 4;\nadd.u64 %rd9, %rd9, P0;"


def cases() -> Iterator[Case]:
    yield _identity((8, 4, 2), (4, 2, 1))
    yield _identity((4, 4, 4), (1, 2, 4))
    yield _identity((3, 2, 1), (1, 1, 1))
    yield _addresses()
    yield _exchange()
    yield _generic()
    yield _remote_arrive()
    yield _atomics()
    yield _barrier_phases()


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.uint32)


def _identity(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> Case:
    """Special registers of every CTA."""
    names = [
        f"%{name}.{axis}"
        for name in ("ctaid", "nctaid", "cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid", "ntid")
        for axis in "xyz"
    ]
    names += ["%cluster_ctarank", "%cluster_nctarank"]
    body = [
        "mov.u32 %r1, %ctaid.z;\nmov.u32 %r2, %nctaid.y;\nmov.u32 %r3, %ctaid.y;\n"
        "mad.lo.u32 %r1, %r1, %r2, %r3;",
        "mov.u32 %r2, %nctaid.x;\nmov.u32 %r3, %ctaid.x;\nmad.lo.u32 %r1, %r1, %r2, %r3;",
        f"mul.wide.u32 %rd1, %r1, {4 * (len(names) + 1)};\nadd.u64 %rd1, %rd1, P0;",
        *[f"mov.u32 %r4, {name};\nst.global.u32 [%rd1+{4 * i}], %r4;" for i, name in enumerate(names)],
        "mov.pred %p1, %is_explicit_cluster;\nselp.u32 %r4, 1, 0, %p1;",
        f"st.global.u32 [%rd1+{4 * len(names)}], %r4;",
    ]

    def inputs() -> list[Arg]:
        return [zeros(int(np.prod(grid)), len(names) + 1)]

    name = f"cluster/identity.{'x'.join(map(str, grid))}.{'x'.join(map(str, cluster))}"
    return Case(name, kernel("ptr", "\n".join(body)), inputs, {0: ()}, grid, (1, 1, 1), cluster)


def _addresses() -> Case:
    """mapa of an own address to every rank, its inverse, and which state spaces the generic forms belong to."""
    body = [
        RANKS,
        "mul.wide.u32 %rd1, cta, 80;\nadd.u64 %rd1, %rd1, P0;\nadd.u32 %r1, smem, 48;\n"
        "cvt.u64.u32 %rd2, %r1;\ncvta.shared.u64 %rd2, %rd2;",
    ]
    for r in range(4):
        body += [
            f"mapa.shared::cluster.u32 %r2, %r1, {r};\nst.global.u32 [%rd1+{4 * r}], %r2;",
            f"getctarank.shared::cluster.u32 %r3, %r2;\nst.global.u32 [%rd1+{16 + 4 * r}], %r3;",
            f"mapa.u64 %rd3, %rd2, {r};\ngetctarank.u64 %r3, %rd3;\nst.global.u32 [%rd1+{32 + 4 * r}], %r3;",
            "isspacep.shared::cta %p1, %rd3;\nisspacep.shared::cluster %p2, %rd3;\n"
            "isspacep.global %p3, %rd3;",
            "selp.u32 %r4, 1, 0, %p1;\nselp.u32 %r5, 2, 0, %p2;\nselp.u32 %r6, 4, 0, %p3;\n"
            "add.u32 %r4, %r4, %r5;\nadd.u32 %r4, %r4, %r6;\n"
            f"st.global.u32 [%rd1+{48 + 4 * r}], %r4;",
            "cvta.to.shared.u64 %rd4, %rd3;\ncvt.u32.u64 %r7, %rd4;\nsub.u32 %r7, %r7, %r2;\n"
            f"st.global.u32 [%rd1+{64 + 4 * r}], %r7;",
        ]

    def inputs() -> list[Arg]:
        return [zeros(4, 20)]

    return Case(
        "cluster/addresses",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (1, 1, 1),
        (4, 1, 1),
        256,
    )


def _exchange() -> Case:
    """Write to the next CTA, read from the one after it: widths from 8 to 128 bits."""
    body = [
        PEER,
        "mad.lo.u32 %r1, gtid, 77, 5;\nmad.lo.u32 %r2, tid, 64, remote;",
        "st.shared::cluster.b32 [%r2], %r1;\nmul.lo.u32 %r3, %r1, 3;\n"
        "mul.lo.u32 %r4, %r1, 9;\nmul.lo.u32 %r5, %r1, 27;",
        "st.shared::cluster.v2.b32 [%r2+8], {%r3, %r4};\n"
        "st.shared::cluster.v4.b32 [%r2+16], {%r1, %r3, %r4, %r5};",
        "cvt.u16.u32 %rs1, %r5;\nst.shared::cluster.b16 [%r2+32], %rs1;\n"
        "st.shared::cluster.b8 [%r2+34], %rs1;",
        "mov.b64 %rd1, {%r5, %r1};\nst.shared::cluster.b64 [%r2+40], %rd1;",
        MEET,
        "add.u32 peer, rank, 2;\nrem.u32 peer, peer, size;\n"
        "mapa.shared::cluster.u32 remote, smem, peer;\nmad.lo.u32 %r2, tid, 64, remote;",
        "mul.wide.u32 %rd9, gtid, 64;\nadd.u64 %rd9, %rd9, P0;",
        "ld.shared::cluster.b32 %r1, [%r2];\nst.global.b32 [%rd9], %r1;",
        "ld.shared::cluster.v2.b32 {%r1, %r3}, [%r2+8];\nst.global.v2.b32 [%rd9+8], {%r1, %r3};",
        "ld.shared::cluster.v4.b32 {%r1, %r3, %r4, %r5}, [%r2+16];\n"
        "st.global.v4.b32 [%rd9+16], {%r1, %r3, %r4, %r5};",
        "ld.shared::cluster.u16 %r1, [%r2+32];\nld.shared::cluster.s8 %r3, [%r2+34];\n"
        "st.global.v2.b32 [%rd9+32], {%r1, %r3};",
        "ld.shared::cluster.b64 %rd1, [%r2+40];\nst.global.b64 [%rd9+40], %rd1;",
        MEET,
    ]

    def inputs() -> list[Arg]:
        return [zeros(4 * 32, 16)]

    return Case(
        "cluster/exchange",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        2048,
    )


def _generic() -> Case:
    """The same through generic addresses: mapa.u64, plain st and ld."""
    body = [
        RANKS,
        "xor.b32 peer, rank, 1;\ncvt.u64.u32 %rd1, smem;\ncvta.shared.u64 %rd1, %rd1;\n"
        "mapa.u64 %rd2, %rd1, peer;",
        "mul.wide.u32 %rd3, tid, 4;\nadd.u64 %rd2, %rd2, %rd3;\nadd.u64 %rd1, %rd1, %rd3;",
        "mul.lo.u32 %r1, gtid, 0x01000193;\nst.b32 [%rd2], %r1;",
        MEET,
        "ld.b32 %r2, [%rd1];\nld.b32 %r3, [%rd2];\nmad.lo.u32 %r2, %r2, 31, %r3;",
        _ROW,
        "st.global.b32 [%rd9], %r2;",
        MEET,
    ]

    def inputs() -> list[Arg]:
        return [zeros(4 * 32)]

    return Case(
        "cluster/generic",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (32, 1, 1),
        (2, 1, 1),
        256,
    )


def _remote_arrive() -> Case:
    """Every thread of every CTA stores to CTA 0 and arrives on its barrier; CTA 0 waits and reads."""
    body = [
        RANKS,
        thread0("mbarrier.init.shared::cta.b64 [smem], 128;\nfence.mbarrier_init.release.cluster;"),
        MEET,
        "mapa.shared::cluster.u32 remote, smem, 0;\nmul.lo.u32 %r1, gtid, 2654435761;",
    ]
    for phase in range(3):
        body += [
            f"mad.lo.u32 %r2, gtid, 4, remote;\nadd.u32 %r1, %r1, {phase};\n"
            f"st.shared::cluster.u32 [%r2+{TILE + 512 * phase}], %r1;",
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];",
        ]
        body += [
            f"setp.ne.u32 %p1, rank, 0;\n@%p1 bra AFTER{phase};",
            mbarrier_wait("smem", phase % 2).replace("try_wait.parity.", "try_wait.parity.acquire.cluster."),
            f"add.u64 %rd1, P0, {512 * phase};\nadd.u32 %r3, smem, {TILE + 512 * phase};",
            copy_out("%rd1", 128, 32, shared="%r3"),
            f"AFTER{phase}:",
            MEET,
        ]

    def inputs() -> list[Arg]:
        return [zeros(3, 128)]

    return Case(
        "cluster/remote_arrive",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        TILE + 1536,
    )


def _atomics() -> Case:
    """Integer atomics of all CTAs on the shared memory of rank 0, in any order; exchange and compare-and-swap one by one."""
    body = [
        RANKS,
        "mad.lo.u32 %r1, tid, 4, smem;\nst.shared.u32 [%r1], 0;\n"
        "st.shared.u32 [%r1+128], 1000;\nst.shared.u32 [%r1+256], tid;\n"
        "st.shared.u32 [%r1+384], 9;",
        MEET,
        "mapa.shared::cluster.u32 remote, smem, 0;\nand.b32 %r2, tid, 7;\n"
        "mad.lo.u32 %r2, %r2, 4, remote;\nmad.lo.u32 %r3, gtid, 13, 7;",
        "red.relaxed.cluster.shared::cluster.add.u32 [%r2], %r3;\nred.shared::cluster.max.u32 [%r2+32], %r3;",
        "red.shared::cluster.xor.b32 [%r2+64], %r3;\n"
        "atom.shared::cluster.min.u32 %r4, [%r2+128], %r3;\n"
        "red.shared::cluster.inc.u32 [%r2+96], 40;",
        "mad.lo.u32 %r5, tid, 4, remote;\nsetp.ne.u32 %p1, rank, 3;\n@%p1 bra SKIP;",
        "atom.shared::cluster.cas.b32 %r6, [%r5+256], 5, %r3;\n"
        "atom.shared::cluster.exch.b32 %r7, [%r5+384], %r3;",
        "SKIP:",
        MEET,
        "setp.ne.u32 %p1, rank, 0;\n@%p1 bra END;",
        copy_out("P0", 128, 32),
        "END:",
    ]

    def inputs() -> list[Arg]:
        return [zeros(4, 32)]

    return Case(
        "cluster/atomics",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        1024,
    )


def _barrier_phases() -> Case:
    """barrier.cluster with split arrive and wait, relaxed arrivals and non-aligned forms, between dependent exchanges."""
    body = [
        PEER,
        "mad.lo.u32 %r1, tid, 4, remote;\nmad.lo.u32 %r2, tid, 4, smem;\nmad.lo.u32 %r3, gtid, 5, 1;",
    ]
    forms = (
        ("barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire.aligned;"),
        ("barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"),
        ("fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed.aligned;", "barrier.cluster.wait.aligned;"),
        ("barrier.cluster.arrive;", "barrier.cluster.wait;"),
    )
    for i, (arrive, wait) in enumerate(forms):
        at = 128 * i
        body.append(
            f"st.shared::cluster.u32 [%r1+{at}], %r3;\n{arrive}\nmul.lo.u32 %r3, %r3, 3;\n{wait}\n"
            f"ld.shared.u32 %r4, [%r2+{at}];\nmad.lo.u32 %r3, %r4, 7, %r3;"
        )
    body += [_ROW, "st.global.u32 [%rd9], %r3;", MEET]

    def inputs() -> list[Arg]:
        return [zeros(8 * 32)]

    return Case(
        "cluster/barrier_phases",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (8, 1, 1),
        (32, 1, 1),
        (8, 1, 1),
        512,
    )
