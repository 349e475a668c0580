"""Helpers of the emulator's tests: PTX around a body, CUDA C++ through NVRTC, and a launch configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from swordfish import emulator

Run = Callable[..., emulator.Report]


@dataclass(frozen=True)
class Launch:
    grid: tuple[int, ...] = (1, 1, 1)
    block: tuple[int, ...] = (32, 1, 1)
    cluster: tuple[int, ...] = (1, 1, 1)
    shared_bytes: int = 0


HEADER = """.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .u64 p0, .param .u64 p1) {
.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<32>;
.reg .b32 tid, warp, lane, smem; .reg .b64 a, b;
ld.param.u64 a, [p0];
ld.param.u64 b, [p1];
mov.u32 tid, %tid.x;
shr.u32 warp, tid, 5;
and.b32 lane, tid, 31;
mov.u32 smem, dyn;
"""


@functools.lru_cache(maxsize=32)
def nvrtc(source: str, arch: str = "sm_90a") -> str:
    """PTX that NVRTC makes of CUDA C++."""
    from cuda.bindings import nvrtc as lib

    _, program = lib.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    options = [f"-arch={arch}".encode(), b"--std=c++17", b"-default-device"]
    (error,) = lib.nvrtcCompileProgram(program, len(options), options)
    if error:
        size = lib.nvrtcGetProgramLogSize(program)[1]
        log = b" " * size
        lib.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    size = lib.nvrtcGetPTXSize(program)[1]
    text = b" " * size
    lib.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0")


@pytest.fixture
def ptx_run() -> Run:
    """``ptx_run(body, args, block=64, ...)`` runs a PTX body with pointers ``a`` and ``b`` and the registers
    of HEADER."""

    def run(
        body: str,
        args: Sequence[Any] = (None, None),
        *,
        grid: int = 1,
        block: int = 32,
        cluster: int = 1,
        shared: int = 4096,
        arch: str = "sm_90a",
        **options: Any,
    ) -> emulator.Report:
        text = HEADER + body + "\nret;\n}\n"
        return emulator.run(
            text, "k", list(args), Launch((grid,), (block,), (cluster,), shared), arch=arch, **options
        )

    return run


@pytest.fixture
def cuda_run() -> Run:
    """``cuda_run(source, args, grid=..., block=...)`` compiles kernel ``k`` with NVRTC and runs it."""

    def run(
        source: str,
        args: Sequence[Any],
        *,
        grid: int = 1,
        block: int = 32,
        cluster: int = 1,
        shared: int = 0,
        arch: str = "sm_90a",
        **options: Any,
    ) -> emulator.Report:
        return emulator.run(
            nvrtc(source, arch),
            "k",
            list(args),
            Launch((grid,), (block,), (cluster,), shared),
            arch=arch,
            **options,
        )

    return run
