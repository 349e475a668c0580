"""Small tcgen05 kernels as PTX text, for the tests of the emulator's Blackwell instructions."""

from __future__ import annotations

from types import SimpleNamespace

HEADER = ".version 8.7\n.target sm_100a\n.address_size 64\n"


def registers(name: str, count: int) -> str:
    """``{%name0, %name1, ...}``."""
    return "{" + ", ".join(f"%{name}{k}" for k in range(count)) + "}"


def launch(threads: int = 128, cluster: int = 1, shared_bytes: int = 0, clusters: int = 1) -> SimpleNamespace:
    """A one-dimensional launch of ``clusters`` clusters."""
    return SimpleNamespace(
        grid=(cluster * clusters, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=shared_bytes,
    )


def tmem_kernel(body: str, *, free: bool = True, columns: int = 512, decls: str = "") -> str:
    """A kernel of 4 warps that allocates tensor memory around ``body``.

    ``body`` may use ``%tm`` (tensor memory address with the warp's lane), ``%base`` (without it),
    ``%out`` (the 64-bit pointer argument), ``%t`` (thread), ``%lane`` and ``%w`` (warp).
    """
    dealloc = f"@%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, {columns};" if free else ""
    return f"""{HEADER}
.visible .entry kernel(.param .u64 kernel_out) {{
.reg .pred %first, %p, %q;
.reg .b32 %t, %w, %lane, %tm, %base, %slot, %x, %y, %r<600>, %v<256>;
.reg .b64 %out, %addr, %wide, %rd<64>;
{decls}
.shared .align 4 .b32 address;
ld.param.u64 %out, [kernel_out];
cvta.to.global.u64 %out, %out;
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
and.b32 %lane, %t, 31;
mov.u32 %slot, address;
setp.eq.u32 %first, %w, 0;
@%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], {columns};
bar.sync 0;
ld.shared.b32 %base, [%slot];
shl.b32 %tm, %w, 21;
add.s32 %tm, %tm, %base;
{body}
bar.sync 0;
{dealloc}
ret;
}}
"""


def fill(columns: int) -> str:
    """Write ``lane * 1000 + column`` (lane of tensor memory) to the first columns, a multiple of 8 of
    them.
    """
    out = ["mul.lo.s32 %x, %t, 1000;"]
    for c in range(0, columns, 8):
        out += [f"add.s32 %v{k}, %x, {c + k};" for k in range(8)]
        out += [f"add.s32 %y, %tm, {c};", f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%y], {registers('v', 8)};"]
    return "\n".join([*out, "tcgen05.wait::st.sync.aligned;"])


def write_out(count: int) -> str:
    """Store registers ``%r0..`` of each thread to ``out[thread][count]``."""
    out = [f"mul.wide.u32 %wide, %t, {4 * count};", "add.s64 %addr, %out, %wide;"]
    return "\n".join([*out, *(f"st.global.b32 [%addr+{4 * k}], %r{k};" for k in range(count))])
