"""mbarrier protocols of one CTA, named barriers and asynchronous copies that signal them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Arg, Case
from .data import Stream
from .elementwise import f32_patterns
from .ptx import copy_in, copy_out, kernel, mbarrier_wait, thread0

__all__ = ["cases"]

_TILE = 1024


def cases() -> Iterator[Case]:
    yield from _sequences()
    yield _pipeline()
    yield _many_arrivals()
    yield _waits_by_state()
    yield _cp_async_arrive("")
    yield _cp_async_arrive(".noinc")
    yield _named_barriers()
    yield _barrier_reductions()
    yield from _bulk_copies()
    yield from _cp_async()
    yield from _bulk_reductions()


def _sequence(name: str, count: int, steps: Sequence[str]) -> Case:
    """One thread runs ``steps`` on a barrier of ``count``; after each it records both parities and the pending count.

    The pending count is that of the state token which ``arrive`` returned last (0 before the first).
    """
    body = ["mov.b64 %rd9, 0;", f"mbarrier.init.shared::cta.b64 [smem], {count};"]
    for i, step in enumerate(["", *steps]):
        body.append(step)
        for parity in (0, 1):
            body.append(
                f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], {parity};\n"
                "selp.u32 %r1, 1, 0, %p1;\n"
                f"st.global.u32 [P0+{12 * i + 4 * parity}], %r1;"
            )
        if "%rd9" in step:
            body.append(f"mbarrier.pending_count.b64 %r2, %rd9;\nst.global.u32 [P0+{12 * i + 8}], %r2;")

    def inputs() -> list[Arg]:
        return [np.zeros((len(steps) + 1, 3), dtype=np.uint32)]

    labels = ("init", *(f"{i}: {s}" for i, s in enumerate(steps)))
    return Case(
        f"mbarrier/sequence.{name}",
        kernel("ptr", thread0("\n".join(body))),
        inputs,
        {0: labels},
        shared_bytes=_TILE,
    )


def _sequences() -> Iterator[Case]:
    arrive = "mbarrier.arrive.shared::cta.b64 %rd9, [smem];"
    drop = "mbarrier.arrive_drop.shared::cta.b64 %rd9, [smem];"
    quiet = "mbarrier.arrive.noComplete.shared::cta.b64 %rd9, [smem], {};"

    def by(n: int) -> str:
        return f"mbarrier.arrive.shared::cta.b64 %rd9, [smem], {n};"

    def expect(n: int) -> str:
        return f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [smem], {n};"

    def complete(n: int) -> str:
        return f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], {n};"

    def arrive_expect(n: int) -> str:
        return f"mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [smem], {n};"

    yield _sequence("arrive", 3, [arrive] * 7)
    yield _sequence("arrive_count", 8, [by(5), by(3), by(8), by(1), by(7), by(2)])
    yield _sequence(
        "arrive_drop", 4, [arrive, drop, arrive, arrive, arrive, drop, arrive, arrive, drop, arrive]
    )
    yield _sequence(
        "drop_count",
        6,
        ["mbarrier.arrive_drop.shared::cta.b64 %rd9, [smem], 4;", by(2), arrive, arrive, by(2)],
    )
    yield _sequence(
        "no_complete", 5, [quiet.format(2), quiet.format(1), arrive, arrive, quiet.format(4), arrive]
    )
    yield _sequence(
        "expect_then_arrive",
        1,
        [expect(64), arrive, complete(48), complete(16), arrive, expect(8), complete(8), arrive],
    )
    yield _sequence(
        "arrive_expect", 2, [arrive_expect(32), arrive_expect(32), complete(60), complete(4), arrive, arrive]
    )
    yield _sequence(
        "complete_first",
        2,
        [arrive, complete(16), expect(16), arrive, expect(4), arrive, arrive, complete(4)],
    )
    yield _sequence(
        "drop_expect",
        2,
        [
            "mbarrier.arrive_drop.expect_tx.shared::cta.b64 %rd9, [smem], 16;",
            complete(16),
            arrive,
            arrive,
            arrive,
        ],
    )
    yield _sequence(
        "reinit",
        2,
        [
            arrive,
            "mbarrier.inval.shared::cta.b64 [smem]; mbarrier.init.shared::cta.b64 [smem], 1;",
            arrive,
            arrive,
        ],
    )
    yield _sequence(
        "large", 1000, [by(999), arrive, by(500), expect(1 << 19), by(500), complete(1 << 19), by(1000)]
    )


def _pipeline() -> Case:
    """A producer warp fills four stages with bulk copies, three consumer warps sum them: eight rounds of both parities."""
    stages, rounds, words = 4, 32, 96
    full, empty = "%r10", "%r11"
    body = [
        ".reg .b32 i, stage, parity, sum;",
        thread0(
            "\n".join(
                f"mbarrier.init.shared::cta.b64 [smem+{8 * s}], 1;\n"
                f"mbarrier.init.shared::cta.b64 [smem+{64 + 8 * s}], 3;"
                for s in range(stages)
            )
            + "\nfence.mbarrier_init.release.cluster;"
        ),
        "mov.u32 i, 0;\nmov.u32 sum, 0;",
        "NEXT:",
        f"rem.u32 stage, i, {stages};\ndiv.u32 parity, i, {stages};\nand.b32 parity, parity, 1;",
        f"shl.b32 %r9, stage, 3;\nadd.u32 {full}, smem, %r9;\nadd.u32 {empty}, {full}, 64;",
        f"mad.lo.u32 %r12, stage, {4 * words}, smem;\nadd.u32 %r12, %r12, {_TILE};",
        "setp.ne.u32 %p1, warp, 0;\n@%p1 bra CONSUME;",
        "xor.b32 %r13, parity, 1;",
        mbarrier_wait(empty, "%r13"),
        "setp.ne.u32 %p2, lane, 0;\n@%p2 bra CONTINUE;",
        f"mul.wide.u32 %rd1, i, {4 * words};\nadd.u64 %rd1, %rd1, P0;",
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {4 * words};",
        f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%rd1], {4 * words}, [{full}];",
        "bra CONTINUE;",
        "CONSUME:",
        mbarrier_wait(full, "parity"),
        "sub.u32 %r14, tid, 32;\nmad.lo.u32 %r12, %r14, 4, %r12;\n"
        "ld.shared.u32 %r15, [%r12];\nmad.lo.u32 sum, sum, 3, %r15;",
        "bar.warp.sync 0xffffffff;\nsetp.ne.u32 %p2, lane, 0;",
        f"@!%p2 mbarrier.arrive.shared::cta.b64 _, [{empty}];",
        "CONTINUE:",
        "bar.warp.sync 0xffffffff;",
        f"add.u32 i, i, 1;\nsetp.lt.u32 %p3, i, {rounds};\n@%p3 bra NEXT;",
        "mul.wide.u32 %rd2, tid, 4;\nadd.u64 %rd2, %rd2, P1;\nst.global.u32 [%rd2], sum;",
    ]

    def inputs() -> list[Arg]:
        return [Stream("pipeline").u32(rounds * words), np.zeros(128, dtype=np.uint32)]

    return Case(
        "mbarrier/pipeline",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        block=(128, 1, 1),
        shared_bytes=_TILE + stages * words * 4,
    )


def _many_arrivals() -> Case:
    """Every thread arrives in every phase; thread i then reads what thread (i + 37) % 128 wrote before it arrived."""
    body = [
        thread0("mbarrier.init.shared::cta.b64 [smem], 128;"),
        ".reg .b32 own, other, value;",
        "mad.lo.u32 own, tid, 4, smem;\nadd.u32 %r1, tid, 37;\nand.b32 %r1, %r1, 127;\n"
        "mad.lo.u32 other, %r1, 4, smem;",
        "mov.u32 value, tid;",
    ]
    for phase in range(6):
        at = _TILE + 512 * (phase % 2)
        body += [
            f"st.shared.u32 [own+{at}], value;",
            "mbarrier.arrive.shared::cta.b64 _, [smem];",
            mbarrier_wait("smem", phase % 2),
            f"ld.shared.u32 %r2, [other+{at}];\nmad.lo.u32 value, value, 5, %r2;",
        ]
    body.append("mul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd1, %rd1, P0;\nst.global.u32 [%rd1], value;")

    def inputs() -> list[Arg]:
        return [np.zeros(128, dtype=np.uint32)]

    return Case(
        "mbarrier/all_arrive",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        block=(128, 1, 1),
        shared_bytes=_TILE + 1024,
    )


def _waits_by_state() -> Case:
    """test_wait and try_wait with the state token of the thread's own arrival."""
    wait = """{
.reg .pred q;
.reg .b32 tries;
mov.u32 tries, 0;
AGAIN:
mbarrier.%s.shared::cta.b64 q, [smem], %%rd9;
@q bra DONE;
add.u32 tries, tries, 1;
setp.lt.u32 q, tries, 1000000;
@q bra AGAIN;
trap;
DONE:
}"""
    body = [
        thread0("mbarrier.init.shared::cta.b64 [smem], 64;"),
        "mov.u32 %r3, tid;\nmad.lo.u32 %r4, tid, 4, smem;",
    ]
    for i, kind in enumerate(("try_wait", "test_wait", "try_wait.acquire.cta", "test_wait.acquire.cta")):
        body += [
            f"st.shared.u32 [%r4+{_TILE + 256 * (i % 2)}], %r3;\n"
            "mbarrier.arrive.shared::cta.b64 %rd9, [smem];",
            wait % kind,
            f"xor.b32 %r5, tid, {i * 9 + 1};\nmad.lo.u32 %r5, %r5, 4, smem;\n"
            f"ld.shared.u32 %r6, [%r5+{_TILE + 256 * (i % 2)}];",
            "mad.lo.u32 %r3, %r3, 7, %r6;",
        ]
    body.append("mul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd1, %rd1, P0;\nst.global.u32 [%rd1], %r3;")

    def inputs() -> list[Arg]:
        return [np.zeros(64, dtype=np.uint32)]

    return Case(
        "mbarrier/wait_by_state",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        block=(64, 1, 1),
        shared_bytes=_TILE + 512,
    )


def _cp_async_arrive(noinc: str) -> Case:
    """cp.async.mbarrier.arrive: without .noinc the pending count rises first, so that one plain arrival is still needed."""
    count = 64 if noinc else 1
    body = [
        thread0(f"mbarrier.init.shared::cta.b64 [smem], {count};"),
        "mad.lo.u32 %r1, tid, 16, smem;\nmul.wide.u32 %rd1, tid, 16;\nadd.u64 %rd1, %rd1, P0;",
        f"cp.async.cg.shared.global [%r1+{_TILE}], [%rd1], 16;",
        f"cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [smem];",
    ]
    if not noinc:
        body.append("bar.sync 0;\n" + thread0("mbarrier.arrive.shared::cta.b64 _, [smem];"))
    body += [mbarrier_wait("smem", 0), f"add.u32 %r2, smem, {_TILE};", copy_out("P1", 256, 64, shared="%r2")]

    def inputs() -> list[Arg]:
        return [Stream("cp_async_arrive").u32(256), np.zeros(256, dtype=np.uint32)]

    return Case(
        f"mbarrier/cp_async_arrive{noinc}",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        block=(64, 1, 1),
        shared_bytes=_TILE + 1024,
    )


def _named_barriers() -> Case:
    """Two pairs of warps meet on barriers 1 and 2; the second pair's producer only arrives."""
    body = [
        "mad.lo.u32 %r1, tid, 4, smem;\nmul.lo.u32 %r2, tid, 0x9E3779B9;\nmov.u32 %r5, 0;",
        "setp.ge.u32 %p1, warp, 2;\n@%p1 bra SECOND;",
        "st.shared.u32 [%r1], %r2;\nbar.sync 1, 64;\nxor.b32 %r3, tid, 32;\n"
        "mad.lo.u32 %r3, %r3, 4, smem;\nld.shared.u32 %r5, [%r3];\nbra MEET;",
        "SECOND:",
        "setp.eq.u32 %p2, warp, 3;\n@%p2 bra TAKE;",
        "st.shared.u32 [%r1], %r2;\nbarrier.cta.arrive.aligned 2, 64;\nbra MEET;",
        "TAKE:",
        "barrier.cta.sync.aligned 2, 64;\nld.shared.u32 %r5, [%r1+-128];",
        "MEET:",
        "barrier.cta.sync 0;\nmul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd1, %rd1, P0;\n"
        "st.global.u32 [%rd1], %r5;",
    ]

    def inputs() -> list[Arg]:
        return [np.zeros(128, dtype=np.uint32)]

    return Case(
        "barrier/named",
        kernel("ptr", "\n".join(body)),
        inputs,
        {0: ()},
        block=(128, 1, 1),
        shared_bytes=_TILE,
    )


def _barrier_reductions() -> Case:
    body = [
        "mul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd2, %rd1, P0;\nadd.u64 %rd1, %rd1, P1;\n"
        "ld.global.u32 %r1, [%rd2];\nmov.u32 %r4, 0;",
    ]
    for bit in range(8):
        body += [
            f"and.b32 %r2, %r1, {1 << bit};\nsetp.ne.u32 %p1, %r2, 0;",
            f"barrier.cta.red.popc.aligned.u32 %r3, {bit % 3}, %p1;\nmad.lo.u32 %r4, %r4, 97, %r3;",
            f"barrier.cta.red.and.aligned.pred %p2, {bit % 3}, %p1;\nbar.red.or.pred %p3, {bit % 3}, !%p1;",
            "selp.u32 %r3, 1, 0, %p2;\nmad.lo.u32 %r4, %r4, 2, %r3;\nselp.u32 %r3, 1, 0, %p3;\n"
            "mad.lo.u32 %r4, %r4, 2, %r3;",
        ]
    body.append("st.global.u32 [%rd1], %r4;")

    def inputs() -> list[Arg]:
        s = Stream("barrier_reductions")
        return [s.u32(96) | np.uint32(4) & ~np.uint32(16), np.zeros(96, dtype=np.uint32)]

    return Case("barrier/reductions", kernel("ptr ptr", "\n".join(body)), inputs, {1: ()}, block=(96, 1, 1))


def _bulk_copies() -> Iterator[Case]:
    for size in (16, 48, 1024, 2064):
        yield _bulk_round_trip(size)


def _bulk_round_trip(size: int) -> Case:
    """global -> shared with a barrier, then shared -> global in a bulk group."""
    words = size // 4
    body = [
        thread0("mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;"),
        f"add.u32 %r0, smem, {_TILE};",
        thread0(
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {size};\n"
            f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [P0+16], {size}, [smem];"
        ),
        mbarrier_wait("smem", 0),
        f"{{\n.reg .b32 i, v;\n.reg .pred q;\nmov.u32 i, tid;\nL:\nsetp.ge.u32 q, i, {words};\n@q bra E;\n"
        "mad.lo.u32 v, i, 4, %r0;\nld.shared.u32 %r1, [v];\nxor.b32 %r1, %r1, i;\n"
        f"st.shared.u32 [v], %r1;\nadd.u32 i, i, 32;\nbra L;\nE:\n}}",
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        thread0(
            f"cp.async.bulk.global.shared::cta.bulk_group [P1+32], [%r0], {size};\n"
            "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\ncp.async.bulk.wait_group 0;"
        ),
    ]

    def inputs() -> list[Arg]:
        return [Stream(f"bulk{size}").u32(words + 8), np.full(words + 16, 0xEEEEEEEE, dtype=np.uint32)]

    return Case(
        f"bulk/round_trip.{size}",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        shared_bytes=_TILE + size,
    )


def _cp_async() -> Iterator[Case]:
    """Sizes and sources shorter than the copy (the rest is zero), two groups, the second waited for last."""
    for kind, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        body = [
            f"mad.lo.u32 %r1, tid, {size}, smem;\nmul.wide.u32 %rd1, tid, {size};\nadd.u64 %rd1, %rd1, P0;",
            f"cp.async.{kind}.shared.global [%r1], [%rd1], {size};\ncp.async.commit_group;",
            f"rem.u32 %r2, tid, {size + 1};",
            f"cp.async.{kind}.shared.global [%r1+{64 * size}], [%rd1+{64 * size}], {size}, %r2;\n"
            "cp.async.commit_group;",
            "setp.lt.u32 %p1, lane, 11;",
            f"cp.async.{kind}.shared.global [%r1+{128 * size}], [%rd1+{128 * size}], {size}, %p1;"
            if size == 16
            else "",
            "cp.async.wait_group 1;\nbar.sync 0;\ncp.async.wait_all;\nbar.sync 0;",
            copy_out("P1", (192 if size == 16 else 128) * size // 4, 64),
        ]

        def inputs(size: int = size) -> list[Arg]:
            words = 192 * size // 4
            return [Stream(f"cp_async{size}").u32(words), np.zeros(words, dtype=np.uint32)]

        yield Case(
            f"cp_async/{kind}.{size}",
            kernel("ptr ptr", "\n".join(body)),
            inputs,
            {1: ()},
            block=(64, 1, 1),
            shared_bytes=192 * size,
        )


def _bulk_reductions() -> Iterator[Case]:
    words = 64
    for op, kind in (("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "u32"), ("min", "s32"), ("max", "s64"), ("inc", "u32"), ("dec", "u32"),
                     ("and", "b32"), ("or", "b64"), ("xor", "b32"), ("add", "f32"), ("add.noftz", "f16"), ("add.noftz", "bf16"),
                     ("min", "f16"), ("max", "bf16"), ("add", "f64")):  # fmt: skip
        name = f"bulk/reduce.{op}.{kind}"
        body = [
            copy_in("P0", words, 32),
            "fence.proxy.async.shared::cta;\nbar.sync 0;",
            thread0(
                f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{kind} [P1], [smem], {4 * words};\n"
                "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
            ),
        ]

        def inputs(name: str = name, op: str = op, kind: str = kind) -> list[Arg]:
            return _reduction_operands(name, op, kind, words)

        yield Case(name, kernel("ptr ptr", "\n".join(body)), inputs, {1: ()}, shared_bytes=4 * words)


def _reduction_operands(name: str, op: str, kind: str, words: int) -> list[Arg]:
    s = Stream(name)
    if kind in ("f16", "bf16"):
        mask = np.uint32(0x9FFF9FFF if kind == "f16" else 0xBFFFBFFF)
        return [s.u32(words) & mask, s.u32(words) & mask]
    if kind == "f32":
        return [f32_patterns(s, 120 + words, -140, -120)[-words:] for _ in range(2)]
    if kind == "f64":
        return [
            ((s.u64(words // 2) & np.uint64(0x807FFFFFFFFFFFFF)) + np.uint64(0x3FC0000000000000)).view(
                np.uint32
            )
            for _ in range(2)
        ]
    if op in ("inc", "dec"):
        return [s.u32(words) & np.uint32(3), s.u32(words) & np.uint32(3)]
    return [s.u32(words), s.u32(words)]
