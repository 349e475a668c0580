"""Warp-wide instructions: shuffles, votes, matches, reductions, elections, 8x8 matrices."""

from __future__ import annotations

from swordfish.emulator.decode import SYNC_ALIGNED, SYNC_MEMBERS, Decoder, Op, family
from swordfish.emulator.families.util import vector
from swordfish.emulator.ptx import type_size

_REDUX = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5}


def _pair(d: Decoder, text: str) -> tuple[int, int, bool]:
    """``d|p`` -> row of d, row of p, whether p is wanted."""
    first, _, second = (t.strip() for t in text.partition("|"))
    wanted = bool(second) and second != "_"
    return d.dst(first), d.dst(second) if wanted else d.row(0), wanted


@family("shfl")
def shfl(d: Decoder, op: Op) -> None:
    if not op.has("sync"):
        raise d.unknown(op, "only .sync")
    modes = ("up", "down", "bfly", "idx")
    dest, p, wanted = _pair(d, op.args[0])
    rows = [dest, p, *[d.src(a, 4) for a in op.args[1:5]]]
    d.emit("shfl", rows, [modes.index(op.any(*modes)), int(wanted)], cls="warp", sync=SYNC_MEMBERS)


@family("vote")
def vote(d: Decoder, op: Op) -> None:
    modes = ("ballot", "all", "any", "uni")
    rows = [d.dst(op.args[0]), d.pred_src(op.args[1]), d.src(op.args[2], 4)]
    d.emit("vote", rows, [modes.index(op.any(*modes))], cls="warp", sync=SYNC_MEMBERS)


@family("activemask")
def activemask(d: Decoder, op: Op) -> None:
    d.emit("activemask", [d.dst(op.args[0])], cls="warp")


@family("match")
def match(d: Decoder, op: Op) -> None:
    dest, p, _ = _pair(d, op.args[0])
    w = type_size(op.type)
    rows = [dest, p, d.src(op.args[1], w), d.src(op.args[2], 4)]
    d.emit("match", rows, [int(op.has("all")), w], cls="warp", sync=SYNC_MEMBERS)


@family("redux")
def redux(d: Decoder, op: Op) -> None:
    which = next(_REDUX[m] for m in op.mods if m in _REDUX)
    kind = {"s32": 1, "f32": 4}.get(op.type, 0)
    rows = [d.dst(op.args[0]), d.src(op.args[1], 4), d.src(op.args[2], 4)]
    d.emit(
        "redux", rows, [which, kind, int(op.has("abs")), int(op.has("NaN"))], cls="warp", sync=SYNC_MEMBERS
    )


@family("elect")
def elect(d: Decoder, op: Op) -> None:
    dest, p, _ = _pair(d, op.args[0])
    d.emit("elect", [dest, p, d.src(op.args[1], 4)], cls="warp", sync=SYNC_MEMBERS)


@family("ldmatrix", "stmatrix")
def matrix(d: Decoder, op: Op) -> None:
    n = int((op.any("x1", "x2", "x4"))[1:])
    address, regs = (op.args[1], op.args[0]) if op.base == "ldmatrix" else (op.args[0], op.args[1])
    wide = op.has("b8") or op.type.startswith("b8")
    if op.type.startswith("b8x16"):
        raise d.unknown(op)
    rows = [d.address(address), *[d.dst(r) if op.base == "ldmatrix" else d.src(r, 4) for r in vector(regs)]]
    name = op.base + (".b8" if wide else "")
    if wide and not op.has("trans"):
        raise d.unknown(op)
    d.emit(name, rows, [n, int(op.has("trans"))], cls="matrix_move", sync=SYNC_ALIGNED)


@family("movmatrix")
def movmatrix(d: Decoder, op: Op) -> None:
    d.emit("movmatrix", [d.dst(op.args[0]), d.src(op.args[1], 4)], cls="matrix_move", sync=SYNC_ALIGNED)
