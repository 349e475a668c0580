"""PTX text -> statements: kernels, parameters, variables, labels, scopes. No instruction is interpreted here.

``parse(text)`` returns a :class:`Module`. Bodies are lists of :class:`Stmt` in program order; inline ``{ }``
scopes are kept as ``open`` and ``close`` statements, so that the decoder can resolve local registers and
labels."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from swordfish.emulator.errors import EmulatorError

__all__ = ["Function", "Module", "Param", "Stmt", "Variable", "parse", "split_operands"]

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_DECL = re.compile(
    r"^(?P<link>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>shared|global|const|local|param)\b(?:::\w+)?\s*"
    r"(?P<attrs>(?:\.(?:align\s+\d+|ptr|attribute\([^)]*\)|global|shared|const)\s*)*)"
    r"\.(?P<type>[a-z]\w*)\s*(?:\.ptr\s*(?:\.\w+\s*)?(?:\.align\s+\d+\s*)?)?(?P<name>[\w$%.]+)\s*(?P<dims>(?:\[\s*\w*\s*\]\s*)*)"
    r"(?:=\s*(?P<init>.*))?$",
    re.S,
)


@dataclass(frozen=True)
class Stmt:
    """One statement: ``kind`` is ``insn``, ``label``, ``open``, ``close``, ``reg``, ``var`` or
    ``targets``."""

    kind: str
    line: int
    text: str = ""
    guard: str = ""


@dataclass(frozen=True)
class Variable:
    """A declared variable; ``size`` and ``align`` in bytes, ``size`` 0 for an extern array without bound."""

    name: str
    space: str
    size: int
    align: int
    line: int
    extern: bool = False
    init: bytes | None = None
    symbols: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Param:
    """A kernel or function parameter at byte ``offset`` of the parameter buffer."""

    name: str
    size: int
    align: int
    offset: int
    type: str


@dataclass
class Function:
    """A kernel (``.entry``) or device function with its body."""

    name: str
    entry: bool
    params: list[Param]
    returns: list[Param]
    body: list[Stmt]
    line: int
    directives: str = ""


@dataclass
class Module:
    """A parsed PTX module."""

    target: str
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


def split_operands(text: str) -> list[str]:
    """Split at the commas outside ``{}``, ``[]`` and ``()``; ``d|p`` stays one operand."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [t.strip() for t in text.split(",")] if text.strip() else []
    out, depth, start = [], 0, 0
    for k, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif ch == "," and depth == 0:
            out.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*out, last] if last or out else []


def _blank(m: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", m.group(0))


def _clean(text: str) -> str:
    """Remove comments, ``.loc``/``.file`` lines and debug sections, keeping every newline in place."""
    text = text.replace("\x00", "")
    if "/*" in text:
        text = re.sub(r"/\*.*?\*/", _blank, text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"(?m)^[ \t]*\.(?:loc|file)\b[^\n]*", "", text)
    return re.sub(r"\.section\s+[.\w]+\s*\{.*?\n\s*\}", _blank, text, flags=re.S)


def type_size(t: str) -> int:
    """Bytes of a PTX fundamental type name such as ``b32``, ``f16x2`` or ``bf16``."""
    if t == "pred":
        return 1
    m = re.fullmatch(r"(?:b|u|s|f|bf|tf)(\d+)(x2)?", t)
    if not m:
        raise EmulatorError(f"unknown PTX type .{t}")
    return _SIZES.get(m[1], 4) * (2 if m[2] else 1)


def _init_bytes(text: str, elem: int, kind: str) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    import struct

    values = [v for v in re.split(r"[{},\s]+", text) if v]
    out, symbols = bytearray(), []
    for v in values:
        if re.match(r"0[fFdD][0-9a-fA-F]+$", v):
            out += int(v[2:], 16).to_bytes(elem, "little")
        elif re.match(r"[-+]?(0[xX])?[0-9a-fA-F]+U?$", v):
            out += (int(v.rstrip("U"), 0) & ((1 << (8 * elem)) - 1)).to_bytes(elem, "little")
        elif re.match(r"[-+]?\d*\.\d*(?:[eE][-+]?\d+)?$", v):
            out += struct.pack("<f" if elem == 4 else "<d", float(v))
        else:
            symbols.append((len(out), re.sub(r"^generic\(|\)$", "", v)))
            out += bytes(elem)
    return bytes(out), tuple(symbols)


def parse_variable(text: str, line: int) -> Variable | None:
    """Parse ``.shared .align 16 .b8 name[1024]`` and its relatives; ``None`` when the text is not a
    declaration."""
    m = _DECL.match(text)
    if not m:
        return None
    elem = type_size(m["type"])
    count, unbounded = 1, False
    for d in re.findall(r"\[\s*(\w*)\s*\]", m["dims"]):
        count, unbounded = count * (int(d, 0) if d else 0), unbounded or not d
    align = re.search(r"align\s+(\d+)", m["attrs"])
    init, symbols = _init_bytes(m["init"], elem, m["type"]) if m["init"] else (None, ())
    if unbounded and init is not None:
        count = len(init) // elem
    return Variable(m["name"], m["space"], elem * count, int(align[1]) if align else elem, line,
                    "extern" in m["link"], init, symbols)  # fmt: skip


def _params(text: str, line: int) -> list[Param]:
    out: list[Param] = []
    offset = 0
    for item in split_operands(text):
        item = " ".join(item.split())
        reg = re.match(r"^\.reg\s+\.(\w+)\s+([\w$%]+)$", item)
        if reg:
            size = type_size(reg[1])
            out.append(Param(reg[2], size, size, offset, "reg." + reg[1]))
            offset += size
            continue
        v = parse_variable(item, line)
        if v is None:
            raise EmulatorError(f"PTX line {line}: cannot read the parameter {item!r}")
        offset = -(-offset // v.align) * v.align
        kind = re.search(r"\.([a-z]+\d+)\s", item)
        out.append(Param(v.name, v.size, v.align, offset, kind[1] if kind else "b8"))
        offset += v.size
    return out


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = _clean(text)
        self.starts = [0, *(m.end() for m in re.finditer(r"\n", self.text))]
        self.pos = 0

    def line(self, pos: int) -> int:
        return bisect.bisect_right(self.starts, pos)

    def next(self, stops: re.Pattern[str]) -> tuple[str, str, int]:
        """Text up to the next stop character outside nested braces, that character, and the text's line."""
        m = stops.search(self.text, self.pos)
        if not m:
            rest, at = self.text[self.pos :], self.pos
            self.pos = len(self.text)
            return rest.strip(), "", self.line(at)
        chunk, at = self.text[self.pos : m.start()], self.pos
        self.pos = m.end()
        lead = len(chunk) - len(chunk.lstrip())
        return chunk.strip(), m.group(0), self.line(at + lead)

    def close_brace(self) -> str:
        """Consume up to the brace that closes one already consumed; the inner text."""
        depth, start = 1, self.pos
        for m in re.finditer(r"[{}]", self.text[start:]):
            depth += 1 if m.group(0) == "{" else -1
            if depth == 0:
                self.pos = start + m.end()
                return self.text[start : start + m.start()]
        raise EmulatorError(f"PTX line {self.line(start)}: unbalanced brace")


_STOPS = re.compile(r"[;{}]")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?\s*[%\w$]+)\s+")


def _body(s: _Scanner) -> list[Stmt]:
    out: list[Stmt] = []
    depth = 0
    while True:
        text, stop, line = s.next(_STOPS)
        while True:
            m = _LABEL.match(text)
            if not m:
                break
            out.append(Stmt("label", line, m[1]))
            rest = text[m.end() :]
            line += rest[: len(rest) - len(rest.lstrip())].count("\n")
            text = rest.strip()
        if stop == "{" and not text:
            out.append(Stmt("open", line))
            depth += 1
            continue
        while stop == "{":
            text += " {" + s.close_brace() + "}"
            more, stop, _ = s.next(_STOPS)
            text += more
        if stop == "":
            raise EmulatorError("PTX text ends inside a function body")
        if text:
            if stop == "}":
                raise EmulatorError(f"PTX line {line}: statement without semicolon: {text!r}")
            out.append(_statement(text, line))
        if stop == "}":
            if depth == 0:
                return out
            out.append(Stmt("close", line))
            depth -= 1


def _statement(text: str, line: int) -> Stmt:
    if text[0] == ".":
        if text.startswith(".reg"):
            return Stmt("reg", line, text)
        if text.startswith((".pragma", ".alias")):
            return Stmt("pragma", line, text)
        if text.startswith((".branchtargets", ".callprototype")):
            return Stmt("targets", line, text)
        return Stmt("var", line, text)
    m = _GUARD.match(text)
    if m:
        return Stmt("insn", line, text[m.end() :].strip(), m[1].replace(" ", ""))
    return Stmt("insn", line, text)


_FUNC = re.compile(
    r"^(?:\.(?:visible|extern|weak)\s+)*\.(?P<kind>entry|func)\s*(?P<ret>\([^)]*\))?\s*(?P<name>[\w$]+)\s*"
    r"(?:\((?P<params>[^()]*(?:\([^()]*\)[^()]*)*)\))?(?P<rest>.*)$",
    re.S,
)


def parse(text: str) -> Module:
    """Parse PTX text.

    Raises ``EmulatorError`` naming the line of a statement that cannot be read.
    """
    s = _Scanner(text)
    target = re.search(r"^\s*\.target\s+([\w]+)", s.text, re.M)
    module = Module(target[1] if target else "")
    for directive in (r"^\s*\.version[^\n]*", r"^\s*\.target[^\n]*", r"^\s*\.address_size[^\n]*"):
        s.text = re.sub(directive, lambda m: " " * len(m.group(0)) if "\n" not in m.group(0) else _blank(m),
                        s.text, flags=re.M)  # fmt: skip
    while True:
        chunk, stop, line = s.next(_STOPS)
        if not chunk and stop in ("", ";"):
            if not stop:
                return module
            continue
        m = _FUNC.match(chunk)
        if m:
            fn = Function(m["name"], m["kind"] == "entry", _params(m["params"] or "", line),
                          _params((m["ret"] or "()")[1:-1], line), [], line, m["rest"] or "")  # fmt: skip
            if stop == "{":
                fn.body = _body(s)
                module.functions[fn.name] = fn
            else:
                module.functions.setdefault(fn.name, fn)
            continue
        while stop == "{":
            chunk += "{" + s.close_brace() + "}"
            more, stop, _ = s.next(_STOPS)
            chunk += more
        v = parse_variable(chunk, line)
        if v is not None:
            module.variables[v.name] = v
        elif not chunk.startswith((".pragma", ".alias", ".weak", ".callprototype")):
            raise EmulatorError(f"PTX line {line}: cannot read {chunk.splitlines()[0]!r}")
