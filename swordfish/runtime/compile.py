"""Compile CUDA C++ for an explicit architecture with NVRTC. Takes plain values, launches nothing, needs no
driver."""

from __future__ import annotations

import io
import re
import time
from typing import Any

from swordfish.errors import CompileError
from swordfish.runtime.artifact import Artifact, ArtifactMetadata
from swordfish.runtime.cubin import read_cubin
from swordfish.runtime.device import check_arch
from swordfish.runtime.source import KernelSource
from swordfish.runtime.toolchain import nvrtc_toolchain

__all__ = ["compile_source", "loaded_nvrtc_version"]

_NO_NVRTC = "the CUDA runtime compiler (libnvrtc) cannot be loaded; remedy: pip install nvidia-cuda-nvrtc"
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_source(source: KernelSource, arch: str) -> Artifact:
    """Compile ``source`` for ``arch`` (``"sm_90a"``); one NVRTC call gives both the cubin and its PTX.

    Raises:
        UnsupportedDeviceError: ``arch`` is not one of the families that Swordfish has kernels for.
        CompileError: NVRTC is missing or rejects the text; the message carries its log.
    """
    check_arch(arch)
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CompileError(
            f"cuda-core cannot be imported ({error}); remedy: pip install cuda-core"
        ) from error

    start = time.perf_counter()
    log = io.StringIO()
    try:
        # -v costs nothing and is the only place where spills are told apart from other stack use. NVRTC's own
        # cache (it has one where there is a driver) would skip ptxas and with it this log.
        options = ProgramOptions(
            name=f"{source.entry}.cu",
            arch=arch,
            std="c++17",
            ptxas_options=["-v"],
            no_cache=True,
            **dict(source.options),
        )
        program = Program(source.text, "c++", options)
        cubin = bytes(program.compile("cubin", logs=log).code)
        ptx = _ptx(program)
    except Exception as error:
        if type(error).__name__ == "DynamicLibNotFoundError":
            raise CompileError(f"{_NO_NVRTC}\n{error}") from error
        raise CompileError(
            f"kernel {source.entry} does not compile for {arch}:\n{error}\n{log.getvalue()}"
        ) from error
    try:
        info = read_cubin(cubin, source.entry)
    except ValueError as error:
        raise CompileError(f"kernel {source.entry} for {arch}: {error}") from error
    metadata = ArtifactMetadata(
        entry=source.entry,
        arch=arch,
        registers=info.registers,
        spill_bytes=_spill_bytes(log.getvalue(), source.entry),
        local_bytes=info.local_bytes,
        shared_bytes=info.shared_bytes,
        dynamic_shared_bytes=0,
        max_threads=info.max_threads,
        param_sizes=info.param_sizes,
        toolchain=nvrtc_toolchain(),
        build_seconds=time.perf_counter() - start,
    )
    return Artifact(cubin, ptx, metadata)


def loaded_nvrtc_version() -> str:
    """``"major.minor"`` of the NVRTC library, loading it."""
    from cuda.bindings import nvrtc

    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise CompileError(f"{_NO_NVRTC}\n{error}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"nvrtcVersion returned {status!s}")
    return f"{major}.{minor}"


def _ptx(program: Any) -> str:
    from cuda.bindings import nvrtc

    status, size = nvrtc.nvrtcGetPTXSize(program.handle)
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        text = bytes(size)
        (status,) = nvrtc.nvrtcGetPTX(program.handle, text)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC gave no PTX: {status!s}")
    return text.rstrip(b"\0").decode()


def _spill_bytes(log: str, entry: str) -> int:
    """Bytes that ptxas says kernel ``entry`` stores and loads for spills, from its ``-v`` log."""
    _, found, section = log.partition(f"Function properties for {entry}\n")
    match = _SPILLS.search(section)
    if not found or match is None:
        raise CompileError(f"ptxas printed no resource usage for {entry}:\n{log}")
    return int(match[1]) + int(match[2])
