"""The two homes of operand A. They differ in how a warp stores a fragment and in the fence that publishes it.

A fragment is 16 rows by 16 k: registers ``(h0, c) (h0, c + 8) (h1, c) (h1, c + 8)`` of lane ``4c + t``, k
octet h and column pair t. That is both a ``tcgen05.st.16x128b`` of two columns groups and an
``stmatrix.x4`` of four 8 x 8 matrices.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32, Vector
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.addresses import prove_store, store_offsets
from swordfish.prefill.config import STEP_K, TILE_ROWS

COLUMNS = STEP_K // 2
"""TMEM columns of a stage: two values of 16 bits each."""


@dataclass(frozen=True)
class TmemOperand:
    """Operand A in TMEM: row = lane, two k per column, 32 columns a stage."""

    at: Any

    @classmethod
    def of(cls, c, shared, tmem, group, quarter, lane):
        """For the lane's first stage; lanes of TMEM are counted from bit 16 of an address."""
        return cls(tmem + c.operand_column + group * (2 * COLUMNS) + (quarter << 21))

    def acquire(self):
        """After the wait for an empty stage."""
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)

    def store(self, c, slot, half, fragments):
        """16 rows by 64 k of stage ``slot``, one instruction."""
        registers = tuple(register for fragment in fragments for register in fragment)
        address = prims.make_tmem_ptr(self.at + (slot * COLUMNS + (half << 20)), Int32)
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


def prove_layout(c):
    """Check the addresses of :class:`SharedOperand` against CuTe's layout of a K-major operand, while
    tracing.

    CuTe writes that layout as a swizzle flagged to act on bytes behind a layout of elements; it is applied
    here as the hardware does, to the byte offset.
    """
    dtype = cutlass.BFloat16 if c.scheme.dtype == "bfloat16" else cutlass.Float16
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, dtype)
    flagged = cute.tile_to_shape(atom, (TILE_ROWS, STEP_K, c.operand_stages), order=(0, 1, 2))
    bits, base, shift = (getattr(flagged.inner, name) for name in ("num_bits", "num_base", "num_shift"))

    def layout(row, k, stage):
        byte = 2 * flagged.outer((row, k, stage))
        return (byte ^ (byte >> shift & ((1 << bits) - 1) << base)) // 2

    prove_store(layout, c.operand_stages)
