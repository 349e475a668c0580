"""What can be tuned: the kernels that dispatch can launch, and for each the configurations worth timing.

A kernel takes part by an entry in :data:`FAMILIES`. Its configuration is a frozen dataclass of plain values
with ``source``, ``launch_config``, ``arguments`` and ``shared_bytes``, which
:func:`swordfish.ops.launch_decode` can launch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from swordfish.decode.choose import ROW_BUCKETS
from swordfish.decode.ring import MAX_ROWS, MAX_SPLIT, RingConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["FAMILIES", "Family", "candidates", "check", "from_plain", "pick", "ring_candidates", "to_plain"]

IN_FLIGHT = 40 * 1024
"""Bytes of weights that the rings of an SM hold at least; with less, latency of memory shows (H200, M=1)."""

UNIT_BYTES = (2048, 16384)
"""Bytes of weights in a ring slot: smaller ones cost instructions, larger ones leave no room for several."""

RESIDENT_WARPS = 20
"""Warps of an SM that the registers of a decode kernel allow, roughly: some 100 registers a thread."""

GATHER_ROWS = 4
"""Act-order: beyond so many rows, permuting x in every CTA has always lost to one launch that gathers."""


@dataclass(frozen=True)
class Family:
    """A kernel that can be tuned.

    ``name`` stands in tables; ``config`` is its dataclass; ``candidates(scheme, m, k, n, props)`` lists
    configurations in any order; ``check(config, scheme, m, k, n, props, padded_rows)`` raises
    ``ArgumentError`` if a configuration does not fit the problem or the device.
    """

    name: str
    config: type[Any]
    candidates: Callable[[Scheme, int, int, int, DeviceProps], list[Any]]
    check: Callable[[Any, Scheme, int, int, int, DeviceProps, bool], None]


def ring_candidates(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps) -> list[RingConfig]:
    """Configurations of the ring kernel that fit, give every warp work and keep enough bytes in flight."""
    rows = next((r for r in ROW_BUCKETS if r >= m), MAX_ROWS)
    row_tiles, blocks, columns = _ceil_div(m, rows), _ceil_div(k, 64), _ceil_div(n, 64)
    # A weight too small to fill every ring: half of it in flight will do.
    wanted = min(props.sm_count * IN_FLIGHT, blocks * columns * scheme.bits * 512 // 2)
    found: dict[RingConfig, None] = {}
    for gather, cols, unit, warps, slots, split in itertools.product(
        (False, True) if scheme.act_order and rows <= GATHER_ROWS else (False,),
        (1, 2),
        (1, 2, 4),
        (1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16),
        (2, 3, 4, 6),
        range(1, MAX_SPLIT + 1),
    ):
        unit_bytes = cols * unit * scheme.bits * 512
        if _ceil_div(blocks, unit) < split * warps or not UNIT_BYTES[0] <= unit_bytes <= UNIT_BYTES[1]:
            continue
        config = RingConfig(rows, cols, unit, warps, slots, split, gather=gather)
        if not _fits(config, scheme, m, k, n, props):
            continue
        room = props.smem_per_sm // (config.shared_bytes(scheme, k) + props.smem_reserved)
        resident = min(room, max(1, RESIDENT_WARPS // warps), 8)
        config = replace(config, min_ctas=resident)
        tiles = _ceil_div(columns, cols)
        total = tiles * row_tiles * split
        grids = [0]
        if total > props.sm_count * resident:
            if split > 1:
                continue
            # Persistent CTAs that all take the same number of tiles, or as many CTAs as tiles.
            grids += [_ceil_div(tiles, _ceil_div(total, props.sm_count * r)) for r in range(1, resident + 1)]
        for grid in grids:
            ctas = min(grid * row_tiles or total, props.sm_count * resident)
            if ctas * warps * slots * unit_bytes >= wanted:
                found[replace(config, ctas=grid)] = None
    return list(found)


def _check_ring(
    config: RingConfig, scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, padded_rows: bool
) -> None:
    config.check(scheme, k, props)
    if config.gather and (not scheme.act_order or padded_rows or k % 64):
        raise ArgumentError("RingConfig.gather", True, "True for act-order with K a multiple of 64, unpadded")


FAMILIES: dict[str, Family] = {
    family.name: family for family in (Family("ring", RingConfig, ring_candidates, _check_ring),)
}
"""Kernels by the name that stands in tables."""


def candidates(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps) -> list[Any]:
    """The configurations of every kernel for ``x[m, k] @ W[k, n]`` (``k`` in packed rows)."""
    return [c for family in FAMILIES.values() for c in family.candidates(scheme, m, k, n, props)]


def pick(found: Sequence[Any], default: Any, most: int, seed: int = 0) -> list[Any]:
    """At most ``most`` of the configurations besides the default, in the order in which to try them.

    One half are those that differ from the default in the fewest fields, which refine the rule; the other
    half are drawn from the rest, which finds what the rule misses. The two alternate: a search that is cut
    short has seen some of both.
    """
    others = [c for c in found if c != default]
    random.Random(seed).shuffle(others)
    others.sort(key=lambda c: _differences(c, default))
    count = min(most, len(others))
    near, rest = others[: count - count // 2], others[count - count // 2 :]
    far = random.Random(seed).sample(rest, count // 2)
    pairs = itertools.zip_longest(near, far)
    return [c for pair in pairs for c in pair if c is not None]


def check(
    config: Any, scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, *, padded_rows: bool = False
) -> None:
    """Raises ``ArgumentError`` if ``config`` cannot serve ``m`` rows of this weight on this device.

    ``padded_rows``: packed rows include padding between groups, see :func:`swordfish.dispatch.plan`.
    """
    _family_of(config).check(config, scheme, m, k, n, props, padded_rows)


def to_plain(config: Any) -> dict[str, Any]:
    """A configuration as JSON values; :func:`from_plain` is the inverse."""
    return {"kernel": _family_of(config).name, "config": asdict(config)}


def from_plain(plain: Mapping[str, Any]) -> Any:
    """The configuration that :func:`to_plain` described.

    Raises:
        ArgumentError: an unknown kernel; fields that are missing, unknown, of another type or out of range.
    """
    family = FAMILIES.get(str(plain.get("kernel")))
    if family is None:
        raise ArgumentError("kernel", plain.get("kernel"), f"one of {', '.join(FAMILIES)}")
    values = plain.get("config")
    # Annotations are strings here, and type() keeps booleans and integers apart.
    types = {f.name: f.type for f in fields(family.config)}
    if not isinstance(values, dict) or {key: type(v).__name__ for key, v in values.items()} != types:
        raise ArgumentError(f"{family.name} config", values, f"the fields {types}")
    return family.config(**values)


def _family_of(config: Any) -> Family:
    for family in FAMILIES.values():
        if type(config) is family.config:
            return family
    raise ArgumentError("config", type(config).__name__, f"a configuration of {', '.join(FAMILIES)}")


def _differences(a: Any, b: Any) -> int:
    one, other = to_plain(a), to_plain(b)
    if one["kernel"] != other["kernel"]:
        return len(one["config"])
    return sum(value != other["config"][name] for name, value in one["config"].items())


def _fits(config: Any, scheme: Scheme, m: int, k: int, n: int, props: DeviceProps) -> bool:
    try:
        check(config, scheme, m, k, n, props)
    except ArgumentError:
        return False
    return True


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
