"""Which tiles a CTA computes, in which order: persistent, in bands of token tiles that stay in L2."""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from swordfish.prefill.config import TILE_ROWS


@dataclass(frozen=True)
class Schedule:
    """Work items of one CTA pair (or of one CTA): ``first, first + step, ...`` below ``items``.

    An item is a tile and a slice of K. Within a band of ``band`` token tiles the token tile runs fastest,
    so that a band's tokens stay in L2 while each weight is read from memory once per band.
    """

    config: Any
    row_tiles: Int32
    token_tiles: Int32
    band: Int32
    k_stages: Int32
    slice_stages: Int32
    group_stages: Int32
    tiles: Int32
    items: Int32
    rank: Int32
    first: Int32
    step: Int32

    def tile(self, item):
        """First weight column of this CTA, first token of the tile, and which weight, as trailing coordinates
        of its tensor maps: there is one only."""
        tile = item % self.tiles if self.config.partial else item
        band = tile // (self.band * self.row_tiles)
        inside = tile - band * (self.band * self.row_tiles)
        width = cutlass.min(self.band, self.token_tiles - band * self.band)
        row = inside // width
        token = band * self.band + inside - row * width
        return (row * self.config.ctas + self.rank) * TILE_ROWS, token * self.config.tokens, ()

    def slice(self, item):
        """Number of the item's slice of K, its first stage and its number of stages."""
        if not self.config.partial:
            return Int32(0), Int32(0), self.k_stages
        index = item // self.tiles
        start = index * self.slice_stages
        return index, start, cutlass.min(self.slice_stages, self.k_stages - start)


@cute.jit
def total_stages(schedule: cutlass.Constexpr):
    """K stages of all items of this CTA."""
    total = Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        _, _, count = schedule.slice(item)
        total += count
    return total
