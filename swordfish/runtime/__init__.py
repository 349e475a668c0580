"""One path for every kernel: source -> compile -> artifact -> disk cache -> load -> launch.

::

    source = assemble("swordfish/decode/device/ring.cu", "decode_ring", {"SF_BITS": 4, "SF_GROUP": 128})
    kernel = get_kernel(source, device_props(x.device).arch)
    kernel.launch(LaunchConfig(grid=(64, 1, 1), block=(256, 1, 1), shared_bytes=65536), [x, w, y,
    np.int32(m)])

Importing this package brings neither a compiler nor CUDA with it. ``docs/runtime.md`` describes the whole.
"""

from swordfish.runtime.artifact import Artifact, ArtifactMetadata
from swordfish.runtime.backend import Emulation, active_emulation, emulate
from swordfish.runtime.cache import CacheInfo, cache_directory, default_cache
from swordfish.runtime.cute import CuteSource
from swordfish.runtime.device import KNOWN_ARCHS, DeviceProps, arch_for_capability, check_arch, device_props
from swordfish.runtime.driver import DriverError
from swordfish.runtime.launch import Kernel, LaunchConfig, PreparedLaunch
from swordfish.runtime.registry import compile_many, forget_kernels, get_artifact, get_kernel, kernel_key
from swordfish.runtime.source import KernelSource, assemble
from swordfish.runtime.tensor_map import TensorMap

__all__ = [
    "KNOWN_ARCHS",
    "Artifact",
    "ArtifactMetadata",
    "CacheInfo",
    "CuteSource",
    "DeviceProps",
    "DriverError",
    "Emulation",
    "Kernel",
    "KernelSource",
    "LaunchConfig",
    "PreparedLaunch",
    "TensorMap",
    "active_emulation",
    "arch_for_capability",
    "assemble",
    "cache_directory",
    "check_arch",
    "compile_many",
    "default_cache",
    "device_props",
    "emulate",
    "forget_kernels",
    "get_artifact",
    "get_kernel",
    "kernel_key",
]
