"""The two homes of operand A. They differ in how a warp stores a fragment and in the fence that publishes it.

A fragment is 16 rows by 16 k: registers ``(h0, c) (h0, c + 8) (h1, c) (h1, c + 8)`` of lane ``4c + t``, k
octet h and column pair t. That is both a ``tcgen05.st.16x128b`` of two column groups and an ``stmatrix.x4``
of four 8 x 8 matrices.

Both stores are primitives at addresses of our own, because a tiled copy evaluates its layout inside the
Transform's loop (0.07 instructions a weight in TMEM). ``prove_store_layout`` checks them, while the kernel is
traced, against the tiled copy and the MMA's layout.
"""

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Uint32, Vector
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.addresses import (
    prove_shared_store,
    prove_tmem_store,
    store_offsets,
    tmem_offset,
)
from swordfish.prefill.collective.operands import by_row, element_of, operand_layout, tiled_mma
from swordfish.prefill.config import STEP_K


@dataclass(frozen=True)
class TmemOperand:
    """Operand A in TMEM: row = lane, two k per column, 32 columns a stage."""

    at: Any

    @classmethod
    def of(cls, c, shared, tmem, group, quarter, lane):
        """For the first stage of the warp's group."""
        return cls(tmem + c.operand_column + tmem_offset(quarter, 0, 2 * group))

    def acquire(self):
        """After the wait for an empty stage."""
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)

    def store(self, c, slot, half, fragments):
        """16 rows by 64 k of stage ``slot``, one instruction."""
        registers = tuple(register for fragment in fragments for register in fragment)
        address = prims.make_tmem_ptr(self.at + tmem_offset(0, half, slot), Int32)
        prims.tcgen05_st("16x128b", address, Vector.from_elements(registers, Uint32))

    def publish(self):
        """Before the arrival on the full barrier."""
        prims.tcgen05_wait(prims.Tcgen05Wait.STORE)
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)


@dataclass(frozen=True)
class SharedOperand:
    """Operand A in shared memory: K-major rows of 128 bytes under the 128-byte swizzle, 16 KB a stage.

    The lane's addresses are :func:`~swordfish.prefill.collective.addresses.store_offsets`, made once.
    """

    at: Any

    @classmethod
    def of(cls, c, shared, tmem, group, quarter, lane):
        stage = c.operand_stage_bytes // 2
        base = shared.w.data_ptr() + group * (2 * stage)
        return cls(tuple(base + offset for offset in store_offsets(quarter, lane)))

    def acquire(self):
        """The empty barrier was signalled by the MMAs themselves; ordinary stores need no more."""

    def store(self, c, slot, half, fragments):
        """16 rows by 64 k of stage ``slot``, one ``stmatrix.x4`` for each 16 k."""
        at = slot * (c.operand_stage_bytes // 2) + half * 16 * STEP_K
        for address, fragment in zip(self.at, fragments, strict=True):
            prims.stmatrix(address + at, list(fragment), prims.MMALayout.ROW)

    def publish(self):
        """The MMA reads through the asynchronous proxy."""
        prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)


def prove_store_layout(c):
    """Check the addresses of a configuration's home while the kernel is traced, against the MMA's operand.

    In shared memory CuTe writes the layout as a swizzle flagged to act on bytes behind a layout of elements;
    it is applied here as the hardware does, to the byte offset. In TMEM a tiled copy of the same instruction
    says which register of which lane is stored where.
    """
    operand = operand_layout(c, tiled_mma(c))
    if c.home == "shared":
        swizzle, rows = operand.inner, by_row(operand.outer)

        def layout(row, k, stage):
            byte = 2 * rows((row, k, stage))
            mask = (1 << swizzle.num_bits) - 1 << swizzle.num_base
            return (byte ^ (byte >> swizzle.num_shift & mask)) // 2

        prove_shared_store(layout, c.operand_stages)
    else:
        rows = by_row(operand)
        stage = cute.make_tensor(
            cute.make_ptr(element_of(c), Int32(0), cute.AddressSpace.tmem, assumed_align=16),
            cute.select(rows, mode=[0, 1]),
        )
        atom = cute.make_copy_atom(tcgen05.St16x128bOp(tcgen05.Repetition.x8), element_of(c))
        source = tcgen05.make_tmem_copy(atom, stage).layout_src_tv_tiled
        prove_tmem_store(source, rows, c.operand_stages)
