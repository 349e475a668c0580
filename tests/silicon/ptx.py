"""PTX text around the instruction under test: module header, parameters, indices, and waits that cannot hang.

A kernel body may use the registers ``tid lane warp cta gtid`` (32 bits), ``P0, P1, ...`` (64-bit global addresses, one for
each pointer parameter, numbered over all parameters), ``S0, ...`` (scalars), ``T0, ...`` (generic addresses of tensor
maps), ``smem`` (the shared address of the dynamic shared memory) and the scratch registers %p %rs %r %rd %f %fd.
"""

from __future__ import annotations

__all__ = ["copy_in", "copy_out", "kernel", "mbarrier_wait", "registers", "thread0"]

_SCALARS = {"u32": "u32", "u64": "u64"}


def kernel(params: str, body: str, *, header: str = "") -> str:
    """A module with one entry, ``kernel``. ``params`` is a list of words: ``ptr``, ``u32``, ``u64`` or ``map``."""
    declared, loads = [], []
    for i, kind in enumerate(params.split()):
        if kind == "map":
            declared.append(f".param .align 64 .b8 arg{i}[128]")
            loads.append(f".reg .b64 T{i};\nmov.b64 T{i}, arg{i};\ncvta.param.u64 T{i}, T{i};")
        elif kind == "ptr":
            declared.append(f".param .u64 arg{i}")
            loads.append(f".reg .b64 P{i};\nld.param.u64 P{i}, [arg{i}];\ncvta.to.global.u64 P{i}, P{i};")
        else:
            size = _SCALARS[kind][1:]
            declared.append(f".param .{kind} arg{i}")
            loads.append(f".reg .b{size} S{i};\nld.param.{kind} S{i}, [arg{i}];")
    return "\n".join(
        [
            ".version 8.6",
            ".target sm_90a",
            ".address_size 64",
            ".extern .shared .align 1024 .b8 dynamic[];",
            header,
            f".visible .entry kernel({', '.join(declared)})",
            "{",
            ".reg .pred %p<16>;\n.reg .b16 %rs<32>;\n.reg .b32 %r<80>;\n.reg .b64 %rd<40>;\n"
            ".reg .f32 %f<140>;\n.reg .f64 %fd<16>;",
            ".reg .b32 tid, lane, warp, cta, gtid, smem;",
            *loads,
            "mov.u32 tid, %tid.x;\nmov.u32 cta, %ctaid.x;\nmov.u32 gtid, %ntid.x;\n"
            "mad.lo.u32 gtid, cta, gtid, tid;",
            "and.b32 lane, tid, 31;\nshr.u32 warp, tid, 5;\nmov.u32 smem, dynamic;",
            body,
            "ret;",
            "}",
            "",
        ]
    )


def thread0(body: str) -> str:
    """Run ``body`` in the first thread of the CTA, then meet."""
    return f"{{\n.reg .pred q;\nsetp.ne.u32 q, tid, 0;\n@q bra SKIP;\n{body}\nSKIP:\nbar.sync 0;\n}}"


def mbarrier_wait(address: str, parity: int | str) -> str:
    """Wait for a phase; trap (an error, never a hang) where it does not come."""
    return f"""{{
.reg .pred q;
.reg .b32 tries;
mov.u32 tries, 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 q, [{address}], {parity};
@q bra DONE;
add.u32 tries, tries, 1;
setp.lt.u32 q, tries, 20000;
@q bra WAIT;
trap;
DONE:
}}"""


def copy_in(pointer: str, count: int, threads: int, *, shared: str = "smem") -> str:
    """Copy ``count`` 32-bit words from global to shared memory with ``threads`` threads (no barrier after it)."""
    return _copy(pointer, count, threads, shared, "ld.global.b32 v, [g];\nst.shared.b32 [s], v;")


def copy_out(pointer: str, count: int, threads: int, *, shared: str = "smem") -> str:
    """Copy ``count`` 32-bit words from shared to global memory with ``threads`` threads (no barrier before it)."""
    return _copy(pointer, count, threads, shared, "ld.shared.b32 v, [s];\nst.global.b32 [g], v;")


def _copy(pointer: str, count: int, threads: int, shared: str, move: str) -> str:
    return f"""{{
.reg .b32 i, s, v;
.reg .b64 g;
.reg .pred q;
mov.u32 i, tid;
LOOP:
setp.ge.u32 q, i, {count};
@q bra END;
mul.wide.u32 g, i, 4;
add.u64 g, g, {pointer};
shl.b32 s, i, 2;
add.u32 s, s, {shared};
{move}
add.u32 i, i, {threads};
bra LOOP;
END:
}}"""


def registers(prefix: str, count: int, start: int = 0) -> str:
    """``{%f0, %f1, ...}``"""
    return "{" + ", ".join(f"{prefix}{start + i}" for i in range(count)) + "}"
