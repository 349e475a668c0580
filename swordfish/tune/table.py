"""The per-device table of measured configurations: written by ``swordfish tune``, read by dispatch.

One JSON file a device in ``tuned/`` of the cache directory. The table is advice: whatever is wrong with it
(no file, damage, another device, a configuration that no longer fits), the rules of
:mod:`swordfish.decode.choose` apply instead. docs/tuning.md describes the format.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from swordfish.errors import ArgumentError
from swordfish.runtime.cache import cache_directory
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme
from swordfish.tune.candidates import check, from_plain, to_plain

__all__ = ["FORMAT", "FORMAT_VERSION", "ROWS", "Entry", "Table", "device_table", "row_bucket", "table_path"]

FORMAT = "swordfish.tuned"
FORMAT_VERSION = 1

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
"""Row buckets: a call belongs to the smallest that holds its rows; each is measured at its full size."""


def row_bucket(m: int) -> int | None:
    """The bucket of ``m`` rows; ``None`` beyond the last."""
    return next((rows for rows in ROWS if rows >= m), None)


@dataclass(frozen=True)
class Entry:
    """A configuration that beat the default: microseconds a call of both, measured in the same minute."""

    config: Any
    us: float
    default: Any
    default_us: float


@dataclass
class Table:
    """Entries of one device by problem, as the JSON values of the file; see :meth:`find` and :meth:`put`."""

    props: DeviceProps
    entries: dict[str, Any] = field(default_factory=dict)

    def find(self, scheme: Scheme, m: int, k: int, n: int, *, padded_rows: bool = False) -> Entry | None:
        """The entry for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows), or ``None``.

        ``None`` also for an entry of another Swordfish version, whose kernels and rules it says nothing
        about, and for one whose configuration this version or device cannot run.
        """
        from swordfish import __version__

        rows = row_bucket(m)
        plain = None if rows is None else self.entries.get(_key(scheme, rows, k, n))
        try:
            if plain is None or plain["versions"]["swordfish"] != __version__:
                return None
            config, default = from_plain(plain), from_plain(plain["default"])
            check(config, scheme, m, k, n, self.props, padded_rows=padded_rows)
            entry = Entry(config, float(plain["us"]), default, float(plain["default_us"]))
        except (ArgumentError, KeyError, TypeError, ValueError, AttributeError):
            return None
        return entry if 0 < entry.us < entry.default_us < math.inf else None

    def put(self, scheme: Scheme, rows: int, k: int, n: int, entry: Entry | None) -> None:
        """Set the entry of a row bucket; ``None`` removes what is there."""
        key = _key(scheme, rows, k, n)
        if entry is None:
            self.entries.pop(key, None)
            return
        self.entries[key] = {
            **to_plain(entry.config),
            "us": round(entry.us, 3),
            "default": to_plain(entry.default),
            "default_us": round(entry.default_us, 3),
            "versions": _versions(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }

    def save(self) -> Path:
        """Write the file: a temporary one beside it, renamed into place, so that readers see all or nothing.

        Raises:
            OSError: it cannot be written.
        """
        path = table_path(self.props)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "device": _identity(self.props),
            "name": self.props.name,
            "entries": self.entries,
        }
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, sort_keys=True)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return path

    @classmethod
    def load(cls, props: DeviceProps) -> Table:
        """The device's table; empty, with a warning, if the file is damaged or not this device's."""
        path = table_path(props)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            problem = _problem(content, props)
        except FileNotFoundError:
            return cls(props)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem:
            warnings.warn(
                f"the table of tuned kernels {path} is ignored ({problem}); "
                "remove it or write it anew with `swordfish tune`",
                stacklevel=2,
            )
            return cls(props)
        return cls(props, content["entries"])


@functools.cache
def device_table(props: DeviceProps) -> Table:
    """The table that dispatch reads: once a process and device."""
    return Table.load(props)


def table_path(props: DeviceProps) -> Path:
    """``tuned/sm_90a-132sm-....json`` in the cache directory: one file for each kind of device."""
    name = "-".join(
        (
            props.arch,
            f"{props.sm_count}sm",
            f"{props.smem_per_cta}b",
            f"{props.smem_per_sm}b",
            f"l2.{props.l2_bytes}b",
        )
    )
    return cache_directory() / "tuned" / f"{name}.json"


def _identity(props: DeviceProps) -> dict[str, Any]:
    """What a measurement depends on; devices that agree in it share a table."""
    names = ("arch", "sm_count", "smem_per_cta", "smem_per_sm", "l2_bytes")
    return {name: getattr(props, name) for name in names}


def _problem(content: Any, props: DeviceProps) -> str:
    """Why a file's content cannot be used; empty if it can."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return f"it is not a file of format {FORMAT}"
    if content.get("version") != FORMAT_VERSION:
        return f"it has format version {content.get('version')}, not {FORMAT_VERSION}"
    if content.get("device") != _identity(props):
        return f"it was measured on another device, {content.get('device')}"
    return "" if isinstance(content.get("entries"), dict) else "it has no entries"


def _key(scheme: Scheme, rows: int, k: int, n: int) -> str:
    parts: Mapping[str, object] = {
        "k": k,
        "n": n,
        "rows": rows,
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        "dtype": scheme.dtype,
        "zeros": scheme.zeros,
        "act_order": scheme.act_order,
    }
    return " ".join(f"{name}={value}" for name, value in parts.items())


def _versions() -> dict[str, str]:
    import torch

    from swordfish import __version__
    from swordfish.runtime.toolchain import nvrtc_toolchain

    return {
        "swordfish": __version__,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        **nvrtc_toolchain(),
    }
