"""Warp instructions: shfl in all modes, vote, match, redux, elect, divergence and special registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .case import Arg, Case
from .data import Stream
from .ptx import kernel

__all__ = ["cases"]


def _case(name: str, rows: dict[str, str], *, small: bool = False) -> Case:
    """Like an element-wise case of two full warps; ``$a, $b`` are inputs, ``$d`` the output, ``$p`` a predicate (bit 0 of b)."""
    lines = [
        ".reg .b32 a, b, d;\n.reg .pred p;",
        "mul.wide.u32 %rd0, gtid, 4;\nadd.u64 %rd1, %rd0, P0;\nld.global.b32 a, [%rd1];\n"
        "add.u64 %rd1, %rd0, P1;\nld.global.b32 b, [%rd1];",
        "add.u64 %rd0, %rd0, P2;\nand.b32 d, b, 1;\nsetp.ne.u32 p, d, 0;",
    ]
    for i, op in enumerate(rows.values()):
        text = op.replace("$a", "a").replace("$b", "b").replace("$d", "d").replace("$p", "p")
        lines.append(f"mov.u32 d, 0;\n{text}\nst.global.b32 [%rd0+{256 * i}], d;")

    def inputs() -> list[Arg]:
        s = Stream(name)
        a = s.u32(64)
        return [a & np.uint32(3) if small else a, s.u32(64), np.zeros((len(rows), 64), dtype=np.uint32)]

    return Case(
        f"warp/{name}", kernel("ptr ptr ptr", "\n".join(lines)), inputs, {2: tuple(rows)}, block=(64, 1, 1)
    )


def cases() -> Iterator[Case]:
    yield _case("shfl", _shuffles())
    yield _case("shfl.members", _member_shuffles())
    yield _case("vote", _votes())
    yield _case("match", _matches(), small=True)
    yield _case("redux", _reductions())
    yield _case("redux.members", _reductions(0x0F0FFFFF))
    yield _case("elect", _elections())
    yield _case("divergence", _divergence())
    yield _case("registers", _registers())


def _shuffles() -> dict[str, str]:
    rows = {}
    with_predicate = "shfl.sync.{mode}.b32 $d|q, $a, {b}, {c}, -1; @!q xor.b32 $d, $d, 0x5A5A5A5A;"
    for mode, clamps in (
        ("idx", (0x1F, 0x181F, 0x1C1F, 0x100F)),
        ("up", (0, 0x1800, 0x1000)),
        ("down", (0x1F, 0x181F, 0x1E1F)),
        ("bfly", (0x1F, 0x1C1F, 0x100F)),
    ):
        for c in clamps:
            for b in ("1", "5", "16", "$b"):
                rows[f"shfl.{mode}.{b.strip('$')}.{c:x}"] = (
                    "{ .reg .pred q; " + with_predicate.format(mode=mode, b=b, c=c) + " }"
                )
    rows["shfl.plain"] = "shfl.sync.bfly.b32 $d, $a, 3, 0x1f, 0xffffffff;"
    return rows


def _member_shuffles() -> dict[str, str]:
    """Only some lanes take part."""
    rows = {}
    for label, mask in (("low", 0x0000FFFF), ("odd", 0xAAAAAAAA), ("few", 0x80000421)):
        guard = f"{{ .reg .pred q, r; .reg .b32 t; mov.u32 t, 1; shl.b32 t, t, lane; and.b32 t, t, {mask}; setp.ne.u32 q, t, 0; @!q bra SKIP; "
        rows[f"idx.{label}"] = (
            guard + f"shfl.sync.idx.b32 $d, $a, {5 if label != 'low' else 3}, 0x1f, {mask}; "
            f"SKIP: bar.warp.sync -1; }}"
        )
        rows[f"vote.{label}"] = guard + f"vote.sync.ballot.b32 $d, $p, {mask}; SKIP: bar.warp.sync -1; }}"
    return rows


def _votes() -> dict[str, str]:
    rows = {"ballot": "vote.sync.ballot.b32 $d, $p, -1;", "ballot.not": "vote.sync.ballot.b32 $d, !$p, -1;"}
    for mode in ("all", "any", "uni"):
        rows[mode] = f"{{ .reg .pred q; vote.sync.{mode}.pred q, $p, -1; selp.u32 $d, 1, 0, q; }}"
        rows[f"{mode}.true"] = (
            f"{{ .reg .pred q; setp.ge.u32 q, lane, 0; vote.sync.{mode}.pred q, q, -1; selp.u32 $d, 1, 0, q; }}"
        )
        rows[f"{mode}.false"] = (
            f"{{ .reg .pred q; setp.lt.u32 q, lane, 0; vote.sync.{mode}.pred q, q, -1; selp.u32 $d, 1, 0, q; }}"
        )
    rows["activemask"] = "activemask.b32 $d;"
    return rows


def _matches() -> dict[str, str]:
    return {
        "any.b32": "match.any.sync.b32 $d, $a, -1;",
        "any.b64": "{ .reg .b64 t; mov.b64 t, {lane, $a}; shr.u64 t, t, 3; match.any.sync.b64 $d, t, -1; }",
        "all.different": "{ .reg .pred q; match.all.sync.b32 $d|q, $a, -1; @q add.u32 $d, $d, 1; }",
        "all.equal": "{ .reg .pred q; match.all.sync.b32 $d|q, warp, -1; @q xor.b32 $d, $d, 1; }",
    }


def _reductions(members: int = 0xFFFFFFFF) -> dict[str, str]:
    rows = {}
    guard = f"{{ .reg .pred q; .reg .b32 t; mov.u32 t, 1; shl.b32 t, t, lane; and.b32 t, t, {members}; setp.ne.u32 q, t, 0; @!q bra SKIP; "
    for op, kind in (
        ("add", "u32"),
        ("add", "s32"),
        ("min", "u32"),
        ("max", "u32"),
        ("min", "s32"),
        ("max", "s32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ):
        source = "$b" if op != "or" else "t"
        rows[f"redux.{op}.{kind}"] = (
            guard + f"redux.sync.{op}.{kind} $d, {source}, {members}; SKIP: bar.warp.sync -1; }}"
        )
    return rows


def _elections() -> dict[str, str]:
    rows = {"elect.all": "{ .reg .pred q; elect.sync $d|q, -1; @q add.u32 $d, $d, 100; }"}
    rows["elect.sink"] = "{ .reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 $d, 1, 0, q; }"
    rows["elect.some"] = (
        "{ .reg .pred q; setp.lt.u32 q, lane, 9; @q bra SKIP; elect.sync $d|q, 0xfffffe00; @q add.u32 $d, $d, 100; SKIP: bar.warp.sync -1; }"
    )
    return rows


def _divergence() -> dict[str, str]:
    """Nested branches, a loop whose trip count differs by lane, an early exit from it, an indirect branch."""
    return {
        "nested": (
            "{ .reg .pred q; .reg .b32 t; and.b32 t, $b, 3; setp.eq.u32 q, t, 0; @q bra ZERO; setp.eq.u32 q, t, 1; @q bra ONE; "
            "mul.lo.u32 $d, $a, 3; bra OUT; ZERO: add.u32 $d, $a, 7; bra OUT; "
            "ONE: xor.b32 $d, $a, $b; OUT: bar.warp.sync -1; }"
        ),
        "loop": (
            "{ .reg .pred q; .reg .b32 i; and.b32 i, $b, 15; LOOP: setp.eq.u32 q, i, 0; @q bra OUT; mad.lo.u32 $d, $d, 5, $a; "
            "sub.u32 i, i, 1; bra LOOP; OUT: bar.warp.sync -1; }"
        ),
        "break": (
            "{ .reg .pred q; .reg .b32 i, t; mov.u32 i, 0; LOOP: add.u32 $d, $d, i; mad.lo.u32 t, i, 7, $a; and.b32 t, t, 15; setp.eq.u32 q, t, 0; "
            "@q bra OUT; add.u32 i, i, 1; setp.lt.u32 q, i, 9; @q bra LOOP; add.u32 $d, $d, 1000; "
            "OUT: bar.warp.sync -1; }"
        ),
        "brx": (
            "{ .reg .b32 t; TABLE: .branchtargets FIRST, SECOND, THIRD; rem.u32 t, $b, 3; brx.idx t, TABLE; FIRST: mov.u32 $d, 11; bra OUT; "
            "SECOND: mov.u32 $d, $a; bra OUT; THIRD: not.b32 $d, $a; OUT: bar.warp.sync -1; }"
        ),
        "converged": "{ .reg .pred q; setp.lt.u32 q, $a, $b; @q bra OUT; add.u32 $d, $a, $b; OUT: bar.warp.sync -1; vote.sync.ballot.b32 $d, q, -1; }",
    }


def _registers() -> dict[str, str]:
    names: Sequence[str] = ("%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%tid.x", "%ntid.x",
                            "%tid.y", "%ntid.z", "%nctaid.x")  # fmt: skip
    return {name: f"mov.u32 $d, {name};" for name in names}
