"""The Transform warps: packed words in shared memory to dequantised weights where the MMA reads them.

Loads and stores are primitives at offsets that are constants of the unrolled loop. Packed blocks are dense
bytes, of which a lane's words are one vector each; scales come by an ``ldmatrix`` whose rows are one address.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.dequantise import arithmetic, fragment4, fragment8
from swordfish.prefill.collective.operand import SharedOperand, TmemOperand
from swordfish.prefill.collective.rings import LEADER, arrive_leader, wait
from swordfish.prefill.collective.schedule import total_stages
from swordfish.prefill.config import STAGE_K, STEP_K, TILE_ROWS

SUB_TILES = STEP_K // 16
WARP_ROWS = 32


@dataclass(frozen=True)
class Sources:
    """Where one lane reads: its words and its rows' scales in the first stage of its group."""

    words: Any
    rows: Any
    vector: int
    block: int

    @classmethod
    def of(cls, c, shared, group, quarter, lane):
        vector = 2 * c.scheme.bits // 4  # words of one lane, 32 rows and 16 k
        block = c.block_bytes // 4
        # Vector `lane` of a sub-tile holds this lane's words of 64 rows; a warp's 32 rows are half of it.
        words = (
            shared.words.data_ptr()
            + group * (c.weight_stage_bytes // 4)
            + (quarter >> 1) * (2 * block)
            + lane * (2 * vector)
            + (quarter & 1) * vector
        )
        rows = None
        if c.rows:
            octet = quarter * WARP_ROWS + ((lane >> 3) << 3)
            rows = shared.rows.data_ptr() + group * cls.row_elements(c) + octet
        return cls(words, rows, vector, block)

    @staticmethod
    def row_elements(c):
        """16-bit elements of a stage's scales and zero points."""
        return c.rows_stage_bytes // 2

    def load_words(self, c, stage, step, sub):
        """This lane's words of one k16 sub-tile."""
        at = stage * (c.weight_stage_bytes // 4) + step * self.block + sub * (self.block // SUB_TILES)
        return (self.words + at).load(count=self.vector, alignment=4 * self.vector)

    def load_rows(self, c, stage, kind, group):
        """The scales or zero points of the lane's rows ``c + 8 r``, r = 0 to 3, each in both halves; ``None``
        where this kind does not travel with the weights.

        A transposing ``ldmatrix.x4`` hands lane ``4c + t`` column c of rows 2t and 2t + 1 of each matrix.
        All eight rows of matrix r are given the same address, that of octet r, so that both halves are the
        value wanted.
        """
        if kind not in c.rows:
            return [None] * 4
        at = stage * self.row_elements(c) + c.rows.index(kind) * (c.row_stage_bytes // 2) + group * TILE_ROWS
        found = prims.ldmatrix(self.rows + at, 4, prims.MMALayout.COL)
        return [Uint32(found[r]) for r in range(4)]


@cute.jit
def transform(
    c: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    schedule: cutlass.Constexpr,
    tmem: Int32,
    warp: Int32,
    lane: Int32,
):
    """All stages of this CTA that belong to the warp's group.

    The loop body is one turn of the rings, so that every stage is a constant; only one bit, ``turns``,
    alternates.
    """
    quarter = warp & 3  # of the tile's 128 rows, and of TMEM's lanes
    group = (warp - c.first_transform_warp) >> 2
    total = total_stages(schedule)
    source = Sources.of(c, shared, group, quarter, lane)
    operand = (TmemOperand if cutlass.const_expr(c.home == "tmem") else SharedOperand).of(
        c, shared, tmem, group, quarter, lane
    )
    rings = GroupRings.of(shared, group)
    values = arithmetic(c, Uint32(schedule.row_tiles) >> Uint32(31))
    elected = prims.elect_sync()
    turns = Int32(0)
    for first in cutlass.range(group, total, c.turn, unroll=1):
        for unit in cutlass.range_constexpr(0, c.turn, c.transform_groups):
            if cutlass.const_expr(unit == 0) or first + unit < total:
                transform_stage(c, unit, turns, elected, rings, source, values, operand)
        turns ^= 1


@dataclass(frozen=True)
class GroupRings:
    """The barriers of a group's first stages; the others follow at constant distances."""

    input_full: Any
    input_empty: Any
    operand_empty: Any
    operand_full: Any

    @classmethod
    def of(cls, shared, group):
        leader = prims.mapa(shared.operand.full.subview(2 * group).data_ptr(), LEADER)
        weights, operand = shared.weights, shared.operand
        return cls(
            weights.full.subview(group),
            weights.empty.subview(group),
            operand.empty.subview(2 * group),
            leader,
        )


def parity(unit, stages, turn, turns):
    """Parity of the phase that unit ``unit`` of a turn finds in a ring of ``stages`` (both in the same
    units)."""
    wraps = unit // stages
    return Int32(wraps & 1) if turn // stages % 2 == 0 else turns ^ (wraps & 1)


@cute.jit
def transform_stage(
    c: cutlass.Constexpr,
    unit: cutlass.Constexpr,
    turns: Int32,
    elected: cutlass.Boolean,
    rings: cutlass.Constexpr,
    source: cutlass.Constexpr,
    values: cutlass.Constexpr,
    operand: cutlass.Constexpr,
):
    """One warp dequantises 32 weight columns by 128 k: two operand stages."""
    stage = unit % c.input_stages
    pairs = c.operand_stages // 2

    wait(rings.input_full.subview(stage), parity(unit, c.input_stages, c.turn, turns))
    rows = [
        [source.load_rows(c, stage, kind, g) for kind in ("scales", "zeros")]
        for g in range(c.groups_per_stage)
    ]
    words = [[source.load_words(c, stage, step, sub) for sub in range(SUB_TILES)] for step in range(2)]
    prims.bar_warp_sync(0xFFFFFFFF)  # every lane has its words: the stage can be refilled
    if elected:
        prims.mbarrier_arrive(rings.input_empty.subview(stage))

    constants = []
    for step in cutlass.range_constexpr(2):
        slot = 2 * (unit % pairs) + step
        wait(rings.operand_empty.subview(slot), parity(unit, pairs, c.turn, turns) ^ 1)
        operand.acquire()
        # Made where they are first used: any earlier, and ptxas copies them out of the way of the stores'
        # registers.
        for kinds in rows[len(constants) : max(1, (step + 1) * c.groups_per_stage // 2)]:
            constants.append([values.constants(s, z) for s, z in zip(*kinds, strict=True)])
        for half in cutlass.range_constexpr(2):
            fragments = []
            for sub in cutlass.range_constexpr(SUB_TILES):
                k_group = (step * STEP_K + 16 * sub) * c.groups_per_stage // STAGE_K
                low, high = constants[k_group][2 * half], constants[k_group][2 * half + 1]
                found = words[step][sub]
                if cutlass.const_expr(c.scheme.bits == 4):
                    fragments.append(fragment4(values, found[half], low, high))
                else:
                    fragments.append(fragment8(values, (found[2 * half], found[2 * half + 1]), low, high))
            operand.store(c, slot, half, fragments)
        operand.publish()
        prims.bar_warp_sync(0xFFFFFFFF)
        if elected:
            arrive_leader(rings.operand_full + slot)
