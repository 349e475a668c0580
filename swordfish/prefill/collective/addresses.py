"""Where the Transform stores an operand, in TMEM and in shared memory, and the proofs that the MMA finds it
there."""

from collections.abc import Callable
from typing import Any

from swordfish.prefill.config import STEP_K, TILE_ROWS

CHUNK = 8
"""16-bit elements of a 16-byte chunk, what the 128-byte swizzle moves as a whole and a row of an stmatrix
matrix."""
WARP_ROWS = 32
LANES = 32
TMEM_ROW = 1 << 16
"""From row to row in a TMEM address; columns of 32 bits count by one."""


def tmem_offset(quarter: Any, half: Any, stage: Any) -> Any:
    """TMEM address of a warp's 16 rows of a stage, from that of the operand."""
    return quarter * (WARP_ROWS * TMEM_ROW) + half * (16 * TMEM_ROW) + stage * (STEP_K // 2)


def prove_tmem_store(
    source: Callable[[tuple[int, int]], int], layout: Callable[[tuple[int, int, int]], int], stages: int
) -> None:
    """Check that the fragments of a warp, in the order of ``store``, are what the MMA reads.

    ``source`` maps (thread of four warps, 16-bit value) of a tiled ``tcgen05.st.16x128b.x8`` to ``quarter + 4
    row + 64 k``, row within the 16 rows of a warp; ``layout`` maps (row, k, stage) to the operand's TMEM
    address in 16-bit elements.

    Raises:
        ValueError: the first value or address that differs.
    """
    for thread in range(4 * LANES):
        quarter, lane = divmod(thread, LANES)
        for value in range(STEP_K // 2):
            fragment, rest = divmod(value, 8)
            h, b, element = rest >> 2, rest >> 1 & 1, rest & 1
            row = 8 * b + (lane >> 2)
            k = 16 * fragment + 8 * h + 2 * (lane & 3) + element
            found = source((thread, value))
            if found != quarter + 4 * row + 64 * k:
                where = f"warp {quarter}, row {row}, k {k}"
                raise ValueError(f"{where}: value {value} of lane {lane} is stored at {found}")
    for stage in (0, stages - 1):
        for quarter in range(TILE_ROWS // WARP_ROWS):
            for half in range(2):
                expected = layout((quarter * WARP_ROWS + 16 * half, 0, stage))
                found = 2 * tmem_offset(quarter, half, stage)
                if found != expected:
                    where = f"row {quarter * WARP_ROWS + 16 * half}, stage {stage}"
                    raise ValueError(f"{where}: stored at {found}, read at {expected}")


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


def prove_shared_store(layout: Callable[[int, int, int], int], stages: int) -> None:
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
