"""Which tiles a CTA computes of a grouped product: blocks of rows of one expert, from a schedule on the
device."""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.experimental import primitives as prims

from swordfish.prefill.config import TILE_ROWS

ENTRY = 4
"""Words of an entry of the schedule (``swordfish/experts/device/routing.cuh``): the counts, then a Group for
each block: expert, its first block, its first place in the order, its rows."""


@dataclass(frozen=True)
class Block:
    """``rows`` rows from ``start`` on in the order by experts, of ``expert``; ``column`` is the first weight
    column of this CTA."""

    expert: Int32
    start: Int32
    rows: Int32
    column: Int32


@dataclass(frozen=True)
class BlockSchedule:
    """Tiles of one CTA pair (or of one CTA): ``first, first + step, ...`` below ``items``, in the shape of
    :class:`~swordfish.prefill.collective.schedule.Schedule`.

    Tiles of an expert are numbered together, its blocks fastest: those that share weights run side by side
    and share them in L2, as do its tokens, whose columns follow.
    """

    config: Any
    table: cute.Pointer
    row_tiles: Int32
    k_stages: Int32
    group_stages: Int32
    items: Int32
    rank: Int32
    first: Int32
    step: Int32

    def block(self, item):
        """The block of rows and the columns of a tile."""
        at = self.table + (1 + item // self.row_tiles) * ENTRY
        group = load_fresh(at, count=ENTRY)
        expert, first_block, first_place, rows = [group[i] for i in range(ENTRY)]
        blocks = (rows + (self.config.tokens - 1)) // self.config.tokens
        place = item - first_block * self.row_tiles
        tile = place // blocks
        skipped = (place - tile * blocks) * self.config.tokens
        column = (tile * self.config.ctas + self.rank) * TILE_ROWS
        return Block(expert, first_place + skipped, cutlass.min(self.config.tokens, rows - skipped), column)

    def tile(self, item):
        """First weight column of this CTA, first row of the tile, and the expert. What a tile holds beyond
        the rows of its block are rows of other blocks, whose sums are not stored."""
        block = self.block(item)
        return block.column, block.start, (block.expert,)

    def slice(self, item):
        """K is whole."""
        return Int32(0), Int32(0), self.k_stages


def load_fresh(at, count=None):
    """int32 from L2: a kernel that starts before its predecessor has ended may not trust L1."""
    return prims.load_ext(
        at, dtype=Int32, count=count, order=prims.MemOrder.RELAXED, scope=prims.MemScope.GPU
    )
