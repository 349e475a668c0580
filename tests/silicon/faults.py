"""Kernels that a GPU stops with an error: the emulator must find something in each of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Arg, Case
from .ptx import kernel, mbarrier_wait, thread0
from .tma import tensor

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    yield _plain("misaligned.ld.global", "ld.global.b64 %rd1, [P0+4];\nst.global.b64 [P0+8], %rd1;")
    yield _plain(
        "misaligned.st.shared", "st.shared.v4.b32 [smem+8], {%r0, %r1, %r2, %r3};", "mov.u32 %r0, tid;"
    )
    yield _plain(
        "misaligned.ldmatrix",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];\nst.global.b32 [P0], %r0;",
        "add.u32 %r1, smem, 8;",
    )
    yield _plain("shared.beyond", "st.shared.b32 [%r1], %r1;", "add.u32 %r1, smem, 300000;")
    yield _plain("trap", "trap;")
    yield _plain("mbarrier.misaligned", "mbarrier.init.shared::cta.b64 [smem+4], 1;")
    yield _plain(
        "bulk.size",
        thread0(
            "mbarrier.init.shared::cta.b64 [smem], 1;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 24;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+128], [P0], %r0, [smem];\n"
            + mbarrier_wait("smem", 0)
        ),
        "mov.u32 %r0, 24;",
    )
    yield _tensor("tma.load.inner_coordinate", 3, 1024)
    yield _tensor("tma.load.tile_address", 4, 1024 + 16)
    yield _negative_store()


def _plain(name: str, body: str, before: str = "") -> Case:
    def inputs() -> list[Arg]:
        return [np.zeros(64, dtype=np.uint32)]

    ptx = kernel("ptr", f"{before}\n{body}")
    return Case(f"fault/{name}", ptx, inputs, {}, shared_bytes=1024, faults=True)


def _negative_store() -> Case:
    spec = tensor(1, "UINT32", (32, 8), (8, 4))
    body = thread0(
        "st.shared.b32 [smem], 1;\nfence.proxy.async.shared::cta;\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [T0, {-4, 1}], [smem];\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
    )

    def inputs() -> list[Arg]:
        return [spec, np.zeros(256, dtype=np.uint32)]

    name = "fault/tma.store.negative_inner_coordinate"
    return Case(name, kernel("map ptr", body), inputs, {}, shared_bytes=2048, faults=True)


def _tensor(name: str, coordinate: int, tile: int) -> Case:
    """A one-box load of 32-bit elements: inner coordinates count 4 bytes, tiles want 128-byte alignment."""
    spec = tensor(1, "UINT32", (32, 8), (8, 4))
    body = thread0(
        "mbarrier.init.shared::cta.b64 [smem], 1;\nfence.mbarrier_init.release.cluster;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 128;\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[smem+{tile}], [T0, {{{coordinate}, 1}}], [smem];\n" + mbarrier_wait("smem", 0)
    )

    def inputs() -> list[Arg]:
        return [spec, np.zeros(256, dtype=np.uint32)]

    return Case(f"fault/{name}", kernel("map ptr", body), inputs, {}, shared_bytes=2048, faults=True)
