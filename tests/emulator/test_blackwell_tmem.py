"""Tensor memory: shapes of tcgen05.ld and st, allocation, and the checkers of its accesses."""

from __future__ import annotations

import numpy as np
import pytest

from swordfish.emulator import run
from tests.emulator.blackwell_ptx import fill, launch, registers, tmem_kernel, write_out

# (thread, value) -> bit in the fragment of 16 lanes, as shape:stride pairs; a lane has `bits` bits. The
# layouts are those that CUTLASS gives for its tensor memory load atoms
# (include/cute/atom/copy_traits_sm100.hpp).
FRAGMENTS = {
    "16x64b": (64, ((2, 512), (2, 32), (8, 64)), ()),
    "16x128b": (128, ((4, 32), (8, 128)), ((2, 1024),)),
    "16x256b": (256, ((4, 64), (8, 256)), ((2, 32), (2, 2048))),
}
REGS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}


def coordinate(index: int, modes: tuple[tuple[int, int], ...]) -> int:
    """Offset of a linear index in a layout of (shape, stride) modes."""
    total = 0
    for size, stride in modes:
        total += index % size * stride
        index //= size
    return total


def expected(shape: str, repeats: int, inner: int) -> np.ndarray:
    """``lane * 1000 + column`` for register r of thread t of four warps: array [128, registers]."""
    out = np.zeros((128, repeats * REGS[shape]), np.int32)
    for t in range(128):
        for r in range(out.shape[1]):
            lane, thread = t // 32 * 32, t % 32
            if shape == "32x32b":
                row, column = thread, r
            else:
                bits, threads, values = FRAGMENTS[shape]
                bit = coordinate(thread, threads) + coordinate(r % REGS[shape], values)
                row, column = inner + bit // bits, bit % bits // 32 + r // REGS[shape] * (bits // 32)
            out[t, r] = (lane + row) * 1000 + column
    return out


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b"])
@pytest.mark.parametrize("repeats", [1, 4, 16])
@pytest.mark.parametrize("inner", [0, 16])
def test_load_and_store_shapes(shape: str, repeats: int, inner: int) -> None:
    """A load finds each element where the fragment's layout says, and a store puts it back there."""
    if shape == "32x32b" and inner:
        inner = 0
    count = repeats * REGS[shape]
    columns = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape] * repeats
    at = f"add.s32 %y, %tm, {inner << 16};"
    load = f"{at}\ntcgen05.ld.sync.aligned.{shape}.x{repeats}.b32 {registers('r', count)}, [%y];"
    back = (
        f"add.s32 %y, %y, 256;\ntcgen05.st.sync.aligned.{shape}.x{repeats}.b32 [%y], {registers('r', count)};"
    )
    again = load.replace(at, f"{at}\nadd.s32 %y, %y, 256;")
    body = "\n".join(
        [
            fill(max(8, columns)),
            load,
            "tcgen05.wait::ld.sync.aligned;",
            back,
            "tcgen05.wait::st.sync.aligned;",
            again,
            "tcgen05.wait::ld.sync.aligned;",
            write_out(count),
        ]
    )
    out = np.zeros((128, count), np.int32)
    for seed in range(2):
        run(tmem_kernel(body), "kernel", [out], launch(), arch="sm_100a", seed=seed).raise_on_findings()
        np.testing.assert_array_equal(out, expected(shape, repeats, inner))


def test_pack_and_unpack() -> None:
    """``pack::16b`` joins the low halves of two columns; ``unpack::16b`` spreads a register over two
    columns.
    """
    body = "\n".join(
        [
            fill(8),
            "tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%r0, %r1}, [%tm];",
            "tcgen05.wait::ld.sync.aligned;",
            "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%tm], {%r0, %r1};",
            "tcgen05.wait::st.sync.aligned;",
            "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r2, %r3, %r4, %r5}, [%tm];",
            "tcgen05.wait::ld.sync.aligned;",
            write_out(6),
        ]
    )
    out = np.zeros((128, 6), np.uint32)
    run(tmem_kernel(body), "kernel", [out], launch(), arch="sm_100a").raise_on_findings()
    low = (np.arange(128, dtype=np.uint32)[:, None] * 1000 + np.arange(4, dtype=np.uint32)) & 0xFFFF
    np.testing.assert_array_equal(out[:, :2], low[:, ::2] | low[:, 1::2] << 16)
    np.testing.assert_array_equal(out[:, 2:], low)


def test_half_split_load() -> None:
    """``16x32bx2`` gives threads 16-31 the columns behind the split offset."""
    load = "tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r0, %r1}, [%tm], 4;"
    body = "\n".join([fill(8), load, "tcgen05.wait::ld.sync.aligned;", write_out(2)])
    out = np.zeros((128, 2), np.int32)
    run(tmem_kernel(body), "kernel", [out], launch(), arch="sm_100a").raise_on_findings()
    t = np.arange(128)
    lane, column = t // 32 * 32 + t % 16, t % 32 // 16 * 4
    np.testing.assert_array_equal(out, (lane * 1000 + column)[:, None] + np.arange(2))


LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%tm];\ntcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize(
    ("body", "free", "kind"),
    [
        (LOAD, True, "tmem uninitialised"),
        (fill(8) + LOAD, False, "tmem leak"),
        (fill(8) + LOAD.replace("[%tm]", "[%tm+600]"), True, "tmem bounds"),
        (fill(8) + "xor.b32 %tm, %tm, 0x600000;\n" + LOAD, True, "tmem lane"),
        (fill(8).replace("tcgen05.wait::st.sync.aligned;", "") + LOAD, True, "tmem race"),
    ],
)
def test_defects_are_named(body: str, free: bool, kind: str) -> None:
    """Each misuse of tensor memory is a finding of its own kind, whatever the schedule."""
    out = np.zeros(128, np.int32)
    for seed in range(4):
        report = run(tmem_kernel(body, free=free), "kernel", [out], launch(), arch="sm_100a", seed=seed)
        assert kind in report.kinds(), report.findings


def test_access_outside_the_allocation() -> None:
    """Columns that were not allocated are named."""
    body = fill(8).replace("[%y]", "[%y+64]")
    out = np.zeros(128, np.int32)
    report = run(tmem_kernel(body, columns=64), "kernel", [out], launch(), arch="sm_100a")
    assert report.kinds() == {"tmem unallocated"}


def test_allocation_waits_for_room() -> None:
    """A second allocation blocks until the first is freed; without that the report is a deadlock naming
    it.
    """
    more = "@%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 256;"
    report = run(tmem_kernel(more), "kernel", [np.zeros(128, np.int32)], launch(), arch="sm_100a")
    assert "deadlock" in report.kinds()
    assert "tcgen05.alloc of 256 columns (0 free)" in report.findings[-1].text
    freed = "bar.sync 0;\n@%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;\n" + more.replace(
        "256", "512"
    )
    run(tmem_kernel(freed), "kernel", [np.zeros(128, np.int32)], launch(), arch="sm_100a").raise_on_findings()
