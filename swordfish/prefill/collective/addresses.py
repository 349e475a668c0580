"""Where the Transform stores an operand in shared memory, and the proof that the MMA finds it there."""

from collections.abc import Callable
from typing import Any

from swordfish.prefill.config import STEP_K, TILE_ROWS

CHUNK = 8
"""16-bit elements of a 16-byte chunk, what the 128-byte swizzle moves as a whole and a row of an stmatrix
matrix."""
WARP_ROWS = 32
LANES = 32


def stored_rows(quarter: Any, lane: Any) -> tuple[Any, Any, Any]:
    """``(row, octet, h)`` of the matrix row that a lane addresses: row in its octet, row of the tile, k
    octet.

    Lane ``l`` addresses row ``l % 8`` of matrix ``l // 8``; matrix ``2 h + b`` covers row octet b and k
    octet h.
    """
    inside = lane & 7
    return inside, quarter * WARP_ROWS + ((lane >> 3) & 1) * 8 + inside, lane >> 4


def store_offsets(quarter: Any, lane: Any) -> tuple[Any, ...]:
    """Element offsets within a stage of a lane's four ``stmatrix.x4``, one for each 16 k; rows 0 to 15 of a
    warp.

    In bytes the swizzle is ``offset ^ (row % 8) << 4``; in 16-bit elements ``offset ^ (row % 8) << 3``. The
    XOR stays inside a row of 64 elements, so it reduces to the chunk's index. Rows 16 to 31 are ``16 * 64``
    elements on.
    """
    inside, row, h = stored_rows(quarter, lane)
    return tuple(row * STEP_K + (((2 * sub + h) ^ inside) << 3) for sub in range(STEP_K // 16))


def prove_store(layout: Callable[[int, int, int], int], stages: int) -> None:
    """Check every store address against ``layout(row, k, stage)``, the operand's layout in 16-bit elements.

    Raises:
        ValueError: the first address that differs.
    """
    stage_elements = TILE_ROWS * STEP_K
    for stage in (0, stages - 1):
        for quarter in range(TILE_ROWS // WARP_ROWS):
            for lane in range(LANES):
                _, row, h = stored_rows(quarter, lane)
                for half in range(2):
                    for sub, offset in enumerate(store_offsets(quarter, lane)):
                        k = 16 * sub + CHUNK * h
                        expected = layout(row + 16 * half, k, stage)
                        found = offset + half * 16 * STEP_K + stage * stage_elements
                        if found != expected:
                            where = f"row {row + 16 * half}, k {k}, stage {stage}"
                            raise ValueError(f"{where}: stored at {found}, read at {expected}")
