"""Calls of device functions: the body is decoded in place, with names of its own."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, Scope, family
from swordfish.emulator.errors import EmulatorError
from swordfish.emulator.ptx import Function, Param, split_operands, type_size

_DEEPEST = 32


def _names(text: str) -> list[str]:
    return split_operands(text.strip()[1:-1])


@family("call")
def call(d: Decoder, op: Op) -> None:
    """``call (results), name, (arguments);`` with the lists optional. Indirect and recursive calls are
    refused."""
    args = list(op.args)
    results = _names(args.pop(0)) if args[0].startswith("(") else []
    name = args.pop(0)
    values = _names(args.pop(0)) if args and args[0].startswith("(") else []
    fn = d.module.functions.get(name)
    if fn is None:
        raise d.unknown(op, "an indirect call, or of a function that is not in the text")
    if not fn.body:
        if name == "__assertfail":
            d.emit("trap", [], cls="branch")
        elif name != "vprintf":
            raise d.unknown(op, "a function without a body")
        return
    if d.depth >= _DEEPEST:
        raise EmulatorError(
            f"PTX line {op.line}: calls nest deeper than {_DEEPEST}; recursion is not supported"
        )
    _inline(d, fn, results, values)


def _inline(d: Decoder, fn: Function, results: list[str], values: list[str]) -> None:
    guard, negated, line, targets = d.guard, d.negated, d.line, d.branch_targets
    outer, inner = d.scope, Scope(None)
    if guard >= 0:
        d.negated = not negated
        d.emit("bra", [], cls="branch")
        d.jump_target("%end", inner)
        d.guard, d.negated = -1, False
    for formal, actual in (*zip(fn.params, values, strict=True), *zip(fn.returns, results, strict=True)):
        _bind(d, inner, formal, actual, copy=formal in fn.params)
    d.scope, d.depth = inner, d.depth + 1
    d.return_labels.append(("%end", inner))
    d.body(fn)
    d.return_labels.pop()
    inner.labels["%end"] = len(d.p.ops)
    d.scope, d.depth, d.line, d.branch_targets = outer, d.depth - 1, line, targets
    d.guard, d.negated = guard, negated


def _bind(d: Decoder, inner: Scope, formal: Param, actual: str, copy: bool) -> None:
    """Give a formal parameter the caller's ``.param`` variable, or a register (inputs by value)."""
    if not formal.type.startswith("reg."):
        variable = d.find_var(actual)
        if variable is None:
            raise EmulatorError(f"PTX line {d.line}: argument {actual!r} is no .param variable")
        inner.vars[formal.name] = variable
        return
    kind = formal.type[4:]
    width = 0 if kind == "pred" else type_size(kind)
    if not copy:
        inner.regs[formal.name] = (d.dst(actual, width), kind)
        return
    row = d.row(width)
    if kind == "pred":
        d.emit("pred.mov", [row, d.pred_src(actual)], cls="address")
    else:
        d.emit(f"mov.u{8 * max(width, 2)}", [row, d.src(actual, width)], cls="address")
    inner.regs[formal.name] = (row, kind)
