"""What a GPU answered, in one compressed file."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path

import numpy as np

__all__ = ["Recording"]


class Recording:
    """Outputs by case (none for one that faults, whose error is in ``faults``), followed by its encoded tensor maps. The file is xz over a JSON line (names, fingerprints, dtypes, shapes) and the raw arrays."""

    def __init__(self) -> None:
        self.device = ""
        self.outputs: dict[str, list[np.ndarray]] = {}
        self.fingerprints: dict[str, int] = {}
        self.faults: dict[str, str] = {}

    def add(self, name: str, fingerprint: int, outputs: list[np.ndarray]) -> None:
        self.outputs[name], self.fingerprints[name] = outputs, fingerprint

    def drop(self, name: str) -> None:
        del self.outputs[name], self.fingerprints[name]
        self.faults.pop(name, None)

    def save(self, path: Path) -> None:
        raw = io.BytesIO()
        entries = []
        for name, outputs in self.outputs.items():
            entries.append([name, self.fingerprints[name], [[a.dtype.str, list(a.shape)] for a in outputs]])
            for a in outputs:
                raw.write(a.tobytes())
        head = json.dumps(
            {"device": self.device, "cases": entries, "faults": self.faults}, separators=(",", ":")
        ).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(head + b"\n" + raw.getvalue(), preset=9))

    @classmethod
    def load(cls, path: Path) -> Recording:
        head, _, raw = lzma.decompress(path.read_bytes()).partition(b"\n")
        table = json.loads(head)
        out = cls()
        out.device, out.faults = table["device"], table.get("faults", {})
        position = 0
        for name, fingerprint, arrays in table["cases"]:
            outputs = []
            for dtype, shape in arrays:
                count = int(np.prod(shape))
                outputs.append(np.frombuffer(raw, np.dtype(dtype), count, position).reshape(shape))
                position += outputs[-1].nbytes
            out.add(name, fingerprint, outputs)
        return out
