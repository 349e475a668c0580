"""CuTe DSL kernels for ``test_runtime_cute.py``; imported by the worker process only.

No ``from __future__ import annotations``: the DSL reads the annotations of nested functions.
"""

import os
import sys
from typing import Any

import cutlass
import cutlass.cute as cute


def build_scale(config: dict[str, Any], arch: str) -> tuple[Any, list[Any]]:
    """``y[i] = factor * x[i]`` by way of shared memory."""
    factor, threads = config["factor"], config["threads"]

    @cute.kernel
    def scale(x: cute.Pointer, y: cute.Pointer, n: cutlass.Int32):
        tile = cutlass.Array(cutlass.Float32, threads, space=cutlass.AddressSpace.smem, alignment=16)
        i, _, _ = cute.arch.thread_idx()
        if i < n:
            tile.subview(i).store((x + i).load() * factor)
        cute.arch.sync_threads()
        if i < n:
            (y + i).store(tile.subview(i).load())

    @cute.jit
    def host(x: cute.Pointer, y: cute.Pointer, n: cutlass.Int32):
        scale(x, y, n).launch(grid=(1, 1, 1), block=(threads, 1, 1))

    pointer = cute.runtime.make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    return host, [pointer, pointer, cutlass.Int32(1)]


def build_nothing(config: dict[str, Any], arch: str) -> tuple[Any, list[Any]]:
    """A builder that refuses its configuration."""
    raise ValueError(f"cannot tile {config['threads']} threads on {arch}")


def build_crash(config: dict[str, Any], arch: str) -> tuple[Any, list[Any]]:
    """A compiler that dies."""
    print("about to stop", file=sys.stderr, flush=True)
    os._exit(23)
