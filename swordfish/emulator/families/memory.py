"""Loads, stores, atomics, address arithmetic and the cache hints."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family
from swordfish.emulator.families.util import vector
from swordfish.emulator.ptx import type_size

SPACES = {"global": 1, "shared": 2, "local": 3, "const": 4}
ORDERS = {"weak": 0, "relaxed": 1, "volatile": 1, "acquire": 2, "release": 3, "acq_rel": 4, "mmio": 1}
_ATOMICS = {
    "add": 0,
    "min": 1,
    "max": 2,
    "and": 3,
    "or": 4,
    "xor": 5,
    "exch": 6,
    "cas": 7,
    "inc": 8,
    "dec": 9,
}
_TYPES = {"u32": 0, "s32": 1, "u64": 2, "s64": 3, "f32": 4, "f64": 5, "f16": 6, "bf16": 7, "f16x2": 8,
          "bf16x2": 9, "b32": 0, "b64": 2, "b16": 0, "b128": 2}  # fmt: skip


def space_of(op: Op) -> int:
    """Code of the state space; ``shared::cta`` and ``shared::cluster`` are both the cluster's window."""
    for m in op.mods:
        base = m.split("::")[0]
        if base in SPACES:
            return SPACES[base]
    return 0


def order_of(op: Op, default: int = 0) -> int:
    """Code of the memory order."""
    return next((ORDERS[m] for m in op.mods if m in ORDERS), default)


def vector_length(op: Op) -> int:
    """Elements of a vector access."""
    return int((op.any("v2", "v4", "v8") or "v1")[1:])


def register_mod(d: Decoder, text: str, t: str) -> int:
    """Register bytes (0 for 128 bits) and the sign bit of modifier 4."""
    width = d.width_of(text) or max(type_size(t), 2)
    return (0 if width == 16 else width) | (32 if t.startswith("s") else 0)


@family("ld", "ldu")
def load(d: Decoder, op: Op) -> None:
    t = op.type
    regs = vector(op.args[0])
    size = type_size(t)
    reg = register_mod(d, next((r for r in regs if r != "_"), regs[0]), t)
    rows = [d.dst(r, 8 if (reg & 15) == 8 else 4) for r in regs]
    if op.mods[0].startswith("param"):
        name = op.args[1].strip("[] ").split("+")[0].strip()
        if name in d.param_offsets and d.depth == 0:
            _, _, extra = op.args[1].strip("[] ").partition("+")
            offset = d.param_offsets[name].offset + (int(extra, 0) if extra else 0)
            d.emit("ld.param", rows, [4, size, len(regs), 0, reg], offset, cls="load_other")
            return
    base, width, off = d.memory(op.args[1])
    space = (
        3
        if op.mods[0].startswith("param") and d.find_var(op.args[1].strip("[] ").split("+")[0].strip())
        else space_of(op)
    )
    if op.mods[0].startswith("param") and space != 3:
        space = 1
    cls = {1: "load_global", 2: "load_shared"}.get(space, "load_other")
    d.emit(
        "ld",
        [base, *rows],
        [space, size, len(regs), order_of(op), reg | (16 if width == 4 else 0)],
        off,
        cls=cls,
    )


@family("st")
def store(d: Decoder, op: Op) -> None:
    if op.mods[0] == "async":
        from swordfish.emulator.families.bulk import store_async

        return store_async(d, op)
    t = op.type
    regs = vector(op.args[1])
    size = type_size(t)
    width_reg = next((d.width_of(r) for r in regs if d.width_of(r)), max(size, 4))
    reg = 0 if width_reg == 16 else width_reg
    base, width, off = d.memory(op.args[0])
    rows = [d.src(r, max(size, 4)) for r in regs]
    space = 3 if op.mods[0].startswith("param") else space_of(op)
    cls = {1: "store_global", 2: "store_shared"}.get(space, "load_other")
    d.emit(
        "st",
        [base, *rows],
        [space, size, len(regs), order_of(op), reg | (16 if width == 4 else 0)],
        off,
        cls=cls,
    )
    return None


@family("atom", "red")
def atomic(d: Decoder, op: Op) -> None:
    if op.mods[0] == "async":
        from swordfish.emulator.families.bulk import red_async

        return red_async(d, op)
    which = next(m for m in op.mods if m in _ATOMICS)
    t = op.type
    n = vector_length(op)
    size = type_size(t)
    args = list(op.args)
    if op.base == "atom":
        results = [d.dst(r, size) for r in vector(args.pop(0))]
    else:
        results = [d.sink64 if size == 8 else d.sink32] * n
    base, width, off = d.memory(args[0])
    rows = [d.src(r, max(size, 4)) for r in vector(args[1])]
    if which == "cas":
        rows += [d.src(r, max(size, 4)) for r in vector(args[2])]
    reg = 0 if size == 16 else size
    mods = [
        space_of(op),
        size,
        n,
        order_of(op, 1),
        reg | (16 if width == 4 else 0),
        _ATOMICS[which] | _TYPES[t] << 8,
    ]
    d.emit("atom", [base, *results, *rows], mods, off, cls="atomic")
    return None


@family("cvta")
def cvta(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    space = next(m for m in op.mods if m not in ("to",) and not m.startswith("u")).split("::")[0]
    rows = [d.dst(op.args[0], w), d.src(op.args[1], w)]
    if space in ("shared", "local"):
        d.emit(f"cvta.{space}", rows, [int(op.has("to"))], cls="alu")
    else:
        d.emit(f"mov.u{8 * w}", rows, cls="alu")


@family("isspacep")
def isspacep(d: Decoder, op: Op) -> None:
    space, _, scope = op.mods[0].partition("::")
    d.emit(
        "isspacep",
        [d.dst(op.args[0]), d.src(op.args[1], 8)],
        [SPACES.get(space, 9), int(scope == "cta")],
        cls="alu",
    )


@family("mapa", "getctarank")
def mapa(d: Decoder, op: Op) -> None:
    w = type_size(op.type)
    text = op.args[1]
    source = d.src(text, w)
    if w == 4:
        wide = d.row(8)
        d.emit("cvt.u64.u32", [wide, source], cls="address")
        source = wide
    if op.base == "getctarank":
        d.emit("getctarank", [d.dst(op.args[0]), source], cls="alu")
        return
    dest = d.row(8) if w == 4 else d.dst(op.args[0], 8)
    d.emit("mapa", [dest, source, d.src(op.args[2], 4)], cls="alu")
    if w == 4:
        d.emit("cvt", [d.dst(op.args[0]), dest], [2, 3, 0, 0, 4], cls="address")


@family("createpolicy")
def createpolicy(d: Decoder, op: Op) -> None:
    d.emit("mov.u64", [d.dst(op.args[0], 8), d.const(0, 8)], cls="other")


@family("alloca", "stacksave", "stackrestore")
def alloca(d: Decoder, op: Op) -> None:
    raise d.unknown(op, "dynamic stack allocation")
