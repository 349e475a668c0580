"""Row order and quantisation groups of a packed weight: from a checkpoint's ``g_idx`` to uniform groups.

Kernels assume that packed row ``i`` belongs to group ``i // group_size``. This module finds the row order and
the group size for which that holds exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = ["RowPlan", "plan_rows"]

MINIMUM_GROUP = 32


@dataclass(frozen=True)
class RowPlan:
    """How rows and scale rows are rearranged before packing.

    ``rows`` (int64 ``[R]``, CPU): packed row ``i`` is source row ``rows[i]``, -1 marks a row of padding;
    ``None`` means natural order. ``scale_rows`` (int64 ``[G']``, CPU): group ``g`` takes scale row
    ``scale_rows[g]``; ``None`` means as they are. ``group_size`` is that of the packed weight.
    """

    rows: torch.Tensor | None
    scale_rows: torch.Tensor | None
    group_size: int


def plan_rows(g_idx: torch.Tensor | None, k: int, groups: int, group_size: int) -> RowPlan:
    """Plans the packed row order of a weight with ``k`` rows and ``groups`` scale rows.

    ``g_idx`` (integer ``[k]``) gives each row's scale row; ``None`` or all -1 means ``row // group_size``.
    Rows are sorted by group, stably. Groups that are not all ``group_size`` long (a row-parallel shard of an
    act-order weight, which keeps the whole scale table) are made uniform without changing a value: by a
    smaller group size that divides them all and is a multiple of 32, with the scale rows repeated, or else
    by filling each group up to a multiple of 32 with rows of padding. The last group may be short. Scale
    rows that no row uses are dropped.

    Raises ``ArgumentError`` when ``g_idx`` has another length, a value outside the scale rows, or more rows
    in a group than ``group_size``, and when there is no ``g_idx`` and ``groups`` is not ``ceil(k /
    group_size)``.
    """
    indices = None if g_idx is None else _checked(g_idx, k, groups)
    expected = 1 if group_size == -1 else -(-k // group_size)
    if indices is None:
        if groups != expected:
            raise ArgumentError("scales.shape[0]", groups, f"{expected} for K={k}, group_size={group_size}")
        return RowPlan(None, None, group_size)
    if group_size == -1:
        if groups != 1:
            raise ArgumentError("scales.shape[0]", groups, "1 for group_size=-1 (channelwise)")
        return RowPlan(None, None, group_size)
    order = torch.argsort(indices, stable=True)
    ids, counts = torch.unique_consecutive(indices[order], return_counts=True)
    largest = int(counts.argmax())
    if int(counts[largest]) > group_size:
        raise ArgumentError(
            "g_idx",
            f"{int(ids[largest])} ({int(counts[largest])} times)",
            f"at most group_size={group_size} rows in a group",
        )
    size = _uniform_size(counts.tolist(), group_size)
    chunks = -(-counts // size)
    scale_rows = torch.repeat_interleave(ids, chunks)
    return RowPlan(_place(order, counts, chunks * size), scale_rows, size)


def _checked(g_idx: torch.Tensor, k: int, groups: int) -> torch.Tensor | None:
    """``g_idx`` as int64 on the CPU, ``None`` when it means natural order."""
    if g_idx.dtype.is_floating_point or g_idx.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ArgumentTypeError("g_idx.dtype", g_idx.dtype, "an integer dtype")
    if tuple(g_idx.shape) != (k,):
        raise ArgumentError(
            "g_idx.shape", tuple(g_idx.shape), f"({k},), one entry for each row of the weight"
        )
    indices = g_idx.to("cpu", torch.int64)
    if bool((indices == -1).all()):
        return None
    bad = ((indices < 0) | (indices >= groups)).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise ArgumentError(
            "g_idx",
            f"{int(indices[row])} (row {row})",
            f"0 to {groups - 1}, because the scales have {groups} row{'s' if groups > 1 else ''}",
        )
    return indices


def _uniform_size(counts: list[int], group_size: int) -> int:
    """The group size that fits all groups but the last without padding, or else the smallest one."""
    complete = counts[:-1]
    if all(count == group_size for count in complete):
        return group_size
    common = math.gcd(*complete)
    return common if common % MINIMUM_GROUP == 0 else MINIMUM_GROUP


def _place(order: torch.Tensor, counts: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
    """Sorted rows put where their groups start, each group but the last given ``room`` rows."""
    starts = torch.cumsum(room, 0) - room
    sorted_starts = torch.cumsum(counts, 0) - counts
    position = torch.arange(order.numel()) + torch.repeat_interleave(starts - sorted_starts, counts)
    rows = torch.full((int(position[-1]) + 1,), -1, dtype=torch.int64)
    rows[position] = order
    natural = rows.numel() == order.numel() and bool((rows == torch.arange(rows.numel())).all())
    return None if natural else rows
