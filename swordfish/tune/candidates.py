"""What can be tuned: the kernels that dispatch can launch, and for each the configurations worth timing.

A kernel takes part by an entry in :data:`FAMILIES`. Its configuration is a frozen dataclass of plain values
with ``source``, ``launch_config`` and ``arguments`` that :class:`swordfish.calls.DecodeCall` can launch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from swordfish.decode.ring import RingConfig
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme
from swordfish.tune import ring, wide

__all__ = ["FAMILIES", "Family", "candidates", "check", "from_plain", "pick", "to_plain"]


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


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("ring", RingConfig, ring.candidates, ring.check),
        Family("wide", WideConfig, wide.candidates, wide.check),
    )
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
