"""Kernel arguments: Python objects to the array of pointers to values that the driver copies at launch."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.runtime.tensor_map import TENSOR_MAP_BYTES, TensorMap

__all__ = ["CPU_DEVICE", "NO_DEVICE", "Argument", "ArgumentFrame", "ArgumentLayout"]

Argument: TypeAlias = "torch.Tensor | np.generic | int | TensorMap | bytes | None"

CPU_DEVICE = -1  # torch.Tensor.get_device() of a CPU tensor
NO_DEVICE = -2  # no tensor among the arguments

_OPAQUE_ALIGNMENT = 128  # a tensor map must be aligned to its size
_SCALAR_CODES: dict[type, str] = {
    np.bool_: "?",
    np.int8: "b",
    np.uint8: "B",
    np.int16: "h",
    np.uint16: "H",
    np.int32: "i",
    np.uint32: "I",
    np.int64: "q",
    np.uint64: "Q",
    np.float16: "e",
    np.float32: "f",
    np.float64: "d",
}


class ArgumentLayout:
    """Where each argument of a launch lies in the parameter buffer, worked out once per combination of types.

    Raises:
        ArgumentTypeError: an argument is none of the kinds that a kernel can take.
        ArgumentError: the number of arguments or a size differs from the kernel's parameters.
    """

    def __init__(self, entry: str, args: Sequence[Argument], param_sizes: Sequence[int]) -> None:
        if len(args) != len(param_sizes):
            raise ArgumentError(
                "args", f"{len(args)} arguments", f"the {len(param_sizes)} parameters of kernel {entry}"
            )
        self.tensors = tuple(i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor))
        self.maps = tuple(i for i, arg in enumerate(args) if isinstance(arg, TensorMap))
        self._placed = self.tensors + self.maps
        self.nulls = tuple(i for i, arg in enumerate(args) if arg is None)
        codes, self.offsets, at = ["<"], [], 0
        for i, (arg, size) in enumerate(zip(args, param_sizes, strict=True)):
            code, alignment = _code(f"args[{i}]", arg, size)
            if struct.calcsize("<" + code) != size:
                seen = f"{type(arg).__name__} of {struct.calcsize('<' + code)} bytes"
                raise ArgumentError(f"args[{i}]", seen, f"the {size} bytes that kernel {entry} takes there")
            start = -(-at // alignment) * alignment
            codes.append(f"{start - at}x{code}")
            self.offsets.append(start)
            at = start + size
        self.packer = struct.Struct("".join(codes))
        self.opaque = tuple((i, len(arg)) for i, arg in enumerate(args) if isinstance(arg, bytes))

    def device(self, args: Sequence[Any]) -> int:
        """Index of the CUDA device that all tensors share, :data:`CPU_DEVICE` or :data:`NO_DEVICE`.

        Raises:
            ArgumentError: tensors on different devices.
        """
        device = NO_DEVICE
        for i in self._placed:
            index = args[i].get_device()
            if index != device:
                if device != NO_DEVICE:
                    places = " and ".join(sorted({_place(args[j].get_device()) for j in self._placed}))
                    raise ArgumentError("args", f"tensors on {places}", "tensors on one device")
                device = index
        return device

    def values(self, args: Sequence[Any]) -> list[Any]:
        """What the kernel gets for ``args``, which have the layout's types: addresses, numbers and bytes."""
        values = list(args)
        for i in self.tensors:
            values[i] = values[i].data_ptr()
        for i in self.nulls:
            values[i] = 0
        for i in self.maps:
            values[i] = values[i].encoded
        for i, size in self.opaque:
            if len(values[i]) != size:  # struct would cut or pad in silence
                raise ArgumentError(f"args[{i}]", f"bytes of length {len(values[i])}", f"{size} bytes")
        return values


def _place(index: int) -> str:
    return "cpu" if index == CPU_DEVICE else f"cuda:{index}"


def _code(name: str, arg: Argument, size: int) -> tuple[str, int]:
    """``struct`` code and alignment of one argument for a parameter of ``size`` bytes."""
    if arg is None or isinstance(arg, torch.Tensor):
        return "Q", 8
    if type(arg) is int:
        return ("i" if size == 4 else "q"), 8
    if isinstance(arg, np.generic):
        code = _SCALAR_CODES.get(type(arg))
        if code is not None:
            return code, 8
    elif isinstance(arg, TensorMap):
        return f"{TENSOR_MAP_BYTES}s", _OPAQUE_ALIGNMENT
    elif isinstance(arg, bytes):
        return f"{len(arg)}s", _OPAQUE_ALIGNMENT
    allowed = "a torch tensor, None, an int, a numpy scalar such as np.float32(3), a TensorMap or bytes"
    raise ArgumentTypeError(name, type(arg).__name__, allowed)


class ArgumentFrame:
    """A parameter buffer with the pointer array into it, reused from launch to launch; one launch at a time
    owns it. ``fill(*values)`` writes raw values (:meth:`ArgumentLayout.values`); ``address`` is the array's,
    for the driver."""

    def __init__(self, layout: ArgumentLayout) -> None:
        self._storage = ctypes.create_string_buffer(layout.packer.size + _OPAQUE_ALIGNMENT)
        base = ctypes.addressof(self._storage)
        start = -base % _OPAQUE_ALIGNMENT
        pointers = [base + start + offset for offset in layout.offsets]
        self._pointers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self.address = ctypes.addressof(self._pointers)
        self.fill: Callable[..., None] = functools.partial(layout.packer.pack_into, self._storage, start)
