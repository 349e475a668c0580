"""PTX statements of one kernel -> a decoded :class:`Program` for the C++ core.

Instruction families register a decoder with :func:`family`; it reads an :class:`Op` and calls
:meth:`Decoder.emit` with the name of a handler that the C++ core registered with ``SF_OP``. Registers are
byte offsets into a warp's register file (rows of 32 lanes: 128 bytes up to 32 bits, 256 for 64 bits;
predicates are 4-byte lane masks); immediates are rows of constants, addressed by the bitwise complement of
their offset."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from swordfish.emulator.errors import EmulatorError, UnknownInstructionError
from swordfish.emulator.literals import literal
from swordfish.emulator.ptx import Function, Module, Stmt, Variable, parse_variable, split_operands, type_size

__all__ = ["CLASSES", "SMEM_BASE", "Decoder", "Op", "Program", "Scope", "decode", "family", "literal"]

SMEM_BASE = 0x400
CLASSES = ("other", "alu", "float", "convert", "branch", "load_global", "store_global", "load_shared",
           "store_shared", "load_other", "atomic", "warp", "matrix_move", "mma", "wgmma", "tcgen05",
           "barrier", "mbarrier", "fence", "cp_async", "tma", "address")  # fmt: skip
"""Classes of the instruction counts; ``address`` holds helper steps of the decoder that are no PTX
instruction."""
SYNC_ALIGNED, SYNC_MEMBERS = 1, 2

SREGS = ("tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x",
         "nctaid.y", "nctaid.z", "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clusterid.x",
         "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z", "cluster_ctaid.x",
         "cluster_ctaid.y", "cluster_ctaid.z", "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z",
         "cluster_ctarank", "cluster_nctarank", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
         "lanemask_gt", "is_explicit_cluster", "dynamic_smem_size", "total_smem_size", "aggr_smem_size",
         "reserved_smem_offset_begin", "reserved_smem_offset_cap", "shared_base")  # fmt: skip
_CLOCKS = {
    "clock": 0,
    "clock_hi": 1,
    "clock64": 2,
    "globaltimer": 2,
    "globaltimer_lo": 0,
    "globaltimer_hi": 1,
}


@dataclass
class Op:
    """One instruction: ``base`` (``ld``), ``mods`` (``("global", "v4", "u32")``), operand texts, guard and
    line."""

    base: str
    mods: tuple[str, ...]
    args: list[str]
    line: int
    text: str

    def has(self, *names: str) -> bool:
        """Whether every modifier is present."""
        return all(n in self.mods for n in names)

    def any(self, *names: str) -> str:
        """The first of ``names`` that is a modifier, or an empty string."""
        return next((n for n in names if n in self.mods), "")

    @property
    def type(self) -> str:
        """The last modifier, which is the type of most instructions."""
        return self.mods[-1] if self.mods else ""


@dataclass
class Program:
    """A decoded kernel, as flat lists for the core."""

    name: str
    ops: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    guards: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    mods: list[int] = field(default_factory=list)
    imms: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    consts: bytearray = field(default_factory=bytearray)
    sregs: list[int] = field(default_factory=list)
    reg_bytes: int = 0
    local_bytes: int = 0
    static_smem: int = 0
    dynamic_align: int = 16
    dynamic_patches: list[int] = field(default_factory=list)
    symbols: list[tuple[int, str, int]] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    params: list[tuple[str, int, int, str]] = field(default_factory=list)
    param_bytes: int = 0
    required_cluster: tuple[int, int, int] | None = None


Family = Callable[["Decoder", Op], None]
_FAMILIES: dict[str, Family] = {}


def family(*bases: str) -> Callable[[Family], Family]:
    """Register a decoder for instructions whose first dotted part is one of ``bases``."""

    def add(fn: Family) -> Family:
        for b in bases:
            _FAMILIES[b] = fn
        return fn

    return add


class Scope:
    """Names of one ``{ }`` block: registers, register ranges, labels and variables."""

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.regs: dict[str, tuple[int, str]] = {}
        self.ranges: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.vars: dict[str, tuple[str, int]] = {}


_RANGE = re.compile(r"^([\w$%]*?)(\d+)$")


class Decoder:
    """State while one kernel is decoded. Families use ``reg``, ``src``, ``dst``, ``address``, ``temp`` and
    ``emit``."""

    def __init__(self, module: Module, fn: Function, op_ids: dict[str, int]) -> None:
        self.module, self.fn, self.op_ids = module, fn, op_ids
        self.p = Program(fn.name)
        self.scope = Scope(None)
        self.next_row, self.pred_free = 0, 0
        self.pred_row = -1
        self.const_rows: dict[tuple[int, int], int] = {}
        self.sreg_rows: dict[str, int] = {}
        self.fixups: list[tuple[int, str, Scope, int]] = []
        self.guard, self.negated, self.line = -1, False, fn.line
        self.sink32 = self.row(4)
        self.sink64 = self.row(8)
        self.param_offsets = {q.name: q for q in fn.params}
        self.globals = Scope(None)
        self.depth = 0
        self.return_labels: list[tuple[str, Scope]] = []

    # ---- registers and constants
    # ---------------------------------------------------------------------------------
    def row(self, width: int) -> int:
        """A fresh register of ``width`` bytes (0: a predicate)."""
        if width == 0:
            if self.pred_free % 32 == 0:
                self.pred_row = self.row(4)
            self.pred_free += 1
            return self.pred_row + 4 * ((self.pred_free - 1) % 32)
        at = self.next_row
        self.next_row += 32 * max(4, width)
        return at

    def lookup(self, name: str) -> tuple[int, str] | None:
        """Offset and declared type of a register name."""
        s: Scope | None = self.scope
        m = _RANGE.match(name)
        while s is not None:
            hit = s.regs.get(name)
            if hit is not None:
                return hit
            if m and m[1] in s.ranges:
                t = s.ranges[m[1]]
                hit = s.regs[name] = (self.row(0 if t == "pred" else type_size(t)), t)
                return hit
            s = s.parent
        return None

    def const(self, bits: int, width: int) -> int:
        """A row that holds ``bits`` in every lane."""
        width = max(4, width)
        key = (bits, width)
        at = self.const_rows.get(key)
        if at is None:
            at = self.const_rows[key] = ~len(self.p.consts)
            self.p.consts += bits.to_bytes(width, "little") * 32
        return at

    def sreg(self, name: str) -> int:
        """A preloaded row of a special register."""
        at = self.sreg_rows.get(name)
        if at is None:
            at = self.sreg_rows[name] = self.row(4)
            self.p.sregs += [SREGS.index(name), at]
        return at

    def width_of(self, text: str) -> int:
        """Bytes of a register operand's declared type, 0 for anything else."""
        hit = self.lookup(text)
        return type_size(hit[1]) if hit else 0

    def src(self, text: str, width: int) -> int:
        """A source operand of ``width`` bytes: register, special register, literal or symbol address."""
        hit = self.lookup(text)
        if hit:
            return hit[0]
        bits = literal(text, width)
        if bits is not None:
            return self.const(bits, width)
        if text.startswith("%"):
            name = text[1:]
            if name in SREGS:
                base = self.sreg(name)
                if width != 8:
                    return base
                wide = self.row(8)
                self.emit("cvt.u64.u32", [wide, base], cls="address")
                return wide
            if name in _CLOCKS:
                at = self.row(8 if _CLOCKS[name] == 2 else 4)
                self.emit("sreg.clock", [at], [_CLOCKS[name], int("global" in name)])
                return at
            if re.match(r"pm\d|envreg", name):
                return self.const(0, width)
        return self.symbol(text, width)

    def dst(self, text: str, width: int = 4) -> int:
        """A destination register; ``_`` is a sink."""
        if text == "_":
            return self.sink64 if width == 8 else self.sink32
        hit = self.lookup(text)
        if not hit:
            raise EmulatorError(f"PTX line {self.line}: {text!r} is no register")
        return hit[0]

    def pred_src(self, text: str) -> int:
        """A predicate source; a leading ``!`` is computed into a temporary."""
        text = text.strip()
        if text.startswith("!"):
            t = self.row(0)
            self.emit("pred.not", [t, self.pred_src(text[1:])], cls="address")
            return t
        hit = self.lookup(text)
        if hit:
            return hit[0]
        bits = literal(text, 4)
        if bits is None:
            raise EmulatorError(f"PTX line {self.line}: {text!r} is no predicate")
        t = self.row(0)
        self.emit("pred.const", [t], [int(bits != 0)], cls="address")
        return t

    # ---- symbols and addresses
    # -------------------------------------------------------------------------------------
    def find_var(self, name: str) -> tuple[str, int] | None:
        """Space and offset of a declared variable, allocating a module-level one at its first use."""
        s: Scope | None = self.scope
        while s is not None:
            if name in s.vars:
                return s.vars[name]
            s = s.parent
        if name in self.globals.vars:
            return self.globals.vars[name]
        v = self.module.variables.get(name)
        return self.declare(v, self.globals) if v else None

    def root(self) -> Scope:
        s = self.scope
        while s.parent is not None:
            s = s.parent
        return s

    def declare(self, v: Variable, scope: Scope) -> tuple[str, int]:
        """Give a variable its place: an offset in shared or local memory, or an entry of the global
        variables."""
        at = 0
        if v.space == "shared" and not (v.extern or v.size == 0):
            at = self.p.static_smem = -(-self.p.static_smem // v.align) * v.align
            self.p.static_smem += v.size
        elif v.space == "shared":
            self.p.dynamic_align = max(self.p.dynamic_align, v.align)
            at = -1
        elif v.space in ("local", "param"):
            at = -(-self.p.local_bytes // max(v.align, 1)) * max(v.align, 1)
            self.p.local_bytes = at + v.size
        else:
            self.p.variables[v.name] = v
        scope.vars[v.name] = (v.space, at)
        return scope.vars[v.name]

    def symbol(self, text: str, width: int) -> int:
        """A row holding the address of ``name`` or ``name+offset``."""
        m = re.match(r"^(?:generic\()?([\w$]+)\)?\s*(?:\+\s*(-?\w+))?$", text)
        off = int(m[2], 0) if m and m[2] else 0
        name = m[1] if m else text
        if m and name in self.param_offsets and self.depth == 0:
            at = self.row(8)
            self.emit("addr.param", [at], imm=self.param_offsets[name].offset + off, cls="address")
            return at
        var = self.find_var(name) if m else None
        if var is None:
            raise EmulatorError(f"PTX line {self.line}: unknown operand {text!r}")
        space, offset = var
        at = self.row(width)
        if space == "shared":
            self.emit(f"addr.shared.{8 * width}", [at], imm=SMEM_BASE + max(offset, 0) + off, cls="address")
            if offset < 0:
                self.p.dynamic_patches.append(len(self.p.imms) - 1)
        elif space in ("local", "param"):
            self.emit(f"addr.const.{8 * width}", [at], imm=offset + off, cls="address")
        else:
            self.emit("addr.const.64", [at], imm=off, cls="address")
            self.p.symbols.append((len(self.p.imms) - 1, name, off))
        return at

    def memory(self, text: str) -> tuple[int, int, int]:
        """``[base+offset]`` -> (row of the base, its width in bytes, byte offset)."""
        inner = text.strip()
        inner = inner[1:-1].strip() if inner.startswith("[") else inner
        m = re.match(r"^([%\w$]+)\s*(?:([+-])\s*(-?\w+))?$", inner)
        if not m:
            raise EmulatorError(f"PTX line {self.line}: cannot read the address {text!r}")
        off = int(m[3], 0) if m[3] else 0
        off = -off if m[2] == "-" else off
        hit = self.lookup(m[1])
        if hit:
            return hit[0], type_size(hit[1]), off
        bits = literal(m[1], 8)
        if bits is not None:
            return self.const(bits, 8), 8, off
        return self.symbol(m[1], 8), 8, off

    def address(self, text: str) -> int:
        """A 64-bit row with the address of ``[base+offset]``, for instructions with several addresses."""
        base, width, off = self.memory(text)
        if width == 8 and off == 0:
            return base
        at = self.row(8)
        self.emit("addr.add.64" if width == 8 else "addr.add.32", [at, base], imm=off, cls="address")
        return at

    # ---- output
    # ------------------------------------------------------------------------------------------------------
    def emit(
        self,
        name: str,
        operands: list[int],
        mods: list[int] | None = None,
        imm: int = 0,
        *,
        cls: str = "other",
        sync: int = 0,
        copy: bool = False,
    ) -> int:
        """Append one decoded instruction under the current guard and line; its index."""
        op = self.op_ids.get(name)
        if op is None:
            raise UnknownInstructionError(f"PTX line {self.line}: no handler {name!r} in the emulator core")
        p = self.p
        p.ops.append(op)
        p.starts.append(len(p.operands))
        p.operands += operands
        p.guards.append(self.guard if cls != "address" else -1)
        p.flags.append(
            int(self.negated and cls != "address") | sync << 1 | int(copy) << 3 | CLASSES.index(cls) << 4
        )
        p.mods += [*(mods or []), 0, 0, 0, 0, 0, 0][:6]
        p.imms.append(imm)
        p.lines.append(self.line)
        return len(p.ops) - 1

    def jump_target(self, label: str, scope: Scope | None = None) -> None:
        """Fill the first modifier of the instruction emitted last with the index of ``label``."""
        self.fixups.append((len(self.p.ops) - 1, label, scope or self.scope, self.line))

    def unknown(self, op: Op, why: str = "") -> UnknownInstructionError:
        """The error for an instruction that a family does not know."""
        return UnknownInstructionError(
            f"PTX line {op.line}: unknown instruction `{op.text}`" + (f" ({why})" if why else "")
        )

    # ---- statements
    # --------------------------------------------------------------------------------------------------
    def body(self, fn: Function) -> None:
        """Decode the statements of a function body."""
        targets: dict[str, list[str]] = {}
        for k, s in enumerate(fn.body):
            if s.kind == "targets" and k and fn.body[k - 1].kind == "label":
                targets[fn.body[k - 1].text] = split_operands(s.text.split(None, 1)[1])
        self.branch_targets = targets
        for s in fn.body:
            self.line = s.line
            if s.kind == "insn":
                self.instruction(s)
            elif s.kind == "label":
                self.scope.labels[s.text] = len(self.p.ops)
            elif s.kind == "open":
                self.scope = Scope(self.scope)
            elif s.kind == "close":
                assert self.scope.parent is not None
                self.scope = self.scope.parent
            elif s.kind == "reg":
                self.registers(s)
            elif s.kind == "var":
                v = parse_variable(s.text, s.line)
                if v is None:
                    raise EmulatorError(f"PTX line {s.line}: cannot read {s.text!r}")
                self.declare(v, self.scope)

    def registers(self, s: Stmt) -> None:
        m = re.match(r"\.reg\s+(?:\.(v[24])\s+)?\.(\w+)\s+(.*)$", s.text, re.S)
        if not m:
            raise EmulatorError(f"PTX line {s.line}: cannot read {s.text!r}")
        for name in split_operands(m[3]):
            r = re.match(r"^([\w$%]+)<(\d+)>$", name)
            if r:
                self.scope.ranges[r[1]] = m[2]
            else:
                self.scope.regs[name] = (self.row(0 if m[2] == "pred" else type_size(m[2])), m[2])

    def instruction(self, s: Stmt) -> None:
        parts = s.text.split(None, 1)
        pieces = parts[0].split(".")
        op = Op(
            pieces[0], tuple(pieces[1:]), split_operands(parts[1]) if len(parts) > 1 else [], s.line, s.text
        )
        fn = _FAMILIES.get(op.base)
        if fn is None:
            raise self.unknown(op)
        self.guard, self.negated = -1, False
        if s.guard:
            name = s.guard.lstrip("!")
            hit = self.lookup(name)
            if not hit:
                raise EmulatorError(f"PTX line {s.line}: unknown guard {name!r}")
            self.guard, self.negated = hit[0], s.guard.startswith("!")
        try:
            fn(self, op)
        except (IndexError, KeyError, ValueError) as e:
            raise self.unknown(op, f"{type(e).__name__}: {e}") from e
        self.guard, self.negated = -1, False

    def finish(self) -> Program:
        for index, label, scope, line in self.fixups:
            s: Scope | None = scope
            while s is not None and label not in s.labels:
                s = s.parent
            if s is None:
                raise EmulatorError(f"PTX line {line}: unknown label {label!r}")
            self.p.mods[6 * index] = s.labels[label]
        p = self.p
        p.reg_bytes = self.next_row
        p.params = [(q.name, q.size, q.offset, q.type) for q in self.fn.params]
        p.param_bytes = max((q.offset + q.size for q in self.fn.params), default=0)
        dynamic = -(-(SMEM_BASE + p.static_smem) // p.dynamic_align) * p.dynamic_align
        for k in p.dynamic_patches:
            p.imms[k] += dynamic - SMEM_BASE
        p.static_smem = dynamic - SMEM_BASE if p.dynamic_patches else p.static_smem
        m = re.search(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", self.fn.directives)
        if m:
            p.required_cluster = (int(m[1]), int(m[2] or 1), int(m[3] or 1))
        return p


def decode(module: Module, entry: str, op_ids: dict[str, int]) -> Program:
    """Decode kernel ``entry`` of a module.

    Raises ``EmulatorError`` when there is no such kernel, ``UnknownInstructionError`` for an instruction that
    no family knows."""
    import swordfish.emulator.families  # noqa: F401  registers every family

    fn = module.functions.get(entry)
    if fn is None or not fn.entry:
        names = ", ".join(f.name for f in module.functions.values() if f.entry)
        raise EmulatorError(f"the PTX text has no kernel {entry!r}; it has: {names}")
    d = Decoder(module, fn, op_ids)
    d.body(fn)
    d.line = d.line + 1
    d.emit("exit", [], cls="branch")
    return d.finish()
