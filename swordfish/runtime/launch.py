"""Load a compiled kernel where it is needed and launch it: one call for the GPU and for the emulator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swordfish.errors import ArgumentError
from swordfish.runtime import torch_cuda
from swordfish.runtime.arguments import CPU_DEVICE, Argument, ArgumentLayout
from swordfish.runtime.artifact import Artifact
from swordfish.runtime.backend import active_emulation
from swordfish.runtime.device import device_props
from swordfish.runtime.driver import bind_context, bindings, check
from swordfish.runtime.raw_launch import RawLaunch, raw_launch
from swordfish.runtime.tensor_map import TensorMap

__all__ = ["Kernel", "LaunchConfig", "PreparedLaunch"]

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_MAX_CLUSTER = 16
_PORTABLE_CLUSTER = 8
_PREPARED_KEPT = 256
_SHARED_WITHOUT_ASKING = 48 * 1024

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchConfig:
    """Shape of a launch. ``grid`` counts CTAs (not clusters) and is a multiple of ``cluster`` in every
    dimension; ``shared_bytes`` is dynamic shared memory per CTA; ``programmatic`` lets the kernel start
    before the previous one on the stream has ended (programmatic dependent launch).

    Raises:
        ArgumentError: a dimension outside the limits of compute capability 9.0 and later (CUDA C++
            Programming Guide, "Technical Specifications per Compute Capability").
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    shared_bytes: int = 0
    programmatic: bool = False

    def __post_init__(self) -> None:
        for name, value, limits in (("grid", self.grid, _MAX_GRID), ("block", self.block, _MAX_BLOCK)):
            if len(value) != 3 or any(not 1 <= v <= most for v, most in zip(value, limits, strict=True)):
                raise ArgumentError(name, value, f"three sizes from 1 to {limits}")
        if self.threads > _MAX_THREADS:
            raise ArgumentError("block", self.block, f"at most {_MAX_THREADS} threads")
        if len(self.cluster) != 3 or min(self.cluster) < 1 or self.cluster_size > _MAX_CLUSTER:
            raise ArgumentError(
                "cluster", self.cluster, f"three sizes from 1, at most {_MAX_CLUSTER} CTAs together"
            )
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise ArgumentError("grid", self.grid, f"a multiple of cluster={self.cluster}")
        if self.shared_bytes < 0:
            raise ArgumentError("shared_bytes", self.shared_bytes, "0 or more")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


class Kernel:
    """A compiled kernel; loads on a device at its first launch there. Safe to use from several threads."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._lock = threading.Lock()
        self._library: Any = None
        self._functions: dict[int, Any] = {}
        self._shared_allowed: dict[int, int] = {}
        self._prepared: dict[LaunchConfig, PreparedLaunch] = {}

    def __repr__(self) -> str:
        metadata = self.artifact.metadata
        entry = metadata.entry if len(metadata.entry) <= 48 else metadata.entry[:45] + "..."
        return f"Kernel({entry}, {metadata.arch}, {metadata.registers} registers)"

    def launch(self, config: LaunchConfig, args: Sequence[Argument], stream: Any = None) -> None:
        """Launch on the device of the tensors in ``args``; see :class:`PreparedLaunch` for arguments and
        errors."""
        self.prepare(config)(args, stream)

    def prepare(self, config: LaunchConfig) -> PreparedLaunch:
        """The launch of this kernel with ``config``, everything that does not depend on the arguments done
        once.

        Raises:
            ArgumentError: the CTA is larger than the kernel was compiled for.
        """
        prepared = self._prepared.get(config)
        if prepared is None:
            limit = self.artifact.metadata.max_threads
            if limit and config.threads > limit:
                raise ArgumentError(
                    "block", config.block, f"at most the {limit} threads that {self} was compiled for"
                )
            prepared = PreparedLaunch(self, config)
            if len(self._prepared) >= _PREPARED_KEPT:
                self._prepared.clear()
            self._prepared[config] = prepared
        return prepared

    def load(self, device: int, config: LaunchConfig) -> Any:
        """The kernel's ``CUfunction`` on CUDA device ``device``, allowed to launch with ``config``.

        Also works while a stream is being captured into a graph.

        Raises:
            ArgumentError: the kernel is for another architecture, or needs more shared memory than a CTA can
                have. DriverError: the driver refuses the cubin.
        """
        metadata = self.artifact.metadata
        props = device_props(device)
        if props.arch != metadata.arch:
            raise ArgumentError("device", f"cuda:{device} ({props.arch})", f"the architecture of {self}")
        needed = metadata.shared_bytes + config.shared_bytes
        if needed > props.smem_per_cta:
            raise ArgumentError(
                "shared_bytes",
                config.shared_bytes,
                f"at most {props.smem_per_cta - metadata.shared_bytes} for {self} "
                f"on cuda:{device}, where a CTA can have {props.smem_per_cta} bytes",
            )
        driver = bindings()
        where = f"for {self} on cuda:{device}"
        previous = torch_cuda.exchange_device(device)
        bind_context(device)
        # Loading is forbidden while a capture is under way unless this thread says that it knows what it
        # does.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        mode = check("cuThreadExchangeStreamCaptureMode", driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            with self._lock:
                function = self._functions.get(device)
                if function is None:
                    function = self._functions[device] = self._load(driver, where)
                attribute = driver.CUfunction_attribute
                if config.shared_bytes > self._shared_allowed.get(
                    device, _SHARED_WITHOUT_ASKING - metadata.shared_bytes
                ):
                    shared = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    check(
                        "cuFuncSetAttribute",
                        driver.cuFuncSetAttribute(function, shared, config.shared_bytes),
                        where,
                    )
                    self._shared_allowed[device] = config.shared_bytes
                if config.programmatic and config.shared_bytes:
                    # Kernels overlap on an SM only where they agree how its memory is divided between L1 and
                    # shared memory: small launches between large ones started up to 0.6 us late.
                    carveout = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
                    check("cuFuncSetAttribute", driver.cuFuncSetAttribute(function, carveout, 100), where)
                if config.cluster_size > _PORTABLE_CLUSTER:
                    cluster = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                    check("cuFuncSetAttribute", driver.cuFuncSetAttribute(function, cluster, 1), where)
        finally:
            driver.cuThreadExchangeStreamCaptureMode(mode)
            torch_cuda.exchange_device(previous)
        return function

    def _load(self, driver: Any, where: str) -> Any:
        """Load the cubin once for the process; the returned function belongs to the current context."""
        if self._library is None:
            loaded = driver.cuLibraryLoadData(self.artifact.cubin, [], [], 0, [], [], 0)
            self._library = check("cuLibraryLoadData", loaded, where)
        name = self.artifact.metadata.entry.encode()
        kernel = check("cuLibraryGetKernel", driver.cuLibraryGetKernel(self._library, name), where)
        return check("cuKernelGetFunction", driver.cuKernelGetFunction(kernel), where)


class PreparedLaunch:
    """A kernel with its launch shape; calling it launches. Safe to call from several threads.

    ``prepared(args, stream=None)`` launches on the device that the tensors of ``args`` share, on ``stream``
    (a ``torch.cuda.Stream`` or a raw handle; default: torch's current stream of that device), and returns at
    once. The current device is the same after the call as before. CPU tensors run on the emulator if a target
    is being emulated.

    ``args`` are torch tensors (the kernel gets the address of their first element), ``None`` (a null
    pointer), ints by value in the size of the parameter, numpy scalars by value,
    :class:`~swordfish.runtime.tensor_map.TensorMap` or ``bytes`` (an opaque by-value parameter).

    Raises (when called):
        ArgumentError: tensors on more than one device, on the CPU with nothing emulated, or on a GPU that the
            kernel does not fit; arguments that differ from the kernel's parameters in number or size.
        ArgumentTypeError: an argument of another kind.
        DriverError: the launch fails; raised by this call, not by a later one.
    """

    def __init__(self, kernel: Kernel, config: LaunchConfig) -> None:
        self.kernel = kernel
        self.config = config
        self._layouts: dict[tuple[type, ...], ArgumentLayout] = {}
        self._raw: dict[tuple[ArgumentLayout, int], RawLaunch] = {}

    def __call__(self, args: Sequence[Argument], stream: Any = None) -> None:
        layout = self._layout(args)
        device = layout.device(args)
        if device < 0:
            if device == CPU_DEVICE or not torch.cuda.is_available():
                self._emulate(args)
                return
            device = torch_cuda.current_device()
        launch = self._on(device, layout)
        if stream is None:
            stream = torch_cuda.raw_stream(device)
        stream, values = getattr(stream, "cuda_stream", stream), layout.values(args)
        previous = torch_cuda.current_device()
        if previous == device:
            launch(stream, *values)
            return
        torch_cuda.exchange_device(device)
        try:
            launch(stream, *values)
        finally:
            torch_cuda.exchange_device(previous)

    def raw(self, device: int) -> RawLaunch:
        """The same launch on CUDA device ``device`` for arguments that are known to be right: loaded, and
        told addresses instead of tensors. A fraction of the host time, which a call of a few microseconds
        notices.

        Raises:
            ArgumentError, DriverError: as a call does when it loads the kernel.
        """
        sizes = self.kernel.artifact.metadata.param_sizes
        return self._on(device, self._layout([0 if size in (4, 8) else bytes(size) for size in sizes]))

    def _layout(self, args: Sequence[Argument]) -> ArgumentLayout:
        types = tuple(map(type, args))
        found = self._layouts.get(types)
        if found is None:
            metadata = self.kernel.artifact.metadata
            found = self._layouts[types] = ArgumentLayout(metadata.entry, args, metadata.param_sizes)
        return found

    def _on(self, device: int, layout: ArgumentLayout) -> RawLaunch:
        found = self._raw.get((layout, device))
        if found is None:
            function = self.kernel.load(device, self.config)
            found = raw_launch(function, device, layout, self.config, self.kernel)
            self._raw[layout, device] = found
        return found

    def _emulate(self, args: Sequence[Argument]) -> None:
        artifact = self.kernel.artifact
        metadata = artifact.metadata
        emulation = active_emulation()
        if emulation is None:
            raise ArgumentError(
                "args",
                "tensors on the CPU",
                "CUDA tensors",
                'Kernels run on the CPU only inside "swordfish.emulate".',
            )
        if emulation.arch != metadata.arch:
            raise ArgumentError("arch", emulation.arch, f"the architecture of {self.kernel}")
        from swordfish import emulator

        report = emulator.run(
            artifact.ptx,
            metadata.entry,
            [_for_emulator(arg) for arg in args],
            self.config,
            arch=emulation.arch,
            seed=emulation.seed,
            **emulation.options,
        )
        programmatic = self.config.programmatic
        report = emulator.check_order(report, emulation.running, artifact.ptx, programmatic=programmatic)
        emulation.reports.append(report)


def _for_emulator(arg: Argument) -> Any:
    """The emulator's own tensor map for a :class:`TensorMap`; everything else as it is."""
    if not isinstance(arg, TensorMap):
        return arg
    from swordfish.emulator import TensorMap as EmulatorMap

    fields = ("tensor", "dtype", "dims", "strides", "box", "element_strides", "swizzle", "fill")
    return EmulatorMap(**{name: getattr(arg, name) for name in fields})
