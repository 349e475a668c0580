"""Recorded against emulated outputs: where they differ, in the words of the case."""

from __future__ import annotations

import numpy as np

from .case import Array, Case

__all__ = ["differences", "ulp_distance"]

_SHOWN = 4


def ulp_distance(a: Array, b: Array) -> Array:
    """Distance of float32 patterns in units in the last place; 0 for two NaNs, huge for one."""

    def ordered(bits: Array) -> Array:
        magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
        return np.where(bits >> np.uint32(31) == 1, -magnitude, magnitude)

    nan_a, nan_b = ((x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) for x in (a, b))
    distance = np.abs(ordered(a) - ordered(b))
    return np.where(nan_a & nan_b, 0, np.where(nan_a | nan_b, np.int64(1) << 40, distance))


def differences(case: Case, recorded: list[Array], emulated: list[Array]) -> list[str]:
    """One line for each row (or buffer) that differs, with the first few places; empty when the case agrees."""
    lines = []
    for (index, labels), want, got in zip(case.outputs.items(), recorded, emulated, strict=True):
        bad = ulp_distance(want, got) > case.ulp if case.ulp else want != got
        for row in range(len(want)) if labels else [None]:
            where, expected, seen = (bad, want, got) if row is None else (bad[row], want[row], got[row])
            places = np.argwhere(where)
            if len(places) == 0:
                continue
            width = 2 * want.itemsize
            shown = ", ".join(
                f"{tuple(p.tolist())}: {int(seen[tuple(p)]):0{width}x} not {int(expected[tuple(p)]):0{width}x}"
                for p in places[:_SHOWN]
            )
            label = f"argument {index}" if row is None else labels[row]
            lines.append(f"{label}: {len(places)} of {where.size} differ; {shown}")
    return lines
