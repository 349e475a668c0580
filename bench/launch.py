"""Compile and launch the harness's own kernels, with NVRTC and the driver API and nothing of the library
under test."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["RawKernel", "compile_cubin"]


def _check(result: tuple[Any, ...], call: str) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{call} failed: {status.name}")
    return values[0] if len(values) == 1 else None


def compile_cubin(text: str, defines: Mapping[str, int], arch: str) -> bytes:
    """Machine code of a CUDA C++ text for ``arch`` (``sm_90a``). Needs no GPU. Raises ``RuntimeError`` with
    the log."""
    from cuda.bindings import nvrtc

    program = _check(nvrtc.nvrtcCreateProgram(text.encode(), b"bench.cu", 0, [], []), "nvrtcCreateProgram")
    options = [f"--gpu-architecture={arch}".encode(), b"-std=c++17"]
    options += [f"-D{name}={value}".encode() for name, value in defines.items()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        _check(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
        raise RuntimeError(f"{status.name}\n{log.decode()}")
    cubin = b" " * _check(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _check(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    return cubin


class RawKernel:
    """An ``extern "C"`` kernel loaded on the current device; arguments are tensors (their address) and
    integers (64 bit).

    Launches go to torch's current stream. ``programmatic`` lets a launch begin before the one ahead of it has
    ended.
    """

    def __init__(
        self, cubin: bytes, entry: str, *, shared_bytes: int = 0, programmatic: bool = False
    ) -> None:
        from cuda.bindings import driver

        torch.cuda.current_stream().synchronize()  # makes torch's context current on this thread
        self._driver: Any = driver
        self._module = _check(driver.cuModuleLoadData(cubin), "cuModuleLoadData")
        self._function = _check(
            driver.cuModuleGetFunction(self._module, entry.encode()), "cuModuleGetFunction"
        )
        self._shared, self._programmatic = shared_bytes, programmatic
        if shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(self._function, attribute, shared_bytes), "cuFuncSetAttribute")

    def __call__(self, grid: int, block: int, *args: torch.Tensor | int) -> None:
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = self._shared
        config.hStream = torch.cuda.current_stream().cuda_stream
        if self._programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        values = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args)
        types = tuple(ctypes.c_void_p if isinstance(a, torch.Tensor) else ctypes.c_uint64 for a in args)
        _check(driver.cuLaunchKernelEx(config, self._function, (values, types), 0), "cuLaunchKernelEx")
