"""``swordfish doctor``: what is installed, what works, what is wrong and how to mend it."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

__all__ = ["Finding", "doctor", "examine"]

Status = Literal["ok", "note", "problem"]
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One line: ``note`` limits what can be done here, ``problem`` is a defect; both say what to do in
    ``remedy``."""

    subject: str
    status: Status
    detail: str
    remedy: str = ""


def doctor() -> int:
    """Print all findings; 1 if there is a problem."""
    console = Console(highlight=False, soft_wrap=True)
    problems = 0
    for finding in examine():
        problems += finding.status == "problem"
        mark = Text(f"{finding.status:8}", style=_STYLES[finding.status])
        console.print(mark, f"{finding.subject}: {finding.detail}", sep="")
        if finding.remedy:
            console.print(f"        -> {finding.remedy}", markup=False)
    console.print("nothing is wrong" if not problems else f"{problems} problem{'s' * (problems > 1)} found")
    return 1 if problems else 0


def examine() -> Iterator[Finding]:
    """All findings, in order; a check that fails in an unforeseen way is a problem of its own."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("versions", _versions),
        ("GPU", _gpu),
        ("NVRTC", _nvrtc),
        ("CuTe DSL", _cute),
        ("cache", _cache),
        ("emulator", _emulator),
    )
    for subject, check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding(subject, "problem", f"{type(error).__name__}: {error}")


def _versions() -> Iterator[Finding]:
    import torch

    import swordfish

    yield Finding(
        "swordfish",
        "ok",
        f"{swordfish.__version__}, Python {platform.python_version()}, {platform.platform()}",
    )
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    yield Finding("torch", "ok", f"{torch.__version__} ({cuda})")
    for wheel in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc"):
        try:
            yield Finding(wheel, "ok", importlib.metadata.version(wheel))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(wheel, "problem", "not installed", f"pip install {wheel}")


def _driver_version() -> int | None:
    """The driver's CUDA version (13010 for 13.1), ``None`` without a driver."""
    from cuda.bindings import driver

    try:
        status, version = driver.cuDriverGetVersion()
    except RuntimeError:
        return None
    return int(version) if status == 0 else None


def _gpu() -> Iterator[Finding]:
    import torch

    from swordfish.errors import UnsupportedDeviceError
    from swordfish.runtime.device import device_props

    version = _driver_version()
    if version is None:
        yield Finding("driver", "note", "none: kernels compile and run on the emulator, not on a GPU")
        return
    shown = f"CUDA {version // 1000}.{version % 1000 // 10}"
    if version < 13000:
        yield Finding(
            "driver", "problem", f"{shown}, but cubins of CUDA 13 need 13.0", "install driver 580 or newer"
        )
    else:
        yield Finding("driver", "ok", shown)
    if torch.version.cuda is None:
        yield Finding(
            "torch", "problem", "a CPU build on a machine with a GPU driver", "install torch for CUDA 13"
        )
        return
    if not torch.cuda.is_available():
        yield Finding("GPU", "problem", "torch sees none", "check CUDA_VISIBLE_DEVICES and nvidia-smi")
        return
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            props = device_props(index)
        except UnsupportedDeviceError as error:
            yield Finding(f"cuda:{index}", "problem", f"{name}: {error}")
            continue
        detail = f"{name}, {props.arch}, {props.sm_count} SMs, L2 {props.l2_bytes >> 20} MiB"
        yield Finding(f"cuda:{index}", "ok", detail)


def _nvrtc() -> Iterator[Finding]:
    from swordfish.errors import SwordfishError
    from swordfish.runtime.compile import compile_source, loaded_nvrtc_version
    from swordfish.runtime.device import KNOWN_ARCHS
    from swordfish.runtime.source import KernelSource

    source = KernelSource('extern "C" __global__ void probe(int* out) { out[threadIdx.x] = 1; }', "probe")
    start = time.perf_counter()
    try:
        for arch in KNOWN_ARCHS:
            compile_source(source, arch)
    except SwordfishError as error:
        yield Finding("NVRTC", "problem", str(error), "pip install --force-reinstall nvidia-cuda-nvrtc")
        return
    seconds = time.perf_counter() - start
    archs = ", ".join(KNOWN_ARCHS)
    yield Finding("NVRTC", "ok", f"{loaded_nvrtc_version()} compiles for {archs} ({seconds:.2f} s together)")


_CUTE_PROBE = """
import cutlass
from cutlass.base_dsl.version_info import CUDA_VERSION
print(cutlass.__version__, CUDA_VERSION.major, CUDA_VERSION.minor)
"""


def _cute() -> Iterator[Finding]:
    """In a process of its own: which of the CUDA 12 and 13 libraries is active shows only after the
    import."""
    from swordfish.runtime.cute import CUTE_LIBRARIES_REMEDY

    done = subprocess.run(
        [sys.executable, "-c", _CUTE_PROBE], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        yield Finding("CuTe DSL", "problem", reason, 'pip install "nvidia-cutlass-dsl[cu13]"')
        return
    version, major, minor = done.stdout.split()[-3:]
    if int(major) < 13:
        detail = f"{version} with the libraries of CUDA {major}.{minor}, which compile sm_110a as sm_101a"
        yield Finding("CuTe DSL", "problem", detail, CUTE_LIBRARIES_REMEDY)
    else:
        yield Finding("CuTe DSL", "ok", f"{version} with the libraries of CUDA {major}.{minor}")


def _cache() -> Iterator[Finding]:
    from swordfish.runtime.cache import default_cache

    state = default_cache().info()
    detail = f"{state.directory}, {state.entries} entries, {state.size_bytes / 2**20:.1f} MiB"
    if state.writable:
        yield Finding("cache", "ok", detail)
    else:
        yield Finding("cache", "problem", f"{detail}: every process compiles again", state.problem)


def _emulator() -> Iterator[Finding]:
    from swordfish.emulator import NoCompilerError, native

    try:
        yield Finding("emulator", "ok", f"C++ compiler {native.find_compiler()}")
    except NoCompilerError as error:
        yield Finding("emulator", "note", str(error))
