"""The registry: every case of every family, by name."""

from __future__ import annotations

from . import (
    arith,
    atomics,
    barriers,
    cluster,
    convert,
    faults,
    integer,
    matrix_moves,
    memory,
    mma,
    mma_other,
    remote,
    tma,
    warp,
    wgmma,
)
from .case import Case

__all__ = ["all_cases"]

_FAMILIES = (
    mma,
    mma_other,
    wgmma,
    convert,
    matrix_moves,
    tma,
    barriers,
    cluster,
    remote,
    atomics,
    arith,
    integer,
    warp,
    memory,
    faults,
)


def all_cases() -> dict[str, Case]:
    """Every case by its name, in a fixed order."""
    out: dict[str, Case] = {}
    for family in _FAMILIES:
        for case in family.cases():
            if case.name in out:
                raise ValueError(f"two cases are named {case.name}")
            out[case.name] = case
    return out
