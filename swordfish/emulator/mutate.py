"""Mutation testing of kernels: every single-instruction mutant of a PTX text, run under several schedules.

A mutant drops or weakens one synchronising instruction (barrier operations, fences, waits, commits), or
changes one constant on which synchronisation, addresses, descriptors or masks depend. :func:`mutants`
lists them, :func:`score` runs them. A mutant is caught when a checker finds something, when the result
differs, or when it does not end.

    found = score(mutants(ptx, entry), trial)
    print(found.table())

``trial(ptx, seed)`` runs the kernel and returns ``""`` when the result is right and no checker
complained, else a short reason such as ``"race"``.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from swordfish.emulator.ptx import Stmt, parse

__all__ = ["Mutant", "Outcome", "Score", "mutants", "score"]

Trial = Callable[[str, int], str]

_DROPPED = re.compile(
    r"(mbarrier\.(init|arrive|expect_tx|inval)|fence|membar|bar\.|barrier\.|tcgen05\.(wait|fence|commit|dealloc|relinquish|cp|shift)"
    r"|wgmma\.(fence|commit_group|wait_group)|cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all|mbarrier)|griddepcontrol|setmaxnreg)"
)
"""Instructions without a result that a mutant leaves out."""

_WEAKENED = (
    (r"^(fence\.proxy\.async)\S*", "fence.acq_rel.cta", "proxy fence -> ordinary fence"),
    (r"(multicast::cluster\S*\s+\[[^]]*\]), ([%\w]+)$", r"\1, 1", "commit to the even CTA only"),
    (
        r"^(tcgen05\.commit\S*?)\.multicast::cluster(\S*\s+\[[^]]*\]), [%\w]+$",
        r"\1\2",
        "commit without multicast",
    ),
    (r"^(cp\.async\.bulk\.wait_group(?:\.read)?) 0$", r"\1 1", "one group may stay in flight"),
    (r"^(cp\.async\.bulk\.tensor\S*)\.cta_group::2(\s)", r"\1\2", "pair load -> per-CTA load"),
    (
        r"^(cp\.async\.bulk\.tensor\.\dd\.shared::cluster\S*\.multicast::cluster)(\S*\s.*), ([%\w]+)$",
        r"\1\2, 1",
        "multicast to one CTA",
    ),
    (r"^(mapa\S*\s+\S+,\s*\S+), 0$", r"\1, 1", "leader's barrier -> peer's"),
    (r"^(bar(?:rier)?\.sync\S*\s+\w+), (\d+)$", r"\1, 32", "barrier of one warp"),
    (r"^(barrier\.cluster\.arrive)(?:\.release)?(\.aligned)?$", r"\1.relaxed\2", "relaxed cluster arrive"),
    (
        r"^(mbarrier\.arrive)(?:\.release)?(?:\.cluster|\.cta)?(\.shared\S*)",
        r"\1.relaxed.cluster\2",
        "relaxed arrive",
    ),
    (
        r"^(mbarrier\.try_wait\.parity)(?:\.acquire)?(?:\.cluster|\.cta)?(\.shared\S*)",
        r"\1.relaxed.cluster\2",
        "relaxed wait",
    ),
)

_ANCHOR = re.compile(
    r"^(mbarrier\.|tcgen05\.|cp\.async\.bulk|mapa|wgmma\.|st\.async|ld\.shared|st\.shared|stmatrix|ldmatrix|cvta\.shared|elect)"
)
"""Instructions whose operands are addresses, descriptors, masks, counts or parities."""
_REGISTER = re.compile(r"%[a-z]+\d+|\b%\w+")
_NUMBER = re.compile(r"(?<![%\w.$])-?(?:0x[0-9a-fA-F]+|\d+)\b(?![.\w])")
_ARITHMETIC = re.compile(
    r"^(add|sub|mul|mad|and|or|xor|not|shl|shr|mov|cvt|selp|setp|lop3|bfi|prmt|min|max|div|rem)\b"
)


@dataclass(frozen=True)
class Mutant:
    """One changed instruction: its PTX ``line``, what was done, the old and the new text, and the whole
    mutant.
    """

    line: int
    change: str
    old: str
    new: str
    ptx: str = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """A mutant and why it was caught; an empty ``reason`` means that it survived every schedule."""

    mutant: Mutant
    reason: str
    schedules: int

    @property
    def caught(self) -> bool:
        """Whether any schedule showed the defect."""
        return bool(self.reason)


@dataclass(frozen=True)
class Score:
    """The outcomes of all mutants of a kernel."""

    outcomes: tuple[Outcome, ...]

    @property
    def survivors(self) -> tuple[Outcome, ...]:
        """Mutants that every schedule found right."""
        return tuple(o for o in self.outcomes if not o.caught)

    @property
    def caught(self) -> int:
        """How many mutants were caught."""
        return len(self.outcomes) - len(self.survivors)

    def table(self) -> str:
        """One Markdown row per mutant: line, change, instruction, and the reason or ``survived``."""
        rows = ["| line | change | instruction | result |", "|---|---|---|---|"]
        for o in self.outcomes:
            m = o.mutant
            rows.append(f"| {m.line} | {m.change} | `{m.old[:90]}` | {o.reason or 'survived'} |")
        return "\n".join(rows)


def _replace(lines: Sequence[str], s: Stmt, new: str) -> str | None:
    """The text with the statement replaced (left out, with its guard, for an empty ``new``); ``None`` if
    it spans lines.
    """
    loose = r"\s*".join(re.escape(ch) for ch in s.text if not ch.isspace())
    guard = rf"@\s*!?\s*{re.escape(s.guard.lstrip('!'))}\s+" if s.guard and not new else ""
    line = lines[s.line - 1]
    m = re.search(guard + loose, line)
    if not m:
        return None
    return "\n".join([*lines[: s.line - 1], line[: m.start()] + new + line[m.end() :], *lines[s.line :]])


def _drop(s: Stmt) -> Iterator[tuple[str, str]]:
    if _DROPPED.match(s.text):
        yield "dropped", ""
    m = re.match(r"^mbarrier\.(?:try_|test_)?wait\S*\s+([%\w]+)\s*,", s.text)
    if m:
        yield "wait dropped", f"setp.eq.u32 {m[1]}, 0, 0"


def _weaken(s: Stmt) -> Iterator[tuple[str, str]]:
    for pattern, to, label in _WEAKENED:
        new = re.sub(pattern, to, s.text)
        if new != s.text:
            yield label, new


def _numbers(s: Stmt) -> Iterator[tuple[str, str]]:
    """Each constant of an instruction, changed: its lowest set bit flipped, or 0 made 1."""
    head, _, operands = s.text.partition(" ") if " " in s.text else s.text.partition("\t")
    for m in _NUMBER.finditer(operands):
        value = int(m[0], 0)
        low = value & -value
        other = value ^ low if value else 1
        step = value + low if other == 0 else other  # a lone bit moves up instead of vanishing
        for new in dict.fromkeys((other, step)):
            if new != value:
                yield f"constant {m[0]} -> {new}", f"{head} {operands[: m.start()]}{new}{operands[m.end() :]}"


def _slice(body: Sequence[Stmt], depth: int) -> set[int]:
    """Indices of the arithmetic that feeds operands of the anchors through at most ``depth`` instructions."""
    defined: dict[str, list[int]] = {}
    for k, s in enumerate(body):
        if s.kind == "insn" and _ARITHMETIC.match(s.text):
            names = _REGISTER.findall(s.text.split(",")[0])
            for name in names:
                defined.setdefault(name, []).append(k)
    found: set[int] = set()
    wave: set[str] = set()
    for s in body:
        if s.kind == "insn" and _ANCHOR.match(s.text):
            wave |= set(_REGISTER.findall(s.text))
            if s.guard:
                wave.add(s.guard.lstrip("!"))
    for _ in range(depth):
        reached = {k for name in wave for k in defined.get(name, ())} - found
        found |= reached
        wave = {name for k in reached for name in _REGISTER.findall(body[k].text.split(",", 1)[1])}
    return found


def mutants(ptx: str, entry: str, depth: int = 4) -> list[Mutant]:
    """All single-instruction mutants of kernel ``entry``.

    Constants are mutated in synchronising and tensor instructions and in the arithmetic that feeds their
    operands through up to ``depth`` instructions. Raises ``EmulatorError`` for PTX that cannot be read.
    """
    body = parse(ptx).functions[entry].body
    lines = ptx.split("\n")
    feeding = _slice(body, depth)
    out: list[Mutant] = []
    for k, s in enumerate(body):
        if s.kind != "insn":
            continue
        changes = [*_drop(s), *_weaken(s)]
        if _ANCHOR.match(s.text) or _DROPPED.match(s.text) or k in feeding:
            changes += _numbers(s)
        for change, new in changes:
            text = _replace(lines, s, new)
            if text is not None:
                out.append(Mutant(s.line, change, s.text, new, text))
    return out


def _child(trial: Trial, ptx: str, seed: int, pipe: object) -> None:
    try:
        reason = trial(ptx, seed)
    except Exception as e:
        reason = f"{type(e).__name__}: {e}"[:200]
    pipe.send(reason)  # type: ignore[attr-defined]


def _guarded(trial: Trial, ptx: str, seed: int, wall: float) -> str:
    """Run one trial in a forked process, so that a mutant that hangs or crashes the core does no harm."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(trial, ptx, seed, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(wall):
            return "no end"
        return str(receiver.recv())
    except EOFError:
        return "crash"
    finally:
        process.kill()
        process.join()
        receiver.close()


def score(
    candidates: Iterable[Mutant],
    trial: Trial,
    seeds: Sequence[int] = tuple(range(8)),
    wall: float = 30.0,
    progress: Callable[[Outcome], None] | None = None,
) -> Score:
    """Run each mutant under the ``seeds`` until one shows the defect; a run of over ``wall`` seconds
    shows one.
    """
    outcomes = []
    for m in candidates:
        reason, count = "", 0
        for seed in seeds:
            count += 1
            reason = _guarded(trial, m.ptx, seed, wall)
            if reason:
                break
        outcomes.append(Outcome(m, reason, count))
        if progress:
            progress(outcomes[-1])
    return Score(tuple(outcomes))
