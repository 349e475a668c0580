"""What a run found and counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from swordfish.emulator.errors import EmulatorError

__all__ = ["Finding", "LineAccess", "Report", "Touched"]


@dataclass(frozen=True)
class Finding:
    """One defect: ``kind`` and ``text``, and the PTX ``line``, CTA, warp, lane and address where it showed
    first.

    Kinds: ``deadlock``, ``livelock``, ``race``, ``proxy fence``, ``uninitialised``, ``out of bounds``,
    ``misaligned``, ``mbarrier``, ``barrier``, ``exited CTA``, ``cluster start``, ``in-flight register``,
    ``divergent``, ``trap``, ``resources``, ``early`` (:mod:`swordfish.emulator.order`) and those of the
    tensor-memory family. ``count`` is how often it
    happened at that instruction."""

    kind: str
    text: str
    line: int
    cta: int
    warp: int
    lane: int
    address: int
    count: int
    source: str = ""

    def __str__(self) -> str:
        where = f"PTX line {self.line}, CTA {self.cta}, warp {self.warp}, lane {self.lane}"
        times = f" ({self.count} times)" if self.count > 1 else ""
        source = f"\n    {self.source}" if self.source else ""
        return f"{self.kind}: {self.text}{times}\n    at {where}, address {self.address:#x}{source}"


@dataclass(frozen=True)
class LineAccess:
    """Shared-memory traffic of one PTX line: warp accesses, wavefronts taken, and wavefronts without bank
    conflicts."""

    line: int
    executed: int
    accesses: int
    wavefronts: int
    ideal: int

    @property
    def conflicts(self) -> int:
        """Wavefronts over the conflict-free number."""
        return self.wavefronts - self.ideal


@dataclass(frozen=True)
class Touched:
    """Global memory ``[lo, hi)`` that a kernel has read or written: a tensor, as far as an argument reaches.
    ``early_read`` and ``early_write`` are the PTX lines of the first accesses by a CTA that had not passed
    ``griddepcontrol.wait`` yet, 0 for none."""

    name: str
    lo: int
    hi: int
    read: bool
    written: bool
    early_read: int
    early_write: int


@dataclass(frozen=True)
class Report:
    """Findings and numbers of one launch.

    ``classes`` maps an instruction class to executed warp-instructions, ``by_warp`` holds the same per warp
    index (summed over CTAs), ``barrier_waits`` counts suspensions per warp index, ``shared`` lists
    shared-memory accesses by PTX line, ``tma_load_bytes`` and ``tma_store_bytes`` count bytes moved by bulk
    copies, ``touched`` is the global memory that was used. ``releases_early``: a CTA let dependent kernels
    start, or ended, before it had waited for the kernels before."""

    findings: tuple[Finding, ...]
    instructions: int
    classes: dict[str, int]
    by_warp: tuple[dict[str, int], ...]
    barrier_waits: tuple[int, ...]
    shared: tuple[LineAccess, ...]
    tma_load_bytes: int
    tma_store_bytes: int
    async_ops: int
    seconds: float
    seed: int
    policy: str
    extra: dict[str, int] = field(default_factory=dict)
    touched: tuple[Touched, ...] = ()
    releases_early: bool = True

    @property
    def ok(self) -> bool:
        """Whether no checker found anything."""
        return not self.findings

    @property
    def conflicts(self) -> int:
        """Shared-memory wavefronts over the conflict-free number, all lines together."""
        return sum(s.conflicts for s in self.shared)

    def kinds(self) -> set[str]:
        """The kinds of the findings."""
        return {f.kind for f in self.findings}

    def raise_on_findings(self) -> Report:
        """Raise ``EmulatorError`` listing every finding; returns itself when there is none."""
        if self.findings:
            listed = "\n".join(str(f) for f in self.findings)
            raise EmulatorError(
                f"the emulator found {len(self.findings)} defects (seed {self.seed}, "
                f"policy {self.policy}):\n{listed}"
            )
        return self
