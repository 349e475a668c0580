"""Which modules a quantisation config covers. The rules are tabulated in ``docs/formats.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = ["FUSED", "dynamic_override", "fused_parts", "is_listed", "string_list"]

FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Fused module names and the checkpoint modules they are made of, in the order of the output columns."""


def fused_parts(layer: str) -> tuple[str, ...]:
    """The full names of the parts of a fused module (``a.qkv_proj`` -> ``a.q_proj``, ...); empty if it is
    not one.
    """
    parent, dot, leaf = layer.rpartition(".")
    return tuple(parent + dot + part for part in FUSED.get(leaf, ()))


def string_list(value: object, name: str) -> list[str]:
    """A list of non-empty strings; ``None`` is an empty one. Raises ``ArgumentTypeError`` or
    ``ArgumentError``.
    """
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise ArgumentTypeError(name, value, "a list of module names")
    if any(not entry.strip(". ") for entry in value):
        raise ArgumentError(name, list(value), "module names that are not empty")
    return list(value)


def is_listed(layer: str, entries: object, name: str) -> bool:
    """Whether a list of module names (``modules_to_not_convert``) names ``layer`` or a module that contains
    it.

    An entry matches a run of whole dotted components anywhere in the name: ``mlp.gate`` matches
    ``mlp.gate`` and not ``mlp.gate_proj``. ``*`` stands for any characters within one component. A fused
    name stands for its parts. Raises ``ArgumentError`` on an entry with other pattern characters, whose
    meaning readers do not agree on.
    """
    parts = layer.split(".")
    for entry in string_list(entries, name):
        if re.search(r"[\^$()\[\]{}|\\+?:]", entry):
            raise ArgumentError(name, entry, "dotted module names, with * as the only wildcard")
        for alias in (entry.strip("."), *fused_parts(entry.strip("."))):
            run = alias.split(".")
            for first in range(len(parts) - len(run) + 1):
                if all(fnmatchcase(part, want) for part, want in zip(parts[first:], run, strict=False)):
                    return True
    return False


def dynamic_override(layer: str, rules: object) -> Mapping[str, Any] | None:
    """GPTQModel's ``dynamic`` rules: the overrides for ``layer``, ``{}`` without one, ``None`` if it is
    excluded.

    A key is a regular expression matched from the start of the name; ``-:`` before it excludes, ``+:`` or
    nothing overrides. The first rule of the file that matches decides.
    """
    if rules is None:
        return {}
    if not isinstance(rules, Mapping):
        raise ArgumentTypeError("dynamic", rules, "a mapping of patterns to overrides")
    for rule, values in rules.items():
        if not compile_pattern("dynamic", rule.removeprefix("-:").removeprefix("+:")).match(layer):
            continue
        if rule.startswith("-:"):
            return None
        if not isinstance(values, Mapping):
            raise ArgumentTypeError(f"dynamic[{rule!r}]", values, "a mapping of overrides")
        return values
    return {}


def compile_pattern(name: str, pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of a config. Raises ``ArgumentError`` naming the list it comes from."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ArgumentError(name, pattern, f"a regular expression ({error})") from None


def is_ignored(layer: str, ignore: object) -> bool:
    """compressed-tensors' ``ignore``: an exact name, ``re:`` and a regular expression matched from the
    start, or a class.

    Every weight that is loaded here belongs to a ``Linear``, so the class ``Linear`` in the list ignores all.
    """
    return any(_match_level(layer, entry, "ignore") is not None for entry in string_list(ignore, "ignore"))


def config_group(layer: str, groups: object) -> Mapping[str, Any] | None:
    """The entry of compressed-tensors' ``config_groups`` that covers ``layer``, or ``None``.

    An exact name wins over a regular expression and that over the class ``Linear``. Raises
    ``ArgumentError`` when the best match is shared by groups that differ.
    """
    if groups is None:
        return None
    if not isinstance(groups, Mapping):
        raise ArgumentTypeError("config_groups", groups, "a mapping of groups")
    best: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for key, group in groups.items():
        if not isinstance(group, Mapping):
            raise ArgumentTypeError(f"config_groups[{key!r}]", group, "a mapping")
        targets = string_list(group.get("targets"), "targets")
        levels = [level for t in targets if (level := _match_level(layer, t, "targets")) is not None]
        if levels:
            best.setdefault(min(levels), []).append((key, group))
    if not best:
        return None
    matches = best[min(best)]
    if any(_meaning(group) != _meaning(matches[0][1]) for _, group in matches):
        names = " and ".join(key for key, _ in matches)
        raise ArgumentError("config_groups", names, f"one group for {layer!r}, or groups that agree")
    return matches[0][1]


def _meaning(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "targets"}


def _match_level(layer: str, target: str, name: str) -> int | None:
    """0 for an exact name, 1 for a regular expression, 2 for the class ``Linear``, ``None`` for no match."""
    if target.startswith("re:"):
        return 1 if compile_pattern(name, target.removeprefix("re:")).match(layer) else None
    if layer in (target, *fused_parts(target)):
        return 0
    return 2 if target == "Linear" else None
