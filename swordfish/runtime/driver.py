"""The few CUDA driver calls that loading and launching need, through ``cuda.bindings``; status always
checked.

The driver API is used directly because a launch through it costs about half a microsecond of host time, and
because importing it brings no compiler with it.
"""

from __future__ import annotations

import functools
from typing import Any

from swordfish.errors import SwordfishError

__all__ = ["DriverError", "bind_context", "bindings", "check"]


class DriverError(SwordfishError, RuntimeError):
    """The CUDA driver refused a call; the message names the call, what it was for and the driver's reason."""

    def __init__(self, call: str, status: Any, context: str) -> None:
        self.status = status
        super().__init__(f"{call} failed with {getattr(status, 'name', status)} {context}".rstrip())


@functools.cache
def bindings() -> Any:
    """``cuda.bindings.driver``, with the driver initialised.

    Raises:
        DriverError: there is no CUDA driver on this machine.
    """
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DriverError("loading libcuda", error, "(is an NVIDIA driver installed?)") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError("cuInit", status, "")
    return driver


def check(call: str, result: tuple[Any, ...], context: str = "") -> Any:
    """Unpack ``(status, *values)`` of a driver call: no value, one, or a tuple.

    Raises:
        DriverError: the status is not success.
    """
    status, *values = result
    if status != 0:
        raise DriverError(call, status, context)
    return values[0] if len(values) == 1 else tuple(values)


def bind_context(device: int) -> None:
    """Make the primary context of CUDA device ``device`` current in this thread, which may never have used
    CUDA. Setting the device through torch does not when the index stays the same.

    Raises:
        DriverError: the driver refuses.
    """
    check("cuCtxSetCurrent", bindings().cuCtxSetCurrent(_primary_context(device)), f"on cuda:{device}")


@functools.cache
def _primary_context(device: int) -> Any:
    """Retained for the process, as torch does."""
    driver = bindings()
    handle = check("cuDeviceGet", driver.cuDeviceGet(device), f"for cuda:{device}")
    retained = driver.cuDevicePrimaryCtxRetain(handle)
    return check("cuDevicePrimaryCtxRetain", retained, f"for cuda:{device}")
