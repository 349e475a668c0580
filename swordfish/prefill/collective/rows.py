"""The epilogue of a grouped product: sums to rows in the order by experts, or to rows by pair.

A lane has one weight column and stores its result itself: a block may end in the middle of a tile, and behind
it lie rows of other blocks.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.activation import Gate
from swordfish.prefill.collective.blocks import load_fresh
from swordfish.prefill.collective.epilogue import (
    WARP_ROWS,
    accumulator_parts,
    factor_of,
    load_copy,
    load_or,
)
from swordfish.prefill.collective.operands import element_of
from swordfish.prefill.collective.rings import LEADER, advance, arrive_leader, wait

CHUNK = 32
"""Rows whose pairs the lanes of a warp hold, one each."""
PART = 16
"""Rows at a time: addresses of 32 would not fit the registers."""
STRIPE = 16
"""Columns of gate and of up that take turns."""


@dataclass(frozen=True)
class Rows:
    """What becomes of the sums of a product.

    ``gate``    its activation makes gate_up: 16-bit rows in the order by experts; ``None`` is down: rows by
                pair
    ``router``  sums are multiplied by the pair's router weight, in gate_up before the bias, in down after it
    ``narrow``  rows of down are 16 bits, else fp32
    """

    gate: Gate | None
    router: bool
    narrow: bool

    @classmethod
    def from_flat(cls, values):
        """From the configuration of ``swordfish/experts/grouped.py``."""
        constants = map(float, values["constants"].split())
        gate = Gate(values["activation"], *constants) if values["activation"] else None
        return cls(gate, values["router"], values["narrow"])

    def element(self, c):
        """The type of the rows."""
        return element_of(c) if self.gate or self.narrow else Float32


@dataclass(frozen=True)
class Tensors:
    """What the epilogue reads and writes besides the accumulators; ``n`` columns of an expert.

    ``factors`` of the results of channelwise weights and ``bias`` are ``[experts, n]``, the second may be
    null.
    """

    factors: Any
    bias: Any
    order: Any
    router: Any
    out: Any
    n: Int32


@cute.jit
def store_rows(
    c: cutlass.Constexpr,
    kind: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    schedule: cutlass.Constexpr,
    tensors: cutlass.Constexpr,
    tmem: Int32,
    warp: Int32,
    lane: Int32,
):
    """Each warp takes its 32 weight columns: scale, add the bias, apply the router weight or the activation,
    round, store."""
    ring = shared.accumulators
    empty = prims.mapa(ring.empty.data_ptr(), LEADER)
    elected = prims.elect_sync()
    sums = accumulator_parts(c, tmem, PART)
    load = load_copy(sums, tcgen05.Ld32x32bOp(tcgen05.Repetition(PART)))
    source = load.get_slice(warp * WARP_ROWS + lane).partition_S(sums)
    # The order of all kernels of experts: a kernel may rely on all but the one before it.
    prims.griddepcontrol(prims.GridDepAction.WAIT)
    prims.griddepcontrol(prims.GridDepAction.LAUNCH_DEPENDENTS)
    stage, parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        block = schedule.block(item)
        column = Column.of(c, tensors, block, warp, lane)
        pair, router = pair_of_lane(kind, tensors, block, lane)
        wait(ring.full.subview(stage), parity)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        for chunk in cutlass.range((block.rows + (CHUNK - 1)) // CHUNK, unroll=1):
            # Asked for a chunk ahead, so that no store waits for these loads.
            following = pair_of_lane(kind, tensors, block, (chunk + 1) * CHUNK + lane)
            for part in cutlass.range_constexpr(CHUNK // PART):
                values = cute.make_rmem_tensor(((PART, 1), 1, 1), Float32)
                cute.copy(load, source[None, None, None, chunk * (CHUNK // PART) + part, stage], values)
                prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
                rows = PartRows(block, chunk * CHUNK + part * PART, part * PART, pair, router)
                store = store_gated if kind.gate else store_by_pair
                store(c, kind, tensors, rows, column, values)
            pair, router = following
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        prims.bar_warp_sync(0xFFFFFFFF)
        if elected:
            arrive_leader(empty + stage)
        stage, parity = advance(stage, parity, ring.stages)


@dataclass(frozen=True)
class Column:
    """A lane's weight column: its place among those of a warp that begins at ``first``, its factor and bias,
    and whether it exists. N is a multiple of 64, so all lanes agree on that."""

    first: Int32
    lane: Int32
    factor: Float32
    bias: Float32
    exists: Boolean

    @classmethod
    def of(cls, c, tensors, block, warp, lane):
        first = block.column + warp * WARP_ROWS
        row = Int64(block.expert) * tensors.n
        factor = factor_of(c, tensors.factors + row, first + lane, tensors.n)
        return cls(first, lane, factor, load_bias(tensors, row, first + lane), first < tensors.n)


@dataclass(frozen=True)
class PartRows:
    """``PART`` rows of a block from ``first`` on; their pairs and router weights lie in the lanes from
    ``lane`` on."""

    block: Any
    first: Int32
    lane: int
    pairs: Int32
    router: Float32

    def pair(self, i):
        """The pair of row ``i``."""
        return cute.arch.shuffle_sync(self.pairs, self.lane + i)

    def weight(self, kind, i):
        """The router weight of row ``i``, 1 without one."""
        return cute.arch.shuffle_sync(self.router, self.lane + i) if kind.router else Float32(1)


def store_by_pair(c, kind, tensors, rows, column, values):
    """Rows of down."""
    for i in range(PART):
        value = (values[i] * column.factor + column.bias) * rows.weight(kind, i)
        at = tensors.out + (Int64(rows.pair(i)) * tensors.n + (column.first + column.lane))
        store_if((rows.first + i < rows.block.rows) & column.exists, at, value.to(kind.element(c)))


def store_gated(c, kind, tensors, rows, column, values):
    """Rows of gate_up. Lanes of gate finish the even ones and those of up the odd ones, each with a sum of
    the lane 16 columns on."""
    up = column.lane >= STRIPE
    for i in range(0, PART, 2):
        even, odd = [values[i + e] * column.factor * rows.weight(kind, i + e) + column.bias for e in range(2)]
        kept, sent = select(up, odd, even), select(up, even, odd)
        got = cute.arch.shuffle_sync_bfly(sent, STRIPE)
        h = kind.gate(select(up, got, kept), select(up, kept, got))
        row = rows.first + i + Int32(up)
        line = Int64(rows.block.start + row) * (tensors.n // 2)
        at = tensors.out + (line + (column.first // 2 + column.lane % STRIPE))
        store_if((row < rows.block.rows) & column.exists, at, h.to(kind.element(c)))


def select(condition, yes, no):
    """One of two fp32 values."""
    return Float32(cutlass.select_(condition, yes, no))


@cute.jit
def pair_of_lane(kind: cutlass.Constexpr, tensors: cutlass.Constexpr, block: cutlass.Constexpr, row: Int32):
    """The pair of a row of the block and its router weight, where the product needs them."""
    pair, weight = Int32(0), Float32(1)
    needed = kind.gate is None or kind.router
    if cutlass.const_expr(needed):  # noqa: SIM102 (one is decided by the compiler)
        if row < block.rows:
            pair = load_fresh(tensors.order + (block.start + row))
            if cutlass.const_expr(kind.router):
                weight = (tensors.router + pair).load()
    return pair, weight


@cute.jit
def load_bias(tensors: cutlass.Constexpr, row: Int64, column: Int32):
    """The bias of a column of the expert whose row begins at ``row``; 0 beyond the last one, or without."""
    value = Float32(0)
    if tensors.bias.toint() != 0:
        value = load_or(tensors.bias + row, column, tensors.n, Float32(0))
    return value


@cute.jit
def store_if(condition: Boolean, at: cute.Pointer, value: cutlass.Numeric):
    """Store where the row and the column are there."""
    if condition:
        at.store(value)
