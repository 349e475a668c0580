"""Asynchronous work between the CTAs of a cluster: st.async, red.async, copies to a peer, multicast, a ring."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Arg, Case
from .cluster import MEET, PEER, RANKS, TILE, zeros
from .data import Stream
from .ptx import copy_in, copy_out, kernel, mbarrier_wait, thread0

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    yield _remote_expect()
    yield from _st_async()
    yield _bulk_to_peer()
    yield _bulk_multicast()
    yield _ring()


def _remote_expect() -> Case:
    """Rank r arms the barrier of rank r + 1 from afar (arrive.expect_tx), which then fetches the bytes itself."""
    body = [
        PEER,
        thread0("mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;"),
        MEET,
        thread0("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [remote], 256;"),
        f"mul.wide.u32 %rd1, cta, 256;\nadd.u64 %rd1, %rd1, P0;\nadd.u32 %r1, smem, {TILE};",
        thread0(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 256, [smem];"
        ),
        mbarrier_wait("smem", 0),
        "mul.wide.u32 %rd1, cta, 256;\nadd.u64 %rd1, %rd1, P1;",
        copy_out("%rd1", 64, 32, shared="%r1"),
        MEET,
    ]

    def inputs() -> list[Arg]:
        return [Stream("remote_expect").u32(2, 64), zeros(2, 64)]

    return Case(
        "cluster/remote_expect",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        (2, 1, 1),
        (32, 1, 1),
        (2, 1, 1),
        TILE + 256,
    )


def _st_async() -> Iterator[Case]:
    for width, regs in (
        ("b32", "%r1"),
        ("b64", "%rd2"),
        ("v2.b32", "{%r1, %r2}"),
        ("v4.b32", "{%r1, %r2, %r3, %r4}"),
        ("v2.b64", "{%rd2, %rd3}"),
    ):
        size = 4 * regs.count("%r") if "b32" in width else 8 * regs.count("%rd")
        body = [
            PEER,
            thread0(
                "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
                f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {32 * size};"
            ),
            MEET,
            "mad.lo.u32 %r1, gtid, 3, 1;\nmul.lo.u32 %r2, %r1, 17;\nmul.lo.u32 %r3, %r1, 257;\n"
            "mul.lo.u32 %r4, %r1, 65537;",
            "mov.b64 %rd2, {%r1, %r2};\nmov.b64 %rd3, {%r3, %r4};",
            f"mad.lo.u32 %r5, tid, {size}, remote;\n"
            f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{width} [%r5+{TILE}], {regs}, [remote];",
            mbarrier_wait("smem", 0),
            f"mul.wide.u32 %rd1, cta, {32 * size};\nadd.u64 %rd1, %rd1, P0;\nadd.u32 %r6, smem, {TILE};",
            copy_out("%rd1", 8 * size, 32, shared="%r6"),
            MEET,
        ]

        def inputs(size: int = size) -> list[Arg]:
            return [zeros(2, 8 * size)]

        yield Case(
            f"cluster/st_async.{width}",
            kernel("ptr", "\n".join(body)),
            inputs,
            {0: ()},
            (2, 1, 1),
            (32, 1, 1),
            (2, 1, 1),
            TILE + 512,
        )
    for op, kind in (
        ("add", "u32"),
        ("min", "u32"),
        ("max", "s32"),
        ("xor", "b32"),
        ("inc", "u32"),
        ("add", "u64"),
    ):
        size = 8 if "64" in kind else 4
        value = "%rd2" if size == 8 else "%r1"
        body = [
            PEER,
            thread0(
                "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
                f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {32 * size};"
            ),
            "mad.lo.u32 %r7, tid, 4, smem;\nmul.lo.u32 %r8, gtid, 0x01010101;\n"
            f"st.shared.u32 [%r7+{TILE}], %r8;",
            f"st.shared.u32 [%r7+{TILE + 128}], %r8;" if size == 8 else "",
            "bar.sync 0;",
            MEET,
            "mad.lo.u32 %r1, gtid, 77777777, 12345;\nmov.b64 %rd2, {%r1, %r1};",
            f"mad.lo.u32 %r5, tid, {size}, remote;\n"
            f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{kind} [%r5+{TILE}], {value}, [remote];",
            mbarrier_wait("smem", 0),
            f"mul.wide.u32 %rd1, cta, {32 * size};\nadd.u64 %rd1, %rd1, P0;\nadd.u32 %r6, smem, {TILE};",
            copy_out("%rd1", 8 * size, 32, shared="%r6"),
            MEET,
        ]

        def inputs(size: int = size) -> list[Arg]:
            return [zeros(2, 8 * size)]

        yield Case(
            f"cluster/red_async.{op}.{kind}",
            kernel("ptr", "\n".join(body)),
            inputs,
            {0: ()},
            (2, 1, 1),
            (32, 1, 1),
            (2, 1, 1),
            TILE + 512,
        )


def _bulk_to_peer() -> Case:
    """cp.async.bulk from own shared memory to the next CTA's, completing on the barrier there."""
    words = 128
    body = [
        PEER,
        thread0(
            "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {4 * words};"
        ),
        f"mul.wide.u32 %rd1, cta, {4 * words};\nadd.u64 %rd2, %rd1, P0;\n"
        f"add.u64 %rd3, %rd1, P1;\nadd.u32 %r1, smem, {TILE};",
        copy_in("%rd2", words, 32, shared="%r1"),
        "fence.proxy.async.shared::cta;",
        MEET,
        f"add.u32 %r2, remote, {TILE + 4 * words};",
        thread0(
            f"cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r2], [%r1], {4 * words}, [remote];"
        ),
        mbarrier_wait("smem", 0),
        f"add.u32 %r3, %r1, {4 * words};",
        copy_out("%rd3", words, 32, shared="%r3"),
        MEET,
    ]

    def inputs() -> list[Arg]:
        return [Stream("bulk_to_peer").u32(4, words), zeros(4, words)]

    return Case(
        "cluster/bulk_to_peer",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        TILE + 8 * words,
    )


def _bulk_multicast() -> Case:
    """cp.async.bulk.multicast: rank 1 of 4 loads, ranks 0, 1 and 3 receive."""
    words, mask = 64, 0b1011
    body = [
        RANKS,
        f"add.u32 %r1, smem, {TILE};\nmad.lo.u32 %r2, tid, 4, %r1;\nst.shared.u32 [%r2], 0;\n"
        "st.shared.u32 [%r2+128], 0;\nfence.proxy.async.shared::cta;",
        f"mov.u32 %r3, {mask};\nshr.u32 %r3, %r3, rank;\nand.b32 %r3, %r3, 1;\n"
        f"mul.lo.u32 %r3, %r3, {4 * words};",
        thread0(
            "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], %r3;"
        ),
        MEET,
        f"setp.ne.u32 %p1, rank, 1;\nsetp.ne.or.u32 %p1, tid, 0, %p1;\nmov.u16 %rs1, {mask};",
        f"@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [P0], {4 * words}, [smem], %rs1;",
        mbarrier_wait("smem", 0),
        f"mul.wide.u32 %rd1, cta, {4 * words};\nadd.u64 %rd1, %rd1, P1;",
        copy_out("%rd1", words, 32, shared="%r1"),
        MEET,
    ]

    def inputs() -> list[Arg]:
        return [Stream("bulk_multicast").u32(words), zeros(4, words)]

    return Case(
        "cluster/bulk_multicast",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        TILE + 4 * words,
    )


def _ring() -> Case:
    """A token goes twice around four CTAs by st.async; each CTA changes it and passes it on."""
    body = [
        PEER,
        thread0(
            "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 4;"
        ),
        MEET,
        "setp.ne.u32 %p1, tid, 0;\n@%p1 bra END;\nsetp.ne.u32 %p2, rank, 0;\n@%p2 bra TAKE;\n"
        "mov.u32 %r1, 12345;\n"
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [remote+{TILE}], %r1, [remote];",
        "TAKE:",
    ]
    for lap in range(2):
        body += [
            mbarrier_wait("smem", lap % 2).replace("try_wait.parity.", "try_wait.parity.acquire.cluster."),
            f"ld.shared.u32 %r1, [smem+{TILE}];\nmad.lo.u32 %r1, %r1, 3, rank;\n"
            "mul.wide.u32 %rd1, cta, 8;\nadd.u64 %rd1, %rd1, P0;\n"
            f"st.global.u32 [%rd1+{4 * lap}], %r1;",
        ]
        if lap == 0:
            body.append("mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 4;")
            body.append(
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [remote+{TILE}], %r1, [remote];"
            )
        else:
            body.append("setp.eq.u32 %p3, rank, 0;")
            body.append(
                f"@!%p3 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [remote+{TILE}], %r1, [remote];"
            )
    body += ["END:", "bar.warp.sync 0xffffffff;", MEET]

    def inputs() -> list[Arg]:
        return [zeros(4, 2)]

    return Case(
        "cluster/ring",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        (4, 1, 1),
        (32, 1, 1),
        (4, 1, 1),
        TILE + 64,
    )
