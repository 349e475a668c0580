"""What was measured on: versions, the GPU, and its clocks while it works."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from swordfish.tune.timing import CudaBackend

__all__ = ["ClockReader", "copy_bandwidth", "describe_device", "save", "versions"]

PACKAGES = ("torch", "triton", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "humming-kernels", "vllm")
QUERY = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
FIELDS = ("sm_mhz", "mem_mhz", "power_w", "temperature_c")


def versions() -> dict[str, str]:
    """Versions of Python, CUDA and of the packages that matter; absent packages are left out."""
    found = {"python": platform.python_version(), "cuda (torch)": str(torch.version.cuda)}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _smi(fields: str, index: int) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={index}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")]


def describe_device(index: int = 0) -> dict[str, Any]:
    """Name, SM count, L2 size, memory and driver of a CUDA device."""
    properties = torch.cuda.get_device_properties(index)
    try:
        driver = _smi("driver_version", index)[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        driver = "unknown"
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)) or 64 << 20,
        "memory_bytes": properties.total_memory,
        "driver": driver,
    }


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


class ClockReader:
    """Reads SM clock, memory clock, power and temperature, through NVML or else ``nvidia-smi``.

    :meth:`read` is meant to be called while queued work keeps the GPU busy. Where neither source works it
    returns ``{}``; ``source`` says which one answered.
    """

    def __init__(self, index: int = 0) -> None:
        self.source = "none"
        self._read: Callable[[], dict[str, float | None]] = dict
        for source, factory in (("nvml", self._nvml), ("nvidia-smi", self._nvidia_smi)):
            try:
                reader = factory(index)
                reader()
            except Exception:  # NVML raises its own family of errors; any failure means: try the next source
                continue
            self.source, self._read = source, reader
            return

    def read(self) -> dict[str, float | None]:
        """One sample."""
        return self._read()

    @staticmethod
    def _nvml(index: int) -> Callable[[], dict[str, float | None]]:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)

        def read() -> dict[str, float | None]:
            return {
                "sm_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                "mem_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
                "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "temperature_c": float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            }

        return read

    @staticmethod
    def _nvidia_smi(index: int) -> Callable[[], dict[str, float | None]]:
        def read() -> dict[str, float | None]:
            values = _smi(",".join(QUERY), index)
            return {field: _number(value) for field, value in zip(FIELDS, values, strict=True)}

        return read


def copy_bandwidth(bytes_moved: int = 4 << 30, repeats: int = 10) -> float:
    """TB/s of a device-to-device copy, counting bytes read and written."""
    source = torch.empty(bytes_moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    clock = CudaBackend()
    start = clock.mark()
    for _ in range(repeats):
        target.copy_(source)
    end = clock.mark()
    clock.synchronize()
    return bytes_moved * repeats / (clock.elapsed_us(start, end) * 1e6)


def save(path: Path | None, schema: str, rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """Rows measured on the current CUDA device as JSON, with what they were measured on; nothing without a
    path."""
    if path is None:
        return
    device = describe_device(torch.cuda.current_device())
    document = {"schema": schema, "device": device, "versions": versions(), **more, "rows": rows}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
