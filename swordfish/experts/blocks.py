"""How many blocks the rows of experts make, expected."""

from __future__ import annotations

import math

__all__ = ["expected_blocks"]


def expected_blocks(mean: float, rows: int) -> float:
    """Expected blocks of an expert with a Poisson number of rows: the sum over j of the chance of more than
    ``j * rows``."""
    chance, total, blocks = math.exp(-mean) if mean < 500 else 0.0, 0.0, 0.0
    if not chance:
        return mean / rows + 0.5  # the last block is half full
    for count in range(int(mean + 12 * math.sqrt(mean) + 12)):
        if count % rows == 0:
            blocks += max(0.0, 1.0 - total - chance)
        total += chance
        chance *= mean / (count + 1)
    return blocks
