"""Draws the figures of docs/format.md from the layouts in ``swordfish.layouts``.

    python docs/draw_format.py [FOLDER]        (needs matplotlib; default folder: docs/images)

Nothing is drawn by hand: every label and colour is the value of a layout, so a change of the format changes
the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tensor_layouts import Layout, upcast
from tensor_layouts.viz import draw_layout, draw_swizzle

from swordfish.layouts.format import lane_group_layout, modes
from swordfish.layouts.swizzle import SWIZZLE_128B, recast_swizzle

LANE_STRIDES = {"t": 1, "c": 4}  # lane = 4c + t


def tile(bits: int, n_modes: str, strides: dict[str, int] | None = None) -> Layout:
    """``(k, n)`` of one k16 sub-tile, with the format's bit strides or with the given ones."""
    by_name = {mode.name: mode for mode in modes(bits)}
    k, n = [by_name[name] for name in "oth"], [by_name[name] for name in n_modes]
    pick = (lambda m: m.stride) if strides is None else (lambda m: strides.get(m.name, 0))
    return Layout(
        (tuple(m.extent for m in k), tuple(m.extent for m in n)),
        (tuple(pick(m) for m in k), tuple(pick(m) for m in n)),
    )


def draw(folder: Path) -> None:
    """Writes the four figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for bits in (4, 8):
        unit = "nibble" if bits == 4 else "byte"
        draw_layout(
            upcast(tile(bits, "cb"), bits),
            folder / f"format-int{bits}-tile.png",
            title=f"int{bits}: k16 (rows) x n16 (columns) of a sub-tile\n"
            f"number: {unit} of the block; colour: lane modulo 8",
            colorize=True,
            color_layout=tile(bits, "cb", LANE_STRIDES),
            dpi=80,
            figsize=(9, 9.6),
        )
    _, words, groups = lane_group_layout(4).shape
    strides = lane_group_layout(4).stride
    draw_layout(
        Layout((8, (*words, groups)), (strides[0], (*strides[1], strides[2]))),
        folder / "format-int4-lanes.png",
        title="int4: lanes 0 to 7 (rows); the two 256-bit groups of a lane, 8 words each (columns)\n"
        "number: 32-bit word of the block; colour: k16 sub-tile",
        colorize=True,
        color_layout=Layout((8, (*words, groups)), (0, (0, 1, 2))),
        dpi=80,
        figsize=(10, 5.6),
    )
    draw_swizzle(
        Layout((8, 8), (8, 1)),  # 8 rows of 128 bytes in 16-byte chunks
        recast_swizzle(SWIZZLE_128B, 8, 128),
        folder / "format-swizzle.png",
        colorize=True,
        dpi=80,
        figsize=(9, 5),
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
