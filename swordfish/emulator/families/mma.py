"""Tensor-core instructions of Hopper: ``mma.sync`` and ``wgmma``."""

from __future__ import annotations

import re

from swordfish.emulator.decode import SYNC_ALIGNED, Decoder, Op, family
from swordfish.emulator.families.util import vector

_ELEMENTS = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "e4m3": 5, "e5m2": 6}


@family("mma")
def mma(d: Decoder, op: Op) -> None:
    shape = next((m for m in op.mods if re.fullmatch(r"m\d+n\d+k\d+", m)), "")
    m, n, k = (int(x) for x in re.findall(r"\d+", shape)) if shape else (0, 0, 0)
    types = [t for t in op.mods if t in _ELEMENTS or t in ("f32", "s32")]
    if (
        op.has("sp")
        or any("block_scale" in t for t in op.mods)
        or (m, n) != (16, 8)
        or len(types) != 4
        or not op.has("row", "col")
    ):
        raise d.unknown(op, "only dense m16n8 .row.col forms")
    dt, at, bt, ct = types
    if at not in _ELEMENTS or bt not in _ELEMENTS or dt != ct:
        raise d.unknown(op)
    accumulator = {"f32": 0, "f16": 1, "s32": 2}[dt]
    dest, a, b, c = (vector(t) for t in op.args[:4])
    rows = [d.dst(r) for r in dest] + [d.src(r, 4) for r in (*a, *b, *c)]
    d.emit(
        "mma",
        rows,
        [k, _ELEMENTS[at], _ELEMENTS[bt], accumulator, int(op.has("satfinite"))],
        cls="mma",
        sync=SYNC_ALIGNED,
    )


@family("wgmma")
def wgmma(d: Decoder, op: Op) -> None:
    kind = op.mods[0]
    if kind in ("fence", "commit_group", "wait_group"):
        mods = [int(op.args[0], 0)] if kind == "wait_group" else []
        d.emit("wgmma." + kind.split("_")[0], [], mods, cls="wgmma", sync=SYNC_ALIGNED)
        return
    shape = re.search(r"m64n(\d+)k16", op.text)
    if kind != "mma_async" or op.has("sp") or not shape or op.mods[-1] not in ("f16", "bf16"):
        raise d.unknown(op, "only dense m64nNk16 with f16 and bf16")
    n = int(shape[1])
    half = op.mods[-3] == "f16"
    regs = vector(op.args[0])
    a_regs = op.args[1].startswith("{")
    rows = [d.dst(r) for r in regs]
    rows += [d.src(r, 4) for r in vector(op.args[1])] if a_regs else [d.src(op.args[1], 8)]
    rows += [d.src(op.args[2], 8), d.pred_src(op.args[3])]
    scales = [int(x, 0) for x in op.args[4:6]]
    trans = [int(x, 0) for x in op.args[6:]]
    a_trans, b_trans = (0, (trans or [0])[0]) if a_regs else (trans or [0, 0])
    flags = int(op.mods[-1] == "bf16") | 2 * int(half) | 4 * int(a_regs) | 8 * a_trans | 16 * b_trans
    d.emit("wgmma", rows, [n, flags, *scales], cls="wgmma", sync=SYNC_ALIGNED, copy=True)
