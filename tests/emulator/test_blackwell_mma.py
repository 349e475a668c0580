"""tcgen05.mma on operands laid out by the descriptors' rules: swizzles, majorness, shapes, kinds,
operand A in TMEM.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swordfish.emulator import Report, run
from swordfish.emulator.descriptors import InstructionDescriptor, MatrixDescriptor
from swordfish.errors import ArgumentError
from tests.emulator.blackwell_ptx import HEADER, launch, registers

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
    "tf32": torch.float32,
}
SMEM = 0x400  # first byte of a CTA's shared window
OPERAND_BYTES = 16384


def kernel(
    desc_a: int, desc_b: int, idesc: int, columns: int, *, kind: str, a_in_tmem: bool = False, extra: str = ""
) -> str:
    """One MMA: bytes ``data`` go to shared memory as they are, the accumulator's lanes and columns come
    back in ``out``.
    """
    st = [f"ld.global.b32 %v{k}, [%row+{4 * k}];" for k in range(8)]
    to_tmem = "\n".join(
        [
            "mul.wide.u32 %wide, %t, 32;",
            "add.s64 %row, %data, %wide;",
            *st,
            f"add.s32 %y, %tm, 256;\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%y], {registers('v', 8)};",
            "tcgen05.wait::st.sync.aligned;",
        ]
    )
    load = "\n".join(
        f"add.s32 %y, %tm, {c};\n"
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers('r', 8)}, [%y];\ntcgen05.wait::ld.sync.aligned;\n"
        + "\n".join(f"st.global.b32 [%addr+{4 * (c + k)}], %r{k};" for k in range(8))
        for c in range(0, columns, 8)
    )
    a = "[%y]" if a_in_tmem else "%da"
    return f"""{HEADER}
.visible .entry kernel(.param .u64 p0, .param .u64 p1) {{
.reg .pred %first, %p, %zero;
.reg .b32 %t, %w, %tm, %base, %x, %y, %sm, %idesc, %r<16>, %v<16>;
.reg .b64 %data, %out, %addr, %row, %wide, %da, %db;
.shared .align 1024 .b8 operands[{2 * OPERAND_BYTES}];
.shared .align 8 .b64 bar;
.shared .align 4 .b32 slot;
ld.param.u64 %data, [p0];
ld.param.u64 %out, [p1];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
setp.eq.u32 %first, %w, 0;
setp.eq.u32 %p, %t, 0;
mov.u32 %x, bar;
@%p mbarrier.init.shared::cta.b64 [%x], 1;
@%p fence.mbarrier_init.release.cluster;
mov.u32 %x, slot;
@%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%x], 512;
mov.u32 %sm, operands;
shl.b32 %y, %t, 2;
COPY:
cvt.u64.u32 %wide, %y;
add.s64 %row, %data, %wide;
ld.global.b32 %r0, [%row];
add.s32 %x, %sm, %y;
st.shared.b32 [%x], %r0;
add.s32 %y, %y, 512;
setp.lt.u32 %zero, %y, {2 * OPERAND_BYTES};
@%zero bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
ld.shared.b32 %base, [slot];
shl.b32 %tm, %w, 21;
add.s32 %tm, %tm, %base;
{to_tmem if a_in_tmem else ""}
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
mov.b64 %da, {desc_a};
mov.b64 %db, {desc_b};
mov.b32 %idesc, {idesc};
setp.ne.u32 %zero, 0, 0;
add.s32 %y, %base, 256;
mov.u32 %x, bar;
@!%p bra DONE;
tcgen05.mma.cta_group::1.kind::{kind} [%base], {a}, %db, %idesc, {extra} %zero;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%x];
DONE:
mbarrier.try_wait.parity.shared::cta.b64 %zero, [%x], 0;
@!%zero bra DONE;
bar.warp.sync -1;
tcgen05.fence::after_thread_sync;
mul.wide.u32 %wide, %t, {4 * columns};
add.s64 %addr, %out, %wide;
{load}
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;
ret;
}}
"""


def values(rows: int, depth: int, name: str, seed: int) -> torch.Tensor:
    """Small numbers that every operand type holds exactly."""
    g = torch.Generator().manual_seed(seed)
    low = 0 if name == "u8" else -4
    return torch.randint(low, 5, (rows, depth), generator=g).to(DTYPES[name])


def lay_out(data: np.ndarray, x: torch.Tensor, d: MatrixDescriptor, mn_major: bool) -> None:
    """Write an operand into the shared-memory image where the descriptor says its elements are."""
    raw = x.contiguous().view(torch.uint8).numpy().reshape(*x.shape, x.element_size())
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            at = d.address(i, k, x.element_size(), mn_major=mn_major) - SMEM
            data[at : at + x.element_size()] = raw[i, k]


def multiply(
    m: int,
    n: int,
    name: str,
    *,
    kind: str = "f16",
    swizzle: int = 2,
    a_mn: bool = False,
    b_mn: bool = False,
    base_offset: int = 0,
    a_in_tmem: bool = False,
    extra: str = "",
) -> tuple[Report, np.ndarray, np.ndarray]:
    """Run one MMA; the report, the accumulator as ``[lane, column]`` bits, and the exact product."""
    depth = 32 // DTYPES[name].itemsize
    a, b = values(m, depth, name, 1), values(n, depth, name, 2)
    steps = {0: (128, 256), 6: (256, 256), 4: (512, 512), 2: (1024, 1024)}[swizzle]
    leading, stride = steps if a_mn or b_mn else ((1024 * 2, 128) if swizzle == 0 else (16, steps[1]))
    if swizzle == 0 and not (a_mn or b_mn):
        leading, stride = OPERAND_BYTES // 2, 128
    if a_mn or b_mn:  # blocks of a swizzled row along M or N, 8 rows of K behind each other
        row = {0: 16, 6: 32, 4: 64, 2: 128}[swizzle]
        leading, stride = (8192, 128) if swizzle == 0 else (8 * row * (depth // 8), 8 * row)
    da = MatrixDescriptor(SMEM, leading, stride, swizzle, base_offset)
    db = MatrixDescriptor(SMEM + OPERAND_BYTES, leading, stride, swizzle, base_offset)
    data = np.zeros(2 * OPERAND_BYTES, np.uint8)
    if a_in_tmem:
        data[: m * 32] = a.contiguous().view(torch.uint8).numpy().reshape(-1)
    else:
        lay_out(data, a, da, a_mn)
    lay_out(data, b, db, b_mn)
    d_type = "s32" if kind == "i8" else "f32"
    idesc = InstructionDescriptor(kind, m, n, d_type, name, name, a_mn_major=a_mn, b_mn_major=b_mn)
    text = kernel(da.encode(), db.encode(), idesc.encode(), n, kind=kind, a_in_tmem=a_in_tmem, extra=extra)
    out = np.zeros((128, n), np.uint32)
    report = run(text, "kernel", [data, out], launch(), arch="sm_100a", tcgen05_fences=True)
    return report, out, (a.float() @ b.float().T).numpy()


def numbers(out: np.ndarray, kind: str) -> np.ndarray:
    """Accumulator bits as numbers."""
    return out.view(np.int32 if kind == "i8" else np.float32).astype(np.float32)


@pytest.mark.parametrize("swizzle", [0, 6, 4, 2])
@pytest.mark.parametrize(("a_mn", "b_mn"), [(False, False), (True, True)])
def test_swizzles_and_majorness(swizzle: int, a_mn: bool, b_mn: bool) -> None:
    """Every swizzle, K-major and MN-major."""
    report, out, exact = multiply(128, 32, "bf16", swizzle=swizzle, a_mn=a_mn, b_mn=b_mn)
    report.raise_on_findings()
    np.testing.assert_array_equal(numbers(out, "f16"), exact)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("f16", "f16"), ("f8f6f4", "e4m3"), ("f8f6f4", "e5m2"), ("i8", "s8"), ("i8", "u8"), ("tf32", "tf32")],
)
def test_kinds(kind: str, name: str) -> None:
    """Operand types of each kind."""
    report, out, exact = multiply(128, 64, name, kind=kind)
    report.raise_on_findings()
    np.testing.assert_array_equal(numbers(out, kind), exact)


def test_m64_uses_16_lanes_of_each_quarter() -> None:
    """M=64: row r is on lane 32 * (r / 16) + r % 16 (data path F)."""
    report, out, exact = multiply(64, 32, "f16")
    assert report.kinds() == {"tmem uninitialised"}, (
        "the other lanes were never written, and the test reads them"
    )
    rows = np.arange(64)
    np.testing.assert_array_equal(numbers(out, "f16")[rows // 16 * 32 + rows % 16], exact)


def test_operand_a_in_tensor_memory() -> None:
    """A's 16 elements of K lie in 8 columns of the row's lane."""
    report, out, exact = multiply(128, 64, "bf16", a_in_tmem=True)
    report.raise_on_findings()
    np.testing.assert_array_equal(numbers(out, "f16"), exact)


def test_disabled_lanes_keep_their_value() -> None:
    """Lanes named by disable-output-lane are not written."""
    report, out, exact = multiply(128, 32, "f16", extra="{-1, 0, 0, 1},")
    assert report.kinds() <= {"tmem uninitialised"}
    got = numbers(out, "f16")
    np.testing.assert_array_equal(got[32:96], exact[32:96])
    np.testing.assert_array_equal(got[97:], exact[97:])
    assert np.isnan(got[:32]).all() and np.isnan(got[96]).all()


@pytest.mark.parametrize(
    ("bits", "text"),
    [(1 << 61, "bits 46-48 are 0"), (1 << 46 | 3 << 61, "swizzle 3"), (1 << 46 | 1 << 52, "absolute")],
)
def test_malformed_matrix_descriptor(bits: int, text: str) -> None:
    """A descriptor that the ISA does not allow is named."""
    idesc = InstructionDescriptor("f16", 128, 32, "f32", "f16", "f16").encode()
    report = run(
        kernel(bits, bits, idesc, 32, kind="f16"),
        "kernel",
        [np.zeros(2 * OPERAND_BYTES, np.uint8), np.zeros((128, 32), np.uint32)],
        launch(),
        arch="sm_100a",
    )
    assert any(f.kind == "tcgen05 descriptor" and text in f.text for f in report.findings), report.findings


@pytest.mark.parametrize(("m", "n"), [(96, 32), (128, 24), (128, 0)])
def test_shape_that_does_not_exist(m: int, n: int) -> None:
    """M and N outside the ISA's table are named."""
    good = MatrixDescriptor(SMEM, 16, 1024, 2).encode()
    idesc = InstructionDescriptor("f16", m, n, "f32", "f16", "f16").encode()
    report = run(
        kernel(good, good, idesc, 32, kind="f16"),
        "kernel",
        [np.zeros(2 * OPERAND_BYTES, np.uint8), np.zeros((128, 32), np.uint32)],
        launch(),
        arch="sm_100a",
    )
    assert any(f.kind == "tcgen05 descriptor" and f"M={m}, N={n}" in f.text for f in report.findings), (
        report.findings
    )


def test_descriptors_round_trip() -> None:
    """encode and decode are inverse, and malformed bits raise."""
    d = MatrixDescriptor(0x4400, 16, 1024, 2, 3)
    assert MatrixDescriptor.decode(d.encode()) == d
    i = InstructionDescriptor("f8f6f4", 256, 192, "f32", "e4m3", "e5m2", b_mn_major=True)
    assert InstructionDescriptor.decode(i.encode(), "f8f6f4") == i
    with pytest.raises(ArgumentError, match="46-48"):
        MatrixDescriptor.decode(0)
    with pytest.raises(ArgumentError, match="kind"):
        InstructionDescriptor.decode(0, "f4")
