"""Loads and stores of every width and state space, vectors, caches, constants, locals and calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Case
from .data import Stream
from .ptx import copy_out, kernel

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        yield _widths(space)
    yield _generic()
    yield _modifiers()
    yield _constants()
    yield _locals()
    yield _parameters()
    yield _calls()
    yield _grid()
    yield _dependent()
    yield _registers_moved()


def _sources(name: str, words: int, out: int) -> list[Arg]:
    return [Stream(name).u32(words), np.zeros(out, dtype=np.uint32)]


def _widths(space: str) -> Case:
    """Thread t reads 32 bytes in every way, then writes 32 bytes in every way at an offset of its own."""
    body = [
        "mul.wide.u32 %rd0, tid, 32;\nadd.u64 P0, P0, %rd0;\nmul.wide.u32 %rd0, tid, 128;\n"
        "add.u64 P1, P1, %rd0;"
    ]
    if space == "shared":
        body.append("mad.lo.u32 %r20, tid, 128, smem;\n")
        body += [
            f"ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [P0+{o}];\n"
            f"st.shared.v4.b32 [%r20+{o}], {{%r0, %r1, %r2, %r3}};"
            for o in (0, 16)
        ]
    source = "P0" if space == "global" else "%r20"
    loads = [f"ld.{space}.{t} %r{i}, [{source}+{i}];" for i, t in enumerate(("u8", "s8"))]
    loads += [f"ld.{space}.u8 %r2, [{source}+3];\nld.{space}.b8 %r3, [{source}+7];"]
    loads += [f"ld.{space}.{t} %r{4 + i}, [{source}+{2 + 2 * i}];" for i, t in enumerate(("u16", "s16"))]
    loads += [
        f"ld.{space}.v2.u8 {{%r6, %r7}}, [{source}+10];\n"
        f"ld.{space}.v4.s8 {{%r8, %r9, %r10, %r11}}, [{source}+12];"
    ]
    loads += [
        f"ld.{space}.v2.s16 {{%r12, %r13}}, [{source}+16];\n"
        f"ld.{space}.v4.u16 {{%r14, %r15, %r16, %r17}}, [{source}+24];"
    ]
    loads += [
        f"ld.{space}.b64 %rd5, [{source}+8];\n"
        f"ld.{space}.v2.b64 {{%rd6, %rd7}}, [{source}+16];\n"
        f"ld.{space}.s32 %rd8, [{source}+4];\nld.{space}.u8 %rd9, [{source}+5];"
    ]
    body += loads
    body += [
        "xor.b64 %rd6, %rd6, %rd5;\nadd.u64 %rd7, %rd7, %rd8;\nxor.b64 %rd7, %rd7, %rd9;\n"
        "mov.b64 {%r18, %r19}, %rd6;"
    ]
    target = "P1" if space == "global" else "%r21"
    if space == "shared":
        body.append("add.u32 %r21, %r20, 0;")
    stores = [f"st.{space}.b32 [{target}+{4 * i}], %r{i};" for i in range(16)]
    stores += [
        f"st.{space}.v2.b64 [{target}+64], {{%rd6, %rd7}};\nst.{space}.v2.b32 [{target}+80], {{%r18, %r19}};"
    ]
    stores += [
        "cvt.u16.u32 %rs0, %r16;\ncvt.u16.u32 %rs1, %r17;\n"
        f"st.{space}.v2.b16 [{target}+88], {{%rs0, %rs1}};\n"
        f"st.{space}.b8 [{target}+93], %r18;\nst.{space}.v2.b8 [{target}+94], {{%rs0, %rs1}};"
    ]
    stores += [
        f"st.{space}.b16 [{target}+96], %rs1;\n"
        f"st.{space}.v4.b16 [{target}+104], {{%rs0, %rs1, %rs1, %rs0}};\n"
        f"st.{space}.v4.b8 [{target}+112], {{%r0, %r1, %r18, %r19}};"
    ]
    stores += [
        f"st.{space}.b8 [{target}+92], 7;\nst.{space}.b16 [{target}+98], %rs0;\n"
        f"st.{space}.b32 [{target}+100], 305419896;\nst.{space}.b32 [{target}+116], 1;\n"
        f"st.{space}.b64 [{target}+120], -2;"
    ]
    body += stores
    if space == "shared":
        body += [
            "bar.sync 0;",
            "mul.wide.u32 %rd0, tid, 128;\nsub.u64 P1, P1, %rd0;",
            copy_out("P1", 1024, 32),
        ]

    def inputs() -> list[Arg]:
        return _sources(f"widths.{space}", 256, 1024)

    return Case(
        f"memory/widths.{space}", kernel("ptr ptr", "\n".join(body)), inputs, {1: ()}, shared_bytes=4096
    )


def _generic() -> Case:
    """Generic loads and stores that fall into the global, shared and local windows."""
    body = [
        ".local .align 16 .b8 buffer[64];\n.reg .b64 l, s, g;\n.reg .pred q;",
        "mov.u64 l, buffer;\ncvta.local.u64 l, l;\ncvt.u64.u32 s, smem;\n"
        "cvta.shared.u64 s, s;\nmul.wide.u32 %rd0, tid, 32;\nadd.u64 s, s, %rd0;",
        "add.u64 P1, P1, %rd0;\nadd.u64 P0, P0, %rd0;\ncvta.global.u64 g, P0;",
        "ld.v4.b32 {%r0, %r1, %r2, %r3}, [g];\nst.v4.b32 [l], {%r0, %r1, %r2, %r3};\n"
        "st.v2.b32 [s+8], {%r0, %r2};\nst.b32 [l+8], %r3;",
        "and.b32 %r4, tid, 1;\nsetp.eq.u32 q, %r4, 0;\nselp.b64 %rd1, l, s, q;\n"
        "ld.v2.b32 {%r5, %r6}, [%rd1+8];",
        "isspacep.local q, l;\nselp.u32 %r7, 1, 0, q;\nisspacep.shared q, s;\n"
        "@q add.u32 %r7, %r7, 2;\nisspacep.global q, g;\n@q add.u32 %r7, %r7, 4;\n"
        "isspacep.shared q, g;\n@q add.u32 %r7, %r7, 8;",
        "st.global.v4.b32 [P1], {%r5, %r6, %r7, %r4};\nld.local.b32 %r8, [buffer+4];\n"
        "cvta.to.local.u64 %rd2, l;\nld.local.u16 %r9, [%rd2+14];\n"
        "st.global.v2.b32 [P1+16], {%r8, %r9};",
    ]

    def inputs() -> list[Arg]:
        return _sources("generic", 512, 512)

    return Case(
        "memory/generic",
        kernel("ptr ptr", "\n".join(body)),
        inputs,
        {1: ()},
        block=(64, 1, 1),
        shared_bytes=2048,
    )


def _modifiers() -> Case:
    """Cache operators, eviction hints, policies, volatile, acquire and release: all of them move the same bytes."""
    loads = ("ld.global.nc.b32", "ld.global.ca.b32", "ld.global.cg.b32", "ld.global.cs.b32", "ld.global.cv.b32", "ld.volatile.global.b32",
             "ld.relaxed.gpu.global.b32", "ld.acquire.gpu.global.b32", "ld.acquire.sys.global.b32", "ld.global.nc.L1::no_allocate.b32",
             "ld.global.L1::evict_last.b32", "ld.global.nc.L1::no_allocate.L2::128B.b32", "ld.weak.global.b32", "ld.global.L2::256B.b32")  # fmt: skip
    stores = ("st.global.wb.b32", "st.global.cg.b32", "st.global.cs.b32", "st.global.wt.b32", "st.volatile.global.b32", "st.relaxed.gpu.global.b32",
              "st.release.gpu.global.b32", "st.global.L1::no_allocate.b32", "st.weak.global.b32")  # fmt: skip
    body = [
        ".reg .b64 policy, first;\ncreatepolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
        "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 first, 0.5;",
        "mul.wide.u32 %rd0, tid, 4;\nadd.u64 P0, P0, %rd0;\nadd.u64 P1, P1, %rd0;\n"
        "mov.u32 %r1, 0;\nprefetch.global.L2 [P0];\nprefetch.global.L1 [P0];\n"
        "prefetchu.L1 [P0];",
    ]
    for i, op in enumerate(loads):
        body.append(f"{op} %r0, [P0+{128 * i}];\nmad.lo.u32 %r1, %r1, 3, %r0;")
    body.append(
        "ld.global.L2::cache_hint.b32 %r0, [P0+128], policy;\nmad.lo.u32 %r1, %r1, 3, %r0;\n"
        "ld.global.nc.L1::no_allocate.L2::cache_hint.v1.b32 %r0, [P0+256], first;".replace(".v1", "")
    )
    for i, op in enumerate(stores):
        body.append(f"add.u32 %r2, %r1, {i};\n{op} [P1+{128 * i}], %r2;")
    body.append(
        "st.global.L2::cache_hint.b32 [P1+1152], %r1, policy;\nmembar.gl;\nmembar.cta;\n"
        "membar.sys;\nfence.acq_rel.gpu;\nfence.sc.cta;\nfence.proxy.async;\n"
        "nanosleep.u32 20;"
    )

    def inputs() -> list[Arg]:
        return _sources("modifiers", 32 * len(loads), 320)

    return Case("memory/modifiers", kernel("ptr ptr", "\n".join(body)), inputs, {1: ()})


def _constants() -> Case:
    """Initialised .const and .global arrays, their addresses in data, and static shared memory beside dynamic."""
    header = (
        ".const .align 4 .b32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};\n"
        ".const .align 8 .b8 bytes[8] = {255, 2, 128, 4};\n"
        ".global .align 4 .b32 numbers[4] = {10, 20, 30, 40};\n"
        ".global .align 4 .f32 single = 0f3FC00000;\n"
        ".global .align 8 .u64 where = generic(numbers);\n"
        ".shared .align 16 .b8 fixed[256];"
    )
    body = [
        "and.b32 %r0, tid, 7;\nmul.wide.u32 %rd1, %r0, 4;\nmov.u64 %rd2, table;\n"
        "add.u64 %rd2, %rd2, %rd1;\nld.const.u32 %r1, [%rd2];\nld.const.s8 %r2, [bytes];\n"
        "ld.const.u16 %r3, [bytes+2];",
        "ld.global.u64 %rd3, [where];\nld.u32 %r4, [%rd3+8];\nld.global.b32 %r5, [single];\n"
        "ld.global.u32 %r6, [numbers+12];",
        "mul.lo.u32 %r9, tid, 4;\nmov.u32 %r7, fixed;\nadd.u32 %r7, %r7, %r9;\n"
        "st.shared.u32 [%r7], %r1;\nadd.u32 %r8, smem, %r9;\nst.shared.u32 [%r8], %r6;\n"
        "bar.warp.sync -1;\nxor.b32 %r9, %r9, 4;\nmov.u32 %r7, fixed;\n"
        "add.u32 %r7, %r7, %r9;\nld.shared.u32 %r7, [%r7];\nld.shared.u32 %r8, [%r8];",
        "mul.wide.u32 %rd1, tid, 32;\nadd.u64 %rd1, %rd1, P0;\n"
        "st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};\n"
        "st.global.v4.b32 [%rd1+16], {%r5, %r6, %r7, %r8};",
    ]

    def inputs() -> list[Arg]:
        return [np.zeros((32, 8), dtype=np.uint32)]

    return Case(
        "memory/constants", kernel("ptr", "\n".join(body), header=header), inputs, {0: ()}, shared_bytes=128
    )


def _locals() -> Case:
    """A local array with an index that differs by lane."""
    body = [".local .align 4 .b8 buffer[64];\n.reg .b64 l;\nmov.u64 l, buffer;"]
    body += [
        f"mad.lo.u32 %r0, tid, {i + 1}, {i * i};\nst.local.u32 [buffer+{4 * i}], %r0;" for i in range(16)
    ]
    body.append(
        "mul.lo.u32 %r1, tid, 7;\nand.b32 %r1, %r1, 15;\nmul.wide.u32 %rd1, %r1, 4;\n"
        "add.u64 l, l, %rd1;\nld.local.u32 %r2, [l];\n"
        "mul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd1, %rd1, P0;\nst.global.u32 [%rd1], %r2;"
    )

    def inputs() -> list[Arg]:
        return [np.zeros(64, dtype=np.uint32)]

    return Case("memory/local", kernel("ptr", "\n".join(body)), inputs, {0: ()}, block=(64, 1, 1))


def _parameters() -> Case:
    """Scalars of several sizes by value."""
    body = (
        "mul.wide.u32 %rd1, tid, 16;\nadd.u64 %rd1, %rd1, P1;\nadd.u32 %r0, S0, tid;\n"
        "st.global.u32 [%rd1], %r0;\ncvt.u64.u32 %rd2, tid;\n"
        "add.u64 %rd2, %rd2, S2;\nst.global.u64 [%rd1+8], %rd2;\n"
        "ld.param.u16 %r1, [arg2+6];\nld.param.s8 %r2, [arg0+3];\nadd.u32 %r1, %r1, %r2;\n"
        "st.global.u32 [%rd1+4], %r1;"
    )

    def inputs() -> list[Arg]:
        return [np.uint32(0x89ABCDEF), np.zeros((32, 4), dtype=np.uint32), np.uint64(0xFEDCBA9876543210)]

    return Case("memory/parameters", kernel("u32 ptr u64", body), inputs, {1: ()})


def _calls() -> Case:
    """Device functions: parameters by value, two results through memory, divergent calls, a call in a loop."""
    header = (
        ".func (.param .b32 result) mix(.param .b32 x, .param .b64 y)\n{\n"
        ".reg .b32 a, b, c;\n.reg .b64 d;\nld.param.b32 a, [x];\nld.param.b64 d, [y];\n"
        "mov.b64 {b, c}, d;\nmad.lo.u32 a, a, b, c;\nst.param.b32 [result], a;\nret;\n}\n"
        ".func (.param .b32 result) early(.param .b32 x)\n{\n.reg .b32 a;\n.reg .pred q;\n"
        "ld.param.b32 a, [x];\nsetp.gt.u32 q, a, 20;\n@!q bra SMALL;\n"
        "st.param.b32 [result], 77;\nret;\nSMALL:\nadd.u32 a, a, 1;\nst.param.b32 [result], a;\nret;\n}"
    )
    call_mix = (
        "{\n.param .b32 x;\n.param .b64 y;\n.param .b32 r;\nst.param.b32 [x], %r1;\n"
        "st.param.b64 [y], %rd1;\ncall.uni (r), mix, (x, y);\nld.param.b32 %r1, [r];\n}"
    )
    call_early = (
        "{\n.param .b32 x;\n.param .b32 r;\nst.param.b32 [x], tid;\ncall (r), early, (x);\n"
        "ld.param.b32 %r2, [r];\n}"
    )
    body = [
        "mov.u32 %r1, tid;\nmov.u32 %r3, 0;\nmov.b64 %rd1, {tid, gtid};\nMORE:",
        call_mix,
        "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 4;\n@%p1 bra MORE;\nmov.u32 %r2, 5;\n"
        "and.b32 %r4, tid, 1;\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra SKIP;",
        call_early,
        "SKIP:\nbar.warp.sync -1;\nmul.wide.u32 %rd2, tid, 8;\nadd.u64 %rd2, %rd2, P0;\n"
        "st.global.v2.b32 [%rd2], {%r1, %r2};",
    ]

    def inputs() -> list[Arg]:
        return [np.zeros((32, 2), dtype=np.uint32)]

    return Case("memory/calls", kernel("ptr", "\n".join(body), header=header), inputs, {0: ()})


def _grid() -> Case:
    """Three-dimensional blocks and grids, partial warps."""
    body = [
        "mov.u32 %r0, %tid.y;\nmov.u32 %r1, %tid.z;\nmov.u32 %r2, %ntid.x;\n"
        "mov.u32 %r3, %ntid.y;\nmov.u32 %r4, %ntid.z;\nmad.lo.u32 %r5, %r1, %r3, %r0;\n"
        "mad.lo.u32 %r5, %r5, %r2, tid;",
        "mov.u32 %r6, %ctaid.y;\nmov.u32 %r7, %ctaid.z;\nmov.u32 %r8, %nctaid.x;\n"
        "mov.u32 %r9, %nctaid.y;\nmad.lo.u32 %r10, %r7, %r9, %r6;\n"
        "mad.lo.u32 %r10, %r10, %r8, cta;",
        "mul.lo.u32 %r11, %r2, %r3;\nmul.lo.u32 %r11, %r11, %r4;\n"
        "mad.lo.u32 %r12, %r10, %r11, %r5;\nmul.wide.u32 %rd1, %r12, 16;\n"
        "add.u64 %rd1, %rd1, P0;",
        "mov.u32 %r13, %laneid;\nshl.b32 %r14, %r6, 8;\nor.b32 %r14, %r14, %r7;\n"
        "activemask.b32 %r15;\nst.global.v4.b32 [%rd1], {%r13, %r14, %r15, %r5};",
    ]

    def inputs() -> list[Arg]:
        return [np.zeros((12 * 45, 4), dtype=np.uint32)]

    return Case("memory/grid", kernel("ptr", "\n".join(body)), inputs, {0: ()}, (2, 3, 2), (5, 3, 3))


def _dependent() -> Case:
    """griddepcontrol in a launch without programmatic dependence, setmaxnreg in a warpgroup-specialised block."""
    body = [
        "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n"
        "setp.lt.u32 %p1, tid, 128;\n@%p1 bra PRODUCER;",
        "setmaxnreg.inc.sync.aligned.u32 200;\nmul.lo.u32 %r1, tid, 3;\nbra JOIN;\n"
        "PRODUCER:\nsetmaxnreg.dec.sync.aligned.u32 40;\nmul.lo.u32 %r1, tid, 5;\nJOIN:",
        "mul.wide.u32 %rd1, tid, 4;\nadd.u64 %rd1, %rd1, P0;\nst.global.u32 [%rd1], %r1;",
    ]
    ptx = kernel("ptr", "\n".join(body)).replace("arg0)\n{", "arg0)\n.maxntid 256, 1, 1\n.maxnreg 128\n{")

    def inputs() -> list[Arg]:
        return [np.zeros(256, dtype=np.uint32)]

    return Case("memory/warpgroups", ptx, inputs, {0: ()}, block=(256, 1, 1))


def _registers_moved() -> Case:
    """mov and ld of immediates: hexadecimal, octal, binary, negative and float."""
    values = ("0xFFFFFFFF", "0777", "0b1011", "-5", "4294967295", "0x10U", "0f3F99999A")
    body = ["mul.wide.u32 %rd1, tid, 64;\nadd.u64 %rd1, %rd1, P0;"]
    body += [f"mov.b32 %r1, {v};\nst.global.b32 [%rd1+{4 * i}], %r1;" for i, v in enumerate(values)]
    body.append(
        "mov.f32 %f1, 0f40490FDB;\nmov.b32 %r1, %f1;\nst.global.b32 [%rd1+40], %r1;\n"
        "mov.f64 %fd1, 0d400921FB54442D18;\nst.global.f64 [%rd1+48], %fd1;\n"
        "mov.f32 %f2, 1.25;\nst.global.f32 [%rd1+56], %f2;"
    )

    def inputs() -> list[Arg]:
        return [np.zeros((32, 16), dtype=np.uint32)]

    return Case("memory/immediates", kernel("ptr", "\n".join(body)), inputs, {0: ()})
