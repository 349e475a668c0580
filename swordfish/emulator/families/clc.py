"""Decoders of clusterlaunchcontrol."""

from __future__ import annotations

from swordfish.emulator.decode import Decoder, Op, family


@family("clusterlaunchcontrol")
def clusterlaunchcontrol(d: Decoder, op: Op) -> None:
    if op.mods[0] == "try_cancel":
        rows = [d.address(op.args[0]), d.address(op.args[1])]
        d.emit("clc.try_cancel", rows, [int(op.has("multicast::cluster::all"))], cls="other")
        return
    what = op.mods[1]
    if what == "get_first_ctaid":  # the four coordinates at once
        raise d.unknown(op, "the vector form is not modelled")
    which = 0 if what == "is_canceled" else 1 + "xyz".index(what[-1])
    d.emit("clc.query", [d.dst(op.args[0]), d.src(op.args[1], 16)], [which], cls="other")
