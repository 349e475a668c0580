"""The disk cache of compiled kernels: bytes by content key, bounded, atomic, never in the way.

An entry is a whole :class:`~swordfish.runtime.artifact.Artifact` in one file of ``cuda.core``'s
``FileStreamProgramCache``: written to a temporary file and renamed into place, so that a reader sees all of
it or nothing, and evicted least recently read first. There are no locks, so nothing can be left locked by a
killed process; processes that miss together compile the same kernel more than once and publish equal entries.

What can go wrong with a cache must not stop a computation: an unusable directory gives one warning and the
process works from memory; a damaged or foreign entry is a miss; a failed write is dropped with one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swordfish.runtime.artifact import FORMAT_VERSION, Artifact, DamagedArtifactError

__all__ = [
    "CACHE_DIR_VARIABLE",
    "MAX_BYTES",
    "ArtifactCache",
    "CacheInfo",
    "cache_directory",
    "content_key",
    "default_cache",
]

CACHE_DIR_VARIABLE = "SWORDFISH_CACHE_DIR"
MAX_BYTES = 1 << 30  # some thousand kernels of 100 to 500 KB


def content_key(fields: Mapping[str, Any], arch: str, toolchain: Mapping[str, str]) -> bytes:
    """Key of a kernel: a digest of everything that its code depends on and of nothing else (no paths, no
    times).

    ``fields`` describes the source (kind, text, entry, options) as plain JSON values; ``toolchain`` names
    each compiler with its version.
    """
    record = {"format": FORMAT_VERSION, "source": fields, "arch": arch, "toolchain": toolchain}
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=32).digest()


def cache_directory() -> Path:
    """``$SWORDFISH_CACHE_DIR``, else the platform's user cache directory; not created here."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("swordfish", appauthor=False))


@dataclass(frozen=True)
class CacheInfo:
    """State of a cache: its directory, whether it can be written, entries and their bytes, bound in bytes."""

    directory: Path
    writable: bool
    problem: str
    entries: int
    size_bytes: int
    max_bytes: int


class ArtifactCache:
    """Disk cache of artifacts in ``directory`` (see the module's text); safe to share between threads and
    processes."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._store: Any = None
        self._problem: str | None = None
        self._write_warned = False

    def get(self, key: bytes, *, arch: str) -> Artifact | None:
        """The artifact stored under ``key``, or ``None``.

        A damaged entry, or one of another architecture, is removed and is a miss.
        """
        store = self._open()
        if store is None:
            return None
        try:
            blob = store[key]
        except (KeyError, OSError):
            return None
        try:
            artifact = Artifact.from_bytes(blob)
        except DamagedArtifactError:
            artifact = None
        if artifact is None or artifact.metadata.arch != arch:
            with contextlib.suppress(KeyError, OSError):
                del store[key]
            return None
        return artifact

    def put(self, key: bytes, artifact: Artifact) -> None:
        """Store; a full disk or a directory that has become read-only drops the entry with one warning."""
        store = self._open()
        if store is None:
            return
        try:
            store[key] = artifact.to_bytes()
        except OSError as error:
            if not self._write_warned:
                self._write_warned = True
                warnings.warn(
                    f"compiled kernels cannot be kept in {self.directory} ({error}); each process will "
                    f"compile again. Free some space or set {CACHE_DIR_VARIABLE} to another directory.",
                    stacklevel=2,
                )

    def info(self) -> CacheInfo:
        """Entries, bytes and state, read from the directory without creating it."""
        files = [path for path in (self.directory / "entries").rglob("*") if path.is_file()]
        probe = self.directory
        while not probe.exists() and probe != probe.parent:
            probe = probe.parent
        writable = _writable(probe)
        return CacheInfo(
            directory=self.directory,
            writable=writable,
            problem="" if writable else f"{probe} cannot be written; set {CACHE_DIR_VARIABLE} to another one",
            entries=len(files),
            size_bytes=sum(_size(path) for path in files),
            max_bytes=self.max_bytes,
        )

    def clear(self) -> int:
        """Remove all entries and the old leftovers of killed writers; returns the number of entries removed.

        Raises:
            OSError: a file cannot be removed.
        """
        entries = self.info().entries
        store = self._open() if entries else None
        if store is not None:
            store.clear()
        return entries - self.info().entries

    def _open(self) -> Any:
        """The store, opened on first use; ``None`` when the directory is unusable, which is reported once."""
        if self._store is not None or self._problem is not None:
            return self._store
        with self._lock:
            if self._store is None and self._problem is None:
                from cuda.core.utils import FileStreamProgramCache

                try:
                    self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._store = FileStreamProgramCache(self.directory, max_size_bytes=self.max_bytes)
                except OSError as error:
                    self._problem = str(error)
                    warnings.warn(
                        f"the kernel cache directory {self.directory} cannot be used ({error}); compiled "
                        "kernels live in this process only. "
                        f"Set {CACHE_DIR_VARIABLE} to a directory that can be written.",
                        stacklevel=2,
                    )
        return self._store


_default: dict[Path, ArtifactCache] = {}


def default_cache() -> ArtifactCache:
    """The process's cache in :func:`cache_directory`; follows the variable if it changes."""
    directory = cache_directory()
    cache = _default.get(directory)
    if cache is None:
        cache = _default.setdefault(directory, ArtifactCache(directory))
    return cache


def _writable(folder: Path) -> bool:
    """Whether a file can be made there; tried, because permission bits do not tell for every file system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
