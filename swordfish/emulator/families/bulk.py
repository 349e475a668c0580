"""Asynchronous copies: ``cp.async``, bulk and bulk tensor copies, ``st.async`` and ``red.async``."""

from __future__ import annotations

import re

from swordfish.emulator.decode import Decoder, Op, family
from swordfish.emulator.families.memory import _ATOMICS, _TYPES, vector_length
from swordfish.emulator.families.util import vector
from swordfish.emulator.ptx import split_operands, type_size


@family("cp")
def cp(d: Decoder, op: Op) -> None:
    mods = op.mods
    if mods[0] == "reduce" or mods[:2] == ("async", "bulk"):
        return _bulk(d, op)
    if mods[0] != "async":
        raise d.unknown(op)
    if op.has("commit_group"):
        d.emit("cp.async.commit", [], cls="cp_async")
    elif op.has("wait_group") or op.has("wait_all"):
        every = op.has("wait_all")
        d.emit("cp.async.wait", [], [0 if every else int(op.args[0], 0), int(every)], cls="cp_async")
    elif op.has("arrive"):
        d.emit("cp.async.mbarrier.arrive", [d.address(op.args[0])], [int(op.has("noinc"))], cls="cp_async")
    else:
        size = int(op.args[2], 0)
        rows = [d.address(op.args[0]), d.address(op.args[1])]
        extra = op.args[3:]
        if any("cache_hint" in m for m in mods):
            extra = extra[:-1]
        if not extra:
            d.emit("cp.async", [*rows, d.const(size, 4)], [size, 0], cls="cp_async")
        elif d.lookup(extra[0].lstrip("!")) and d.lookup(extra[0].lstrip("!"))[1] == "pred":  # type: ignore[index]
            ignore = d.row(4)
            d.emit("selp.u32", [ignore, d.const(0, 4), d.const(size, 4), d.pred_src(extra[0])], cls="address")
            d.emit("cp.async", [*rows, ignore], [size, 1], cls="cp_async")
        else:
            d.emit("cp.async", [*rows, d.src(extra[0], 4)], [size, 1], cls="cp_async")
    return None


def _bulk(d: Decoder, op: Op) -> None:
    if op.has("commit_group"):
        d.emit("cp.async.bulk.commit", [], cls="tma")
        return
    if op.has("wait_group"):
        d.emit("cp.async.bulk.wait", [], [int(op.args[0], 0)], cls="tma")
        return
    if op.has("prefetch"):
        d.emit("nop", [], cls="tma")
        return
    if op.has("tensor"):
        _tensor(d, op)
        return
    spaces = [m.split("::")[0] for m in op.mods if m.startswith(("shared", "global"))]
    red = (
        next((_ATOMICS[m] for m in op.mods if m in _ATOMICS and m != "cas"), -1)
        if op.mods[0] == "reduce"
        else -1
    )
    t = op.type if red >= 0 else "b32"
    form = 1 if spaces[0] == "global" else 2 if spaces == ["shared", "shared"] else 0
    rows = [d.address(op.args[0]), d.address(op.args[1]), d.src(op.args[2], 4)]
    multicast = any(m.startswith("multicast") for m in op.mods)
    if form == 1:
        if op.has("cp_mask"):
            raise d.unknown(op)
        rows += [d.const(0, 8), d.const(0, 4)]
    else:
        rows += [d.address(op.args[3]), d.src(op.args[4], 4) if multicast else d.const(0, 4)]
    kind = _TYPES.get(t, 0)
    d.emit("cp.async.bulk", rows, [form, int(multicast), red, kind, type_size(t)], cls="tma")


def _map_and_coordinates(d: Decoder, text: str) -> tuple[int, list[int]]:
    inner = split_operands(text.strip()[1:-1])
    return d.address("[" + inner[0] + "]"), [d.src(c, 4) for c in vector(inner[1])]


def _tensor(d: Decoder, op: Op) -> None:
    dims = int(next(m for m in op.mods if re.fullmatch(r"[1-5]d", m))[0])
    if any(m.startswith("im2col") for m in op.mods):
        raise d.unknown(op, "im2col")
    rows4 = int(any(m in ("tile::gather4", "tile::scatter4") for m in op.mods))
    spaces = [m.split("::")[0] for m in op.mods if m.startswith(("shared", "global"))]
    none4 = d.const(0, 4)
    if spaces[0] == "shared":
        table, at = _map_and_coordinates(d, op.args[1])
        multicast = any(m.startswith("multicast") for m in op.mods)
        rows = [
            table,
            d.address(op.args[0]),
            d.address(op.args[2]),
            d.src(op.args[3], 4) if multicast else none4,
            *at,
        ]
        group = 2 if op.has("cta_group::2") else 1 if op.has("cta_group::1") else 0
        d.emit("cp.async.bulk.tensor", rows, [0, dims, int(multicast), group, -1, rows4], cls="tma")
        return
    table, at = _map_and_coordinates(d, op.args[0])
    red = next((_ATOMICS[m] for m in op.mods if m in _ATOMICS), -1) if op.mods[0] == "reduce" else -1
    d.emit(
        "cp.async.bulk.tensor",
        [table, d.address(op.args[1]), d.const(0, 8), none4, *at],
        [1, dims, 0, 0, red, rows4],
        cls="tma",
    )


def store_async(d: Decoder, op: Op) -> None:
    """``st.async [a], values, [mbarrier]``."""
    if not any(m.startswith("mbarrier") for m in op.mods):
        raise d.unknown(op)
    t = op.type
    size = type_size(t)
    rows = [d.address(op.args[0]), d.address(op.args[2]), *[d.src(r, size) for r in vector(op.args[1])]]
    d.emit("st.async", rows, [size, vector_length(op), -1, 0, max(size, 4)], cls="tma")


def red_async(d: Decoder, op: Op) -> None:
    """``red.async.op.type [a], value, [mbarrier]``."""
    t = op.type
    size = type_size(t)
    which = next(m for m in op.mods if m in _ATOMICS)
    rows = [d.address(op.args[0]), d.address(op.args[2]), d.src(op.args[1], size)]
    d.emit("st.async", rows, [size, 1, _ATOMICS[which], _TYPES[t], max(size, 4)], cls="tma")
