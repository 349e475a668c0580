"""tcgen05.cp and shift, and clusterlaunchcontrol."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from swordfish.emulator import run
from swordfish.emulator.descriptors import MatrixDescriptor
from tests.emulator.blackwell_ptx import HEADER, launch, registers, tmem_kernel, write_out

DECLS = ".shared .align 1024 .b8 source[4096];\n.shared .align 8 .b64 bar;"
# Rows of the source that each lane of tensor memory gets.
ROWS = {
    "128x256b": np.arange(128),
    "128x128b": np.arange(128),
    "64x128b.warpx2::02_13": np.arange(128) % 64,
    "64x128b.warpx2::01_23": np.arange(128) // 64 * 32 + np.arange(128) % 32,
    "32x128b.warpx4": np.arange(128) % 32,
}


def body(instructions: str, columns: int) -> str:
    """Thread t writes 32 bytes (words 8 t to 8 t + 7) as row t of an unswizzled K-major matrix; thread 0
    then runs ``instructions`` and commits, and every thread returns its lane.
    """
    stores = [
        f"add.s32 %y, %x, {k};\nst.shared.b32 [%r1+{4 * (k % 4) + 2048 * (k // 4)}], %y;" for k in range(8)
    ]
    lines = [
        "mov.u32 %r0, bar;\nsetp.eq.u32 %p, %t, 0;",
        "@%p mbarrier.init.shared::cta.b64 [%r0], 1;\n@%p fence.mbarrier_init.release.cluster;",
        "mov.u32 %r1, source;\nshl.b32 %r2, %t, 4;\nadd.s32 %r1, %r1, %r2;\nshl.b32 %x, %t, 3;",
        *stores,
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        f"@!%p bra WAIT;\n{instructions}",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];\nWAIT:",
        "mbarrier.try_wait.parity.shared::cta.b64 %q, [%r0], 0;\n@!%q bra WAIT;\nbar.warp.sync -1;",
        f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {registers('r', columns)}, [%tm];",
        "tcgen05.wait::ld.sync.aligned;",
        write_out(columns),
    ]
    return "\n".join(lines)


def source_descriptor() -> int:
    """8 rows of 16 bytes together, 128 bytes to the next 8 rows, 2048 to the second half of K."""
    return MatrixDescriptor(0x400, 2048, 128, 0).encode()


@pytest.mark.parametrize("shape", list(ROWS))
def test_copy_shapes(shape: str) -> None:
    """Each shape puts the source's rows on the lanes that the ISA says."""
    columns = 8 if shape == "128x256b" else 4
    copy = f"mov.b64 %rd0, {source_descriptor()};\ntcgen05.cp.cta_group::1.{shape} [%base], %rd0;"
    text = tmem_kernel(body(copy, columns), decls=DECLS)
    out = np.zeros((128, columns), np.int32)
    for seed in range(4):
        run(text, "kernel", [out], launch(), arch="sm_100a", seed=seed).raise_on_findings()
        np.testing.assert_array_equal(out, ROWS[shape][:, None] * 8 + np.arange(columns))


def test_shift_moves_rows_down() -> None:
    """Lane i gets 32 bytes of lane i + 1; the last lane stays. A shift and a copy of one thread run in
    order.
    """
    copy = f"mov.b64 %rd0, {source_descriptor()};\ntcgen05.cp.cta_group::1.128x256b [%base], %rd0;"
    text = tmem_kernel(body(copy + "\ntcgen05.shift.cta_group::1.down [%base];", 8), decls=DECLS)
    out = np.zeros((128, 8), np.int32)
    for seed in range(4):
        run(text, "kernel", [out], launch(), arch="sm_100a", seed=seed).raise_on_findings()
        rows = np.minimum(np.arange(128) + 1, 127)
        np.testing.assert_array_equal(out, rows[:, None] * 8 + np.arange(8))


PERSISTENT = f"""{HEADER}
.visible .entry kernel(.param .u64 p) {{
.reg .pred %p, %done;
.reg .b32 %x, %n, %phase, %bar, %resp;
.reg .b64 %out, %a, %lo, %hi, %wide;
.reg .b128 %handle;
.shared .align 16 .b8 response[16];
.shared .align 8 .b64 bar;
ld.param.u64 %out, [p];
mov.u32 %bar, bar;
mov.u32 %resp, response;
mbarrier.init.shared::cta.b64 [%bar], 1;
fence.mbarrier_init.release.cluster;
mov.u32 %x, %ctaid.x;
mov.u32 %phase, 0;
LOOP:
mul.wide.u32 %wide, %x, 4;
add.s64 %a, %out, %wide;
red.global.add.u32 [%a], 1;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%resp], [%bar];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], %phase;
@!%p bra WAIT;
xor.b32 %phase, %phase, 1;
ld.shared.v2.b64 {{%lo, %hi}}, [%resp];
mov.b128 %handle, {{%lo, %hi}};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %done, %handle;
@!%done ret;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %x, %handle;
bra LOOP;
}}
"""


def test_cluster_launch_control_does_every_tile_once() -> None:
    """CTAs that take over others' work: each index is done once, however many take-overs the seed allows."""
    shape = SimpleNamespace(grid=(13, 1, 1), block=(1, 1, 1), cluster=(1, 1, 1), shared_bytes=0)
    instructions = set()
    for seed in range(8):
        out = np.zeros(13, np.int32)
        report = run(PERSISTENT, "kernel", [out], shape, arch="sm_100a", seed=seed).raise_on_findings()
        np.testing.assert_array_equal(out, np.ones(13, np.int32))
        instructions.add(report.instructions)
    assert len(instructions) > 1, "the seed decides how often a CTA takes over"
