"""The two homes of operand A. They differ in how a warp stores a fragment and in the fence that publishes it.

A fragment is 16 rows by 16 k: registers ``(h0, c) (h0, c + 8) (h1, c) (h1, c + 8)`` of lane ``4c + t``, k octet h and
column pair t. That is both a ``tcgen05.st.16x128b`` of two columns groups and an ``stmatrix.x4`` of four 8 x 8 matrices.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Uint32, Vector
from cutlass.experimental import primitives as prims

from swordfish.prefill.config import STEP_K

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

    Lane ``l`` addresses row ``l % 8`` of matrix ``l // 8`` = (row octet b, k octet h). Its element offset is
    ``row * 64 + (chunk ^ row % 8) * 8`` with ``chunk = 2 * sub + h``; the four XORs are made once.
    :func:`swordfish.prefill.swizzle.check_store` proves it equal to the operand's layout when the kernel is built.
    """

    at: Any

    @classmethod
    def of(cls, c, shared, tmem, group, quarter, lane):
        row, b, h = lane & 7, (lane >> 3) & 1, lane >> 4
        stage = c.operand_stage_bytes // 2
        base = shared.w.data_ptr() + group * (2 * stage) + (quarter * 32 + 8 * b + row) * STEP_K
        return cls(tuple(base + (((2 * sub + h) ^ row) << 3) for sub in range(STEP_K // 16)))

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
