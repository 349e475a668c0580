"""Instructions of the Transform loop, from a disassembly if there is a disassembler, else from PTX."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from swordfish.prefill.config import PrefillConfig
from swordfish.runtime.artifact import Artifact

__all__ = ["LoopCount", "count_transform", "disassemble"]

_SASS = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*);")
_SASS_LABEL = re.compile(r"^(\.L_x_\d+):")
_PTX = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)(.*);")
_PTX_LABEL = re.compile(r"^(\$L__BB\w+):")
_ARITHMETIC = re.compile(
    r"HFMA2|HADD2(?!\.F32)|HMUL2|fma\.rn\.(bf16x2|f16x2)|(mul|add|sub)\.(rn\.)?(bf16x2|f16x2)"
)
_MOVE = re.compile(r"\s*R\d+, -RZ, RZ,")
"""Operands of an HFMA2 that only makes a constant."""
_STORE = re.compile(r"STTM|tcgen05\.st\.|STSM\.16\.M88\.4|stmatrix\.sync\.aligned\.m8n8\.x4\.shared")
"""A store of 16 rows by 64 k to TMEM, or by 16 k to shared memory: 32 or 8 weights of each lane."""
_NOT_EXECUTED = ("NOP",)


@dataclass(frozen=True)
class LoopCount:
    """``instructions`` of one pass of the loop, by mnemonic, and ``weights`` that a lane makes in it."""

    kind: str
    instructions: dict[str, int]
    weights: int

    @property
    def total(self) -> int:
        """Instructions of one pass."""
        return sum(self.instructions.values())

    @property
    def per_weight(self) -> float:
        """Instructions per weight."""
        return self.total / self.weights


def disassemble(artifact: Artifact) -> str | None:
    """SASS text of a cubin by ``nvdisasm``, from the path or its Python package; ``None`` without one."""
    tool = shutil.which("nvdisasm") or _packaged("nvdisasm")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(artifact.cubin)
        return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout


def _packaged(tool: str) -> str | None:
    """A tool of the ``nvidia-cuda-*`` Python packages."""
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, (spec and spec.submodule_search_locations) or ())
    return next((str(path) for folder in folders for path in folder.glob(f"*/bin/{tool}")), None)


def count_transform(config: PrefillConfig, artifact: Artifact, sass: str | None = None) -> LoopCount:
    """Instructions of the Transform's loop: the smallest loop that holds nearly all packed 16-bit arithmetic.

    Everything between the loop's first and last instruction counts, barriers and addresses included; what the
    compiler moves out of the loop, such as the path of a wait that failed once, does not.

    Raises:
        ValueError: the text has no such loop.
    """
    if sass is None:
        kind, lines = "PTX", _lines(artifact.ptx, _PTX, _PTX_LABEL, artifact.metadata.entry)
    else:
        kind, lines = "SASS", _lines(sass, _SASS, _SASS_LABEL, "")
    start, stop = _loop(lines)
    found: dict[str, int] = {}
    for name, _, _ in lines[start : stop + 1]:
        if name and name not in _NOT_EXECUTED:
            found[name] = found.get(name, 0) + 1
    # The assembler may unroll the loop again, so its stores say how much of it there is.
    stored = {name: n for name, n in found.items() if _STORE.match(name)}
    per_store = 32 if config.home == "tmem" else 8
    return LoopCount(kind, found, per_store * sum(stored.values()))


_Line = tuple[str, str, str]  # mnemonic, operands, label (one of mnemonic and label is empty)


def _lines(text: str, instruction: re.Pattern[str], label: re.Pattern[str], entry: str) -> list[_Line]:
    """Instructions and labels in order."""
    out: list[_Line] = []
    for line in text[text.find(f".entry {entry}") if entry else 0 :].splitlines():
        named = label.match(line)
        if named:
            out.append(("", "", named[1]))
            continue
        found = instruction.match(line)
        if found:
            groups = found.groups()
            out.append((groups[-2], groups[-1], ""))
    return out


def _loop(lines: list[_Line]) -> tuple[int, int]:
    """First and last line of the smallest backward branch around nearly all packed arithmetic."""
    labels = {label: at for at, (_, _, label) in enumerate(lines) if label}
    busy = [at for at, line in enumerate(lines) if _ARITHMETIC.match(line[0]) and not _MOVE.match(line[1])]
    loops = []
    for at, (name, operands, _) in enumerate(lines):
        if not name.lower().startswith("bra"):
            continue
        target = re.search(r"(\.L_x_\d+|\$L__BB\w+)", operands)
        start = labels.get(target[1], at) if target else at
        if start < at and sum(start <= b <= at for b in busy) >= 0.9 * len(busy):
            loops.append((at - start, start, at))
    if not loops:
        raise ValueError("no loop holds the packed 16-bit arithmetic")
    _, start, stop = min(loops)
    return start, stop
