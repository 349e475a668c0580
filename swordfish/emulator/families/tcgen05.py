"""Decoders of the tcgen05 instructions: PTX operands -> what the handlers in ``core/tcgen05_*.cpp`` and
``core/tmem.cpp`` read.
"""

from __future__ import annotations

from swordfish.emulator.decode import SYNC_ALIGNED, Decoder, Op, family, literal
from swordfish.emulator.ptx import split_operands

__all__: list[str] = []

_LDST_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
_KINDS = ("kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8")
_CP_SHAPES = ("128x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")


def _group(op: Op) -> int:
    return 2 if op.has("cta_group::2") else 1


def _vector(text: str) -> list[str]:
    return split_operands(text.strip()[1:-1]) if text.strip().startswith("{") else [text]


def _window(d: Decoder, text: str) -> int:
    """Row with a 32-bit shared-window address; a generic address loses the window's base."""
    base, width, off = d.memory(text)
    if width == 8:
        narrow = d.row(4)
        d.emit("cvt.u32.u64", [narrow, base], cls="address")
        base = narrow
    if off == 0:
        return base
    at = d.row(4)
    d.emit("tcgen05.offset", [at, base], imm=off, cls="address")
    return at


def _alloc(d: Decoder, op: Op) -> None:
    d.emit(
        "tcgen05.alloc",
        [_window(d, op.args[0]), d.src(op.args[1], 4)],
        [_group(op)],
        cls="tcgen05",
        sync=SYNC_ALIGNED,
    )


def _dealloc(d: Decoder, op: Op) -> None:
    d.emit(
        "tcgen05.dealloc",
        [d.src(op.args[0], 4), d.src(op.args[1], 4)],
        [_group(op)],
        cls="tcgen05",
        sync=SYNC_ALIGNED,
    )


def _relinquish(d: Decoder, op: Op) -> None:
    d.emit("tcgen05.relinquish", [], [_group(op)], cls="tcgen05", sync=SYNC_ALIGNED)


def _ldst(d: Decoder, op: Op) -> None:
    load = op.mods[0] == "ld"
    if op.any("red", "spec"):
        raise d.unknown(op, "only plain loads and stores are modelled")
    shape = op.any(*_LDST_SHAPES)
    repeats = next(int(m[1:]) for m in op.mods if m[0] == "x" and m[1:].isdigit())
    address, vector, *split = op.args if not load else [op.args[1], op.args[0], *op.args[2:]]
    if not load and len(op.args) == 3:  # tcgen05.st [taddr], immHalfSplitoff, r
        address, split, vector = op.args[0], [op.args[1]], op.args[2]
    registers = _vector(vector)
    if len(registers) != repeats * _REGISTERS[shape]:
        raise d.unknown(op, f"{shape}.x{repeats} has {repeats * _REGISTERS[shape]} registers")
    rows = [d.dst(r) for r in registers] if load else [d.src(r, 4) for r in registers]
    offset = literal(split[0], 4) or 0 if split else 0
    packed = int(bool(op.any("pack::16b", "unpack::16b")))
    d.emit(
        f"tcgen05.{op.mods[0]}",
        [*rows, _window(d, address)],
        [_LDST_SHAPES.index(shape), repeats, packed],
        offset,
        cls="tcgen05",
        sync=SYNC_ALIGNED,
    )


def _wait(d: Decoder, op: Op) -> None:
    d.emit("tcgen05.wait", [], [int("wait::st" in op.mods)], cls="tcgen05", sync=SYNC_ALIGNED)


def _fence(d: Decoder, op: Op) -> None:
    d.emit("tcgen05.fence", [], [int("fence::after_thread_sync" in op.mods)], cls="tcgen05")


def _commit(d: Decoder, op: Op) -> None:
    multicast = op.has("multicast::cluster")
    operands = [_window(d, op.args[0])] + ([d.src(op.args[1], 4)] if multicast else [])
    d.emit("tcgen05.commit", operands, [_group(op), int(multicast)], cls="tcgen05")


def _cp(d: Decoder, op: Op) -> None:
    shape = ".".join(
        m
        for m in op.mods
        if m.split("::")[0] in ("128x256b", "128x128b", "64x128b", "32x128b", "warpx2", "warpx4")
    )
    if shape not in _CP_SHAPES or op.any("b8x16"):
        raise d.unknown(op, "this shape or format of tcgen05.cp is not modelled")
    d.emit(
        "tcgen05.cp",
        [_window(d, op.args[0]), d.src(op.args[1], 8)],
        [_CP_SHAPES.index(shape), _group(op)],
        cls="tcgen05",
    )


def _shift(d: Decoder, op: Op) -> None:
    d.emit("tcgen05.shift", [_window(d, op.args[0])], [_group(op)], cls="tcgen05")


def _mma(d: Decoder, op: Op) -> None:
    kind = op.any(*_KINDS)
    if not kind or op.any("sp", "block_scale"):
        raise d.unknown(op, "sparse and block-scaled matrix products are not modelled")
    a_in_tmem, ws = op.args[1].startswith("["), op.has("ws")
    a = _window(d, op.args[1]) if a_in_tmem else d.src(op.args[1], 8)
    rest = op.args[4:]
    lanes = [d.src(r, 4) for r in _vector(rest.pop(0))] if rest[0].startswith("{") else []
    accumulate = d.pred_src(rest.pop(0))
    if rest and ws:
        raise d.unknown(op, "zero-column masks are not modelled")
    scale = literal(rest[0], 4) if rest else 0
    operands = [_window(d, op.args[0]), a, d.src(op.args[2], 8), d.src(op.args[3], 4), accumulate, *lanes]
    d.emit(
        "tcgen05.mma",
        operands,
        [_KINDS.index(kind), _group(op), int(a_in_tmem), int(ws), scale or 0, len(lanes)],
        cls="tcgen05",
    )


_FORMS = {
    "alloc": _alloc,
    "dealloc": _dealloc,
    "relinquish_alloc_permit": _relinquish,
    "ld": _ldst,
    "st": _ldst,
    "wait::ld": _wait,
    "wait::st": _wait,
    "fence::before_thread_sync": _fence,
    "fence::after_thread_sync": _fence,
    "commit": _commit,
    "cp": _cp,
    "shift": _shift,
    "mma": _mma,
}


@family("tcgen05")
def _tcgen05(d: Decoder, op: Op) -> None:
    form = _FORMS.get(op.mods[0])
    if form is None:
        raise d.unknown(op)
    form(d, op)
