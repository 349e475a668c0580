"""Barriers of a CTA and a cluster, mbarriers and fences."""

from __future__ import annotations

from swordfish.emulator.decode import SYNC_ALIGNED, Decoder, Op, family


def _named(d: Decoder, op: Op, mods: tuple[str, ...], aligned: bool) -> None:
    sync = SYNC_ALIGNED if aligned else 0
    if "red" in mods:
        which = {"popc": 1, "and": 2, "or": 3}[op.any("popc", "and", "or")]
        dest = d.dst(op.args[0])
        count = d.src(op.args[2], 4) if len(op.args) == 4 else d.const(0xFFFFFFFF, 4)
        rows = [d.src(op.args[1], 4), count, dest, d.pred_src(op.args[-1])]
        d.emit("bar", rows, [0, which], cls="barrier", sync=sync)
        return
    count = d.src(op.args[1], 4) if len(op.args) > 1 else d.const(0xFFFFFFFF, 4)
    d.emit("bar", [d.src(op.args[0], 4), count], [int("arrive" in mods), 0], cls="barrier", sync=sync)


@family("bar")
def bar(d: Decoder, op: Op) -> None:
    if op.mods[0] == "warp":
        d.emit("bar.warp.sync", [d.src(op.args[0], 4)], cls="warp")
        return
    _named(d, op, op.mods, aligned=True)


@family("barrier")
def barrier(d: Decoder, op: Op) -> None:
    if op.mods[0] == "cluster":
        relaxed = int(op.has("relaxed"))
        sync = SYNC_ALIGNED if op.has("aligned") else 0
        d.emit(f"barrier.cluster.{op.any('arrive', 'wait')}", [], [relaxed], cls="barrier", sync=sync)
        return
    _named(d, op, op.mods, aligned=op.has("aligned"))


@family("fence", "membar")
def fence(d: Decoder, op: Op) -> None:
    if op.has("mbarrier_init"):
        d.emit("fence.mbarrier_init", [], cls="fence")
    elif op.has("proxy"):
        kind = next(m for m in op.mods if m.startswith(("async", "alias", "tensormap")))
        shared = kind.startswith("async") and not op.has("global")
        d.emit("fence.proxy" if shared else "nop", [], cls="fence")
    else:
        d.emit("fence", [], cls="fence")


@family("mbarrier")
def mbarrier(d: Decoder, op: Op) -> None:
    kind = op.mods[0]
    if kind in ("init", "inval"):
        rows = [d.address(op.args[0])] + ([d.src(op.args[1], 4)] if kind == "init" else [])
        d.emit(f"mbarrier.{kind}", rows, cls="mbarrier")
    elif kind in ("arrive", "arrive_drop", "expect_tx", "complete_tx"):
        _arrive(d, op, kind)
    elif kind in ("try_wait", "test_wait"):
        parity = op.has("parity")
        rows = [d.dst(op.args[0]), d.address(op.args[1]), d.src(op.args[2], 4 if parity else 8)]
        d.emit(
            "mbarrier.wait",
            rows,
            [int(parity), int(op.has("relaxed")), int(kind == "test_wait")],
            cls="mbarrier",
        )
    elif kind == "pending_count":
        d.emit("mbarrier.pending_count", [d.dst(op.args[0]), d.src(op.args[1], 8)], cls="mbarrier")
    else:
        raise d.unknown(op)


def _arrive(d: Decoder, op: Op, kind: str) -> None:
    args = list(op.args)
    state = d.sink64
    if not args[0].startswith("["):
        state = d.dst(args.pop(0), 8)
    address = d.address(args[0])
    one, zero = d.const(1, 4), d.const(0, 4)
    relaxed = int(op.has("relaxed"))
    if kind == "expect_tx":
        d.emit("mbarrier.arrive", [state, address, zero, d.src(args[1], 4)], [1, 1, 0, 0], cls="mbarrier")
    elif kind == "complete_tx":
        d.emit("mbarrier.arrive", [state, address, zero, d.src(args[1], 4)], [0, 1, 0, 1], cls="mbarrier")
    elif op.has("expect_tx"):
        rows = [state, address, one, d.src(args[1], 4)]
        d.emit("mbarrier.arrive", rows, [0, relaxed, int(kind == "arrive_drop"), 0], cls="mbarrier")
    else:
        count = d.src(args[1], 4) if len(args) > 1 else one
        d.emit(
            "mbarrier.arrive",
            [state, address, count, zero],
            [0, relaxed, int(kind == "arrive_drop"), 0],
            cls="mbarrier",
        )
