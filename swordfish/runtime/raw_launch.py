"""A kernel loaded on a device with its launch shape: all that is left to say is stream and arguments."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from swordfish.errors import ArgumentError
from swordfish.runtime.arguments import ArgumentFrame, ArgumentLayout
from swordfish.runtime.driver import DriverError, bind_context, bindings

if TYPE_CHECKING:
    from swordfish.runtime.launch import LaunchConfig

__all__ = ["RawLaunch", "raw_launch"]

RawLaunch: TypeAlias = "Callable[..., None]"
"""``launch(stream, *values)``: queues a kernel on the stream of this handle. Safe to call from several
threads.

The device must be current. ``values`` are the kernel's parameters in order, unchecked: addresses and integers
as ints (null is 0), everything larger as bytes. Raises ``ArgumentError`` for a number that its parameter has
no room for, ``DriverError`` if the launch fails.
"""

_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: a thread that has not used this device yet


def raw_launch(
    function: Any, device: int, layout: ArgumentLayout, config: LaunchConfig, kernel: object
) -> RawLaunch:
    """A launch of the driver's ``function`` on ``device``. A closure, which is the cheapest thing to call.

    ``kernel`` is what an error calls it.
    """
    frames: list[_Frame] = []

    def failed(status: Any, frame: _Frame) -> None:
        """Again in a thread that had no context; everything else is an error."""
        if status == _INVALID_CONTEXT:
            bind_context(device)
            (status,) = frame.launch()
        if status != 0:
            raise DriverError("cuLaunchKernelEx", status, f"for {kernel} on cuda:{device} with {config}")

    def launch(stream: int, *values: Any) -> None:
        # One launch at a time owns a frame; list.pop and list.append are atomic.
        try:
            frame = frames.pop()
        except IndexError:
            frame = _Frame(function, layout, config)
        try:
            frame.fill(*values)
        except struct.error as error:
            raise ArgumentError("args", values, f"what fits the parameters of {kernel}", str(error)) from None
        if frame.stream != stream:
            frame.config.hStream = frame.stream = stream
        (status,) = frame.launch()
        if status != 0:
            failed(status, frame)
        frames.append(frame)

    return launch


class _Frame:
    """What one launch in flight owns: its parameter buffer and the driver's launch description."""

    def __init__(self, function: Any, layout: ArgumentLayout, config: LaunchConfig) -> None:
        driver = bindings()
        self._arguments = ArgumentFrame(layout)
        self.fill = self._arguments.fill
        self.config = driver.CUlaunchConfig()
        self.config.hStream = self.stream = 0
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = config.grid
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = config.block
        self.config.sharedMemBytes = config.shared_bytes
        kinds, attributes = driver.CUlaunchAttributeID, []
        if config.cluster_size > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = (
                config.cluster
            )
            attributes.append(attribute)
        if config.programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        self.config.attrs = attributes
        self.config.numAttrs = len(attributes)
        self.launch = functools.partial(
            driver.cuLaunchKernelEx, self.config, function, self._arguments.address, 0
        )
