"""Branches, exits, warp barriers, and instructions without an effect here."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family


@family("bra")
def bra(d: Decoder, op: Op) -> None:
    d.emit("bra", [], cls="branch")
    d.jump_target(op.args[0])


@family("brx")
def brx(d: Decoder, op: Op) -> None:
    """``brx.idx index, table``: the targets follow as pseudo branches that the handler reads."""
    labels = d.branch_targets[op.args[1]]
    d.emit("brx", [d.src(op.args[0], 4), *[d.sink32] * len(labels)], cls="branch")
    for label in labels:
        d.emit("bra", [], cls="address")
        d.jump_target(label)


@family("exit", "ret")
def leave(d: Decoder, op: Op) -> None:
    """``ret`` of an inlined function jumps to the end of its body; a kernel's ends the lane, as ``exit``
    does."""
    if op.base == "ret" and d.return_labels:
        label, scope = d.return_labels[-1]
        d.emit("bra", [], cls="branch")
        d.jump_target(label, scope)
        return
    d.emit("exit", [], cls="branch")


@family("trap", "brkpt")
def trap(d: Decoder, op: Op) -> None:
    d.emit("trap", [], cls="branch")


@family(
    "nanosleep",
    "pmevent",
    "setmaxnreg",
    "prefetch",
    "prefetchu",
    "discard",
    "applypriority",
)
def nop(d: Decoder, op: Op) -> None:
    """Hints, and what has no meaning without a register file."""
    d.emit("yield" if op.base == "nanosleep" else "nop", [], sync=1 if op.has("aligned") else 0)


@family("griddepcontrol")
def griddepcontrol(d: Decoder, op: Op) -> None:
    """Other grids are over; what would come too early beside them is noted."""
    d.emit("griddepcontrol", [], [int(op.has("wait"))])
