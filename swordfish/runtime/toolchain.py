"""Which compilers are installed, found without loading any of them: their versions are part of every cache
key."""

from __future__ import annotations

import functools
from importlib import metadata

__all__ = ["cute_toolchain", "nvrtc_toolchain"]


@functools.cache
def nvrtc_toolchain() -> dict[str, str]:
    """``{"nvrtc": "13.0.88"}``: from the installed wheel, else by asking the library of the system's toolkit.

    Raises:
        CompileError: neither is there.
    """
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13"):
        version = _installed(wheel)
        if version is not None:
            return {"nvrtc": version}
    from swordfish.runtime.compile import loaded_nvrtc_version

    return {"nvrtc": loaded_nvrtc_version()}


@functools.cache
def cute_toolchain() -> dict[str, str]:
    """Version of every wheel that takes part in a CuTe DSL compile; a missing one reads ``"none"``."""
    wheels = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13")
    return {wheel: _installed(wheel) or "none" for wheel in wheels}


def _installed(wheel: str) -> str | None:
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError:
        return None
