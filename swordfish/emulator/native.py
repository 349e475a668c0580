"""Compiles the C++ core at its first use, caches the shared library, and loads it.

The library's file name is a hash of the sources and of the compile command, so a changed core or compiler is
rebuilt. Cold, the build takes some tens of seconds; later processes load it in milliseconds."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from swordfish.emulator.errors import EmulatorError, NoCompilerError

__all__ = ["cache_folder", "library", "op_ids"]

SOURCES = Path(__file__).parent / "core"
FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC",
         "-march=native", "-Wall", "-Wextra")  # fmt: skip
EXPORTS = SOURCES / "exports.map"
LINK_FLAGS = ("-shared", f"-Wl,--version-script={EXPORTS}")


def cache_folder() -> Path:
    """Where compiled cores are kept: ``SWORDFISH_CACHE_DIR`` if set, else the user's cache folder."""
    root = os.environ.get("SWORDFISH_CACHE_DIR")
    if root:
        return Path(root) / "emulator"
    import platformdirs

    return Path(platformdirs.user_cache_dir("swordfish")) / "emulator"


def find_compiler() -> str:
    """The C++ compiler: ``CXX`` if set, else ``c++``, ``g++`` or ``clang++``.

    Raises ``NoCompilerError`` when there is none.
    """
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise NoCompilerError(
        "the emulator compiles its C++ core at the first use and found no compiler: looked for $CXX, c++, "
        "g++ and clang++ on PATH. Install one (for example the package g++), or set CXX to its path"
    )


def _digest(*parts: bytes) -> str:
    h = hashlib.sha256()
    for p in parts:
        h.update(len(p).to_bytes(8, "little") + p)
    return h.hexdigest()[:24]


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(
            f"compiling the emulator's core failed: {' '.join(command)}\n{done.stderr[-4000:]}"
        )


def _atomic(target: Path, command: list[str]) -> Path:
    """Run ``command + [-o, temporary]`` and move the result to ``target``; concurrent builders do no harm."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
        os.close(fd)
        try:
            _compile([*command, "-o", temporary])
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def _processor() -> bytes:
    """What ``-march=native`` depends on: the processor's features, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}".encode()
    return b"\n".join(sorted({x for x in lines if x.startswith((b"flags", b"Features", b"model name"))}))


def build() -> Path:
    """Compile the core if its library is not cached; the library's path."""
    cxx = find_compiler()
    version = subprocess.run([cxx, "--version"], capture_output=True, check=False).stdout
    key = [cxx.encode(), version, " ".join(FLAGS).encode(), _processor()]
    headers = b"".join(p.read_bytes() for p in sorted(SOURCES.glob("*.hpp")))
    units = sorted(SOURCES.glob("*.cpp"))
    folder = cache_folder()
    contents = [EXPORTS.read_bytes(), headers, *(p.name.encode() + p.read_bytes() for p in units)]
    library_path = folder / f"core-{_digest(*key, *contents)}.so"
    if library_path.exists():
        return library_path

    def unit(p: Path) -> Path:
        target = folder / "objects" / f"{p.stem}-{_digest(*key, headers, p.read_bytes())}.o"
        return _atomic(target, [cxx, *FLAGS, "-c", str(p)])

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(unit, units))
    return _atomic(library_path, [cxx, *LINK_FLAGS, *map(str, objects)])


@functools.cache
def library() -> Any:
    """The loaded core."""
    lib = ctypes.CDLL(str(build()))
    lib.sf_op_name.restype = ctypes.c_char_p
    lib.sf_new.restype = ctypes.c_void_p
    lib.sf_results.restype = ctypes.c_char_p
    for name in ("sf_free", "sf_run", "sf_results"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.sf_region.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_char_p,
    ]
    p, i = ctypes.c_void_p, ctypes.c_int
    lib.sf_program.argtypes = [p, i, p, p, i, p, p, p, p, p, p, i, p, i, p, i, i, i]
    lib.sf_launch.argtypes = [p, p, p, p, i, i, i, i, i, ctypes.c_uint64, ctypes.c_uint64, p, i]
    lib.sf_tensor_map.argtypes = [p, ctypes.c_uint64, i, p, p, p, p, p]
    return lib


@functools.cache
def op_ids() -> dict[str, int]:
    """Handler name -> number, as registered by the core's instruction families."""
    lib = library()
    return {lib.sf_op_name(k).decode(): k for k in range(lib.sf_op_count())}


def compile_c(source: Path) -> Path:
    """Compile one C source to a shared library, cached by its text; the library's path."""
    cxx = find_compiler()
    flags = ["-x", "c", "-O1", "-fPIC", "-shared"]
    digest = _digest(cxx.encode(), platform.node().encode(), " ".join(flags).encode(), source.read_bytes())
    return _atomic(cache_folder() / f"{source.stem}-{digest}.so", [cxx, *flags, str(source)])
