"""What kernels of a stream may do to each other's memory when they overlap.

With programmatic dependent launch a kernel begins as soon as every CTA of the one before has let it
(``griddepcontrol.launch_dependents``) or ended; what it does before its ``griddepcontrol.wait`` may run
beside that kernel, and beside those before it if that one had not waited for them yet. The emulator runs
kernels one after the other, so that nothing goes wrong there; this finds what could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from swordfish.emulator.report import Finding, Report, Touched

__all__ = ["check_order"]

_LAUNCHES = 3
"""That a kernel is held against: so many that are all resident at once are rare as it is."""


def check_order(
    report: Report, running: list[tuple[Touched, ...]], ptx: str, *, programmatic: bool
) -> Report:
    """The report with a finding ``early`` for memory that a kernel touches before it has waited, although one
    that may still be running writes it, or reads what is written here.

    ``running`` is what such kernels touch: that of the launches before on the same stream, empty at first. It
    is left as the next launch needs it. ``programmatic``: the launch may begin before others have ended.
    """
    before = running[:] if programmatic else []
    findings = tuple(_early(report, [t for launch in before for t in launch], ptx.splitlines()))
    running[:] = [report.touched, *(before if report.releases_early else [])][:_LAUNCHES]
    return replace(report, findings=report.findings + findings) if findings else report


def _early(report: Report, before: list[Touched], source: list[str]) -> Iterator[Finding]:
    for own in report.touched:
        others = [other for other in before if other.lo < own.hi and own.lo < other.hi]
        told = "before griddepcontrol.wait, and a kernel that may still be running"
        for line, done, theirs in (
            (own.early_read, "read", [other for other in others if other.written]),
            (own.early_write, "written", others),
        ):
            if line and theirs:
                does = "writes it" if theirs[0].written else "reads it"
                text = f"{own.name} is {done} {told} {does}"
                yield Finding("early", text, line, -1, -1, -1, own.lo, 1, source[line - 1].strip())
