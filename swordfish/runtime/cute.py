"""CuTe DSL kernels on the same path as CUDA text: compiled by a worker process into the same artifact.

The DSL is needed only on a cache miss; a process that launches never imports it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from swordfish.errors import CompileError
from swordfish.runtime.artifact import Artifact, ArtifactMetadata
from swordfish.runtime.cubin import read_cubin
from swordfish.runtime.device import check_arch
from swordfish.runtime.toolchain import cute_toolchain

__all__ = ["CUTE_LIBRARIES_REMEDY", "CuteSource", "compile_cute", "keep_workers"]

ConfigValue: TypeAlias = "int | str | bool | None"

CUTE_LIBRARIES_REMEDY = "pip install --force-reinstall --no-deps nvidia-cutlass-dsl-libs-cu13"

_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class CuteSource:
    """A CuTe DSL kernel named by the function that builds it, with a flat configuration.

    ``module:function`` is called in the worker as ``function(config, arch)`` and returns ``(jit_function,
    arguments)`` for ``cute.compile``, the arguments being fake tensors and plain values; the jitted host
    function makes exactly one launch. ``packages`` are the packages whose source text the kernel is made of;
    all their ``.py`` files are part of the cache key.
    """

    module: str
    function: str
    config: tuple[tuple[str, ConfigValue], ...]
    packages: tuple[str, ...]

    @classmethod
    def of(
        cls, module: str, function: str, config: Mapping[str, ConfigValue], *, packages: tuple[str, ...] = ()
    ) -> CuteSource:
        """A source with ``config`` in sorted order; ``packages`` defaults to the one that ``module`` is
        in."""
        return cls(
            module,
            function,
            tuple(sorted(config.items())),
            packages or (module.rpartition(".")[0] or module,),
        )

    def identity(self) -> dict[str, Any]:
        """Everything that the code depends on besides architecture and compiler."""
        return {
            "kind": "cute",
            "builder": f"{self.module}:{self.function}",
            "config": self.config,
            "text": [_package_digest(package) for package in self.packages],
        }

    def toolchain(self) -> dict[str, str]:
        """The compiler that :meth:`compile` would use, and its version."""
        return cute_toolchain()

    def compile(self, arch: str) -> Artifact:
        """See :func:`compile_cute`."""
        return compile_cute(self, arch)


def compile_cute(source: CuteSource, arch: str) -> Artifact:
    """Compile ``source`` for ``arch`` in a worker process.

    The artifact's ``dynamic_shared_bytes`` is what the DSL's own launch would ask for. ``cute.compile`` keeps
    no ptxas log, so ``spill_bytes`` counts all stack use: an upper bound, exact when it is zero.

    Raises:
        UnsupportedDeviceError: an unknown ``arch``.
        CompileError: the DSL rejects the kernel, dies, or compiles for another architecture.
    """
    check_arch(arch)
    request = {
        "module": source.module,
        "function": source.function,
        "config": dict(source.config),
        "arch": arch,
    }
    name = f"{source.module}:{source.function} for {arch}"
    with _borrowed_worker() as worker:
        answer = worker.ask(request, name)
    cubin, ptx = b64decode(answer["cubin"]), answer["ptx"]
    target, entry = _TARGET.search(ptx), _ENTRY.search(ptx)
    if target is None or entry is None or target[1] != arch:
        raise CompileError(
            f"{name}: the CuTe DSL compiled for {target[1] if target else 'nothing'}; its CUDA 12 libraries "
            f"are active instead of the CUDA 13 ones. Remedy: {CUTE_LIBRARIES_REMEDY}"
        )
    try:
        info = read_cubin(cubin, entry[1])
    except ValueError as error:
        raise CompileError(f"{name}: {error}") from error
    metadata = ArtifactMetadata(
        entry=entry[1],
        arch=arch,
        registers=info.registers,
        spill_bytes=info.local_bytes,
        local_bytes=info.local_bytes,
        shared_bytes=info.shared_bytes,
        dynamic_shared_bytes=answer["shared_bytes"],
        max_threads=info.max_threads,
        param_sizes=info.param_sizes,
        toolchain=cute_toolchain(),
        build_seconds=answer["seconds"],
    )
    return Artifact(cubin, ptx, metadata)


@functools.cache
def _package_digest(package: str) -> str:
    """Digest of the names and texts of all Python files of a package (or of a single-file module)."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise CompileError(f"package {package!r} of a CuTe kernel cannot be found")
    digest = hashlib.blake2b(digest_size=16)
    roots = spec.submodule_search_locations or []
    files = [(path.relative_to(root), path) for root in map(Path, roots) for path in root.rglob("*.py")]
    if not roots and spec.origin is not None:
        files = [(Path(spec.origin).relative_to(Path(spec.origin).parent), Path(spec.origin))]
    for relative, path in sorted(files):
        text = path.read_bytes()
        digest.update(f"{relative.as_posix()}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


# Run by path, but with this folder kept off the module search path.
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


class _Worker:
    """One process of ``cute_worker.py``, in a folder of its own because the DSL writes files where it
    runs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="swordfish-cute-")
        self._log = open(Path(self._folder.name) / "log", "w+b")  # noqa: SIM115 (closed by close)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        environment["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"  # this package's cache holds the result
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(Path(__file__).with_name("cute_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self._folder.name,
            env=environment,
            text=True,
        )

    def ask(self, request: dict[str, Any], name: str) -> dict[str, Any]:
        """The worker's answer; raises ``CompileError`` if it is an error or there is none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            code = self._process.wait()
            self._log.seek(0)
            log = self._log.read().decode(errors="replace")[-4000:]
            raise CompileError(f"{name}: the compiler process ended with code {code}:\n{log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CompileError(f"{name} does not compile:\n{answer['error']}")
        return answer

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
        self._folder.cleanup()


_lock = threading.Lock()
_idle: list[_Worker] = []
_keepers = 0


@contextlib.contextmanager
def keep_workers() -> Iterator[None]:
    """While open, worker processes are kept for the next kernel instead of ending after one."""
    global _keepers
    with _lock:
        _keepers += 1
    try:
        yield
    finally:
        with _lock:
            _keepers -= 1
            ended = [] if _keepers else [_idle.pop() for _ in range(len(_idle))]
        for worker in ended:
            worker.close()


@contextlib.contextmanager
def _borrowed_worker() -> Iterator[_Worker]:
    with _lock:
        worker = _idle.pop() if _idle else None
    worker = worker or _Worker()
    reusable = False
    try:
        yield worker
        reusable = True
    finally:
        with _lock:
            kept = reusable and _keepers > 0
            if kept:
                _idle.append(worker)
        if not kept:
            worker.close()
