"""What a decision may know about a GPU: its properties, never its name."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from swordfish.errors import ArgumentError, UnsupportedDeviceError

__all__ = ["KNOWN_ARCHS", "DeviceProps", "arch_for_capability", "check_arch", "device_props"]

_ARCH_OF_CAPABILITY = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (11, 0): "sm_110a"}
KNOWN_ARCHS: tuple[str, ...] = tuple(_ARCH_OF_CAPABILITY.values())

_NEEDED = "compute capability 9.0 (sm_90a), 10.0 (sm_100a), 10.3 (sm_103a) or 11.0 (sm_110a)"
_REMEDY = "Run on one of these GPUs, or keep the tensors on the CPU to use the reference path."


def arch_for_capability(capability: tuple[int, int]) -> str:
    """Full architecture of a compute capability: ``(9, 0)`` -> ``"sm_90a"``.

    The kernels use instructions of one family each (wgmma, tcgen05), which neither older nor newer families
    run, so capabilities are looked up, never compared.

    Raises:
        UnsupportedDeviceError: any other capability; the first sentence names what was found and what is
            needed.
    """
    arch = _ARCH_OF_CAPABILITY.get((int(capability[0]), int(capability[1])))
    if arch is None:
        found = f"{capability[0]}.{capability[1]}"
        raise UnsupportedDeviceError(
            f"the GPU has compute capability {found}, but Swordfish needs {_NEEDED}. {_REMEDY}"
        )
    return arch


def check_arch(arch: str) -> str:
    """Return ``arch`` if it is one of :data:`KNOWN_ARCHS`.

    Raises:
        UnsupportedDeviceError: anything else, ``"sm_90"`` without its suffix included.
    """
    if arch not in KNOWN_ARCHS:
        raise UnsupportedDeviceError(
            f"architecture {arch!r} is not supported: needed is one of {', '.join(KNOWN_ARCHS)}"
        )
    return arch


@dataclass(frozen=True)
class DeviceProps:
    """Properties of one GPU, all sizes in bytes.

    ``smem_per_cta`` is the largest dynamic plus static shared memory a CTA may opt into; ``smem_per_sm`` is
    what the CTAs of an SM share, each costing ``smem_reserved`` on top of its own; ``name`` is for printing
    only.
    """

    arch: str
    sm_count: int
    smem_per_cta: int
    smem_per_sm: int
    l2_bytes: int
    smem_reserved: int = 1024
    name: str = ""

    @classmethod
    def for_target(cls, arch: str) -> DeviceProps:
        """Properties of the datacenter GPU of each family, to plan and compile for where there is none.

        Sources: CUDA C++ Programming Guide, "Compute Capabilities" (shared memory); NVIDIA's H200,
            B200, B300 and Jetson Thor data sheets (SMs, L2).

        Raises:
            UnsupportedDeviceError: ``arch`` is not one of :data:`KNOWN_ARCHS`.
        """
        return _TARGETS[check_arch(arch)]


_KIB, _MIB = 1024, 1024 * 1024


def _target(arch: str, sm_count: int, l2_mib: int, name: str) -> DeviceProps:
    return DeviceProps(arch, sm_count, 227 * _KIB, 228 * _KIB, l2_mib * _MIB, name=name)


_TARGETS = {
    "sm_90a": _target("sm_90a", 132, 60, "H200"),
    "sm_100a": _target("sm_100a", 148, 126, "B200"),
    "sm_103a": _target("sm_103a", 148, 126, "B300"),
    "sm_110a": _target("sm_110a", 20, 32, "Thor"),
}


def device_props(device: torch.device | str | int) -> DeviceProps:
    """Properties of the device that a tensor lives on.

    A CUDA device is asked (once each); the CPU stands for the target being emulated, see
    :func:`swordfish.emulate`.

    Raises:
        UnsupportedDeviceError: the GPU is of a family without kernels.
        ArgumentError: a CPU device while nothing is emulated, or a device of another kind.
    """
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type == "cuda":
        return _cuda_props(torch.cuda.current_device() if place.index is None else place.index)
    if place.type == "cpu":
        from swordfish.runtime.backend import active_emulation

        emulation = active_emulation()
        if emulation is not None:
            return DeviceProps.for_target(emulation.arch)
    raise ArgumentError(
        "device",
        place,
        "a CUDA device",
        'On the CPU, kernels run only inside "with swordfish.emulate(arch):".',
    )


@functools.cache
def _cuda_props(index: int) -> DeviceProps:
    found: Any = torch.cuda.get_device_properties(index)
    return DeviceProps(
        arch=arch_for_capability((found.major, found.minor)),
        sm_count=found.multi_processor_count,
        smem_per_cta=found.shared_memory_per_block_optin,
        smem_per_sm=found.shared_memory_per_multiprocessor,
        l2_bytes=found.L2_cache_size,
        name=found.name,
    )
