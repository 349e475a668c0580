"""From a source to a kernel that can be launched: memory, then disk, then the compiler.

One path for every kernel and every purpose: a first call, a warm-up and an ahead-of-time build differ only in
who calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from swordfish.errors import ArgumentError
from swordfish.runtime.artifact import Artifact
from swordfish.runtime.cache import content_key, default_cache
from swordfish.runtime.cute import keep_workers
from swordfish.runtime.device import check_arch
from swordfish.runtime.launch import Kernel

__all__ = ["Source", "compile_many", "forget_kernels", "get_artifact", "get_kernel", "kernel_key"]


class Source(Protocol):
    """What can be compiled: :class:`~swordfish.runtime.source.KernelSource` and
    :class:`~swordfish.runtime.cute.CuteSource`. Hashable and picklable."""

    def identity(self) -> dict[str, Any]:
        """Everything that the code depends on besides architecture and toolchain, as plain JSON values."""

    def toolchain(self) -> dict[str, str]:
        """Compilers and their versions, found without loading them."""

    def compile(self, arch: str) -> Artifact:
        """Compile, with plain values only."""


_kernels: dict[tuple[Source, str], Kernel] = {}
_building: dict[tuple[Source, str], threading.Lock] = {}
_guard = threading.Lock()


def kernel_key(source: Source, arch: str) -> bytes:
    """Content key of ``source`` compiled for ``arch`` with the installed toolchain."""
    return content_key(source.identity(), arch, source.toolchain())


def get_artifact(source: Source, arch: str) -> Artifact:
    """The compiled kernel from the disk cache, else compiled now and stored.

    Raises:
        UnsupportedDeviceError: an unknown ``arch``.
        CompileError: it does not compile.
    """
    check_arch(arch)
    cache, key = default_cache(), kernel_key(source, arch)
    artifact = cache.get(key, arch=arch)
    if artifact is None:
        artifact = source.compile(arch)
        cache.put(key, artifact)
    return artifact


def get_kernel(source: Source, arch: str) -> Kernel:
    """The kernel of ``source`` for ``arch``, built at most once in this process; threads that ask together
    wait for one build. Raises what :func:`get_artifact` raises."""
    wanted = (source, arch)
    kernel = _kernels.get(wanted)
    if kernel is not None:
        return kernel
    with _guard:
        lock = _building.setdefault(wanted, threading.Lock())
    with lock:
        kernel = _kernels.get(wanted)
        if kernel is None:
            kernel = _kernels[wanted] = Kernel(get_artifact(source, arch))
    return kernel


def compile_many(
    requests: Iterable[tuple[Source, str]],
    *,
    workers: int | None = None,
    done: Callable[[Source, str, Artifact], None] | None = None,
) -> list[Artifact]:
    """Build ``(source, arch)`` pairs in parallel: ahead of time, or to warm up. Each lands in the disk cache.

    Threads are enough: NVRTC compiles outside the interpreter lock and CuTe kernels compile in processes of
    their own.

    Args:
        requests: pairs in any number; equal pairs are built once.
        workers: builds at a time; default: the number of CPUs.
        done: called from the caller's thread after each build, in the order of ``requests``.

    Returns:
        One artifact for each request, in order.

    Raises:
        CompileError: of the first request that does not compile; the others are still built.
        ArgumentError: ``workers`` below 1.
    """
    if workers is not None and workers < 1:
        raise ArgumentError("workers", workers, "1 or more")
    wanted = list(requests)
    pool_size = workers or os.cpu_count() or 1
    with keep_workers(), ThreadPoolExecutor(pool_size, "swordfish-compile") as pool:
        futures = {request: pool.submit(get_artifact, *request) for request in dict.fromkeys(wanted)}
        artifacts = []
        for source, arch in wanted:
            artifact = futures[source, arch].result()
            artifacts.append(artifact)
            if done is not None:
                done(source, arch, artifact)
    return artifacts


def forget_kernels() -> None:
    """Drop the kernels held in memory, so that the next request reads the disk cache."""
    with _guard:
        _kernels.clear()
        _building.clear()
