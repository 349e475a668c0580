"""Tensor maps: the descriptors that bulk tensor copies (TMA) read.

A :class:`TensorMap` says in plain numbers what ``cuTensorMapEncodeTiled`` is told, so that one object serves
both backends: the launcher encodes it with the driver, the emulator reads the fields.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Literal

import torch

from swordfish.errors import ArgumentError
from swordfish.runtime.driver import bindings, check

__all__ = ["TENSOR_MAP_BYTES", "TensorMap"]

TENSOR_MAP_BYTES = 128

ElementType = Literal[
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32"
]
Swizzle = Literal["none", "32B", "64B", "128B", "128B_ATOM_32B"]

_ELEMENT_BYTES: dict[str, int] = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map over global memory. Dimension 0 is the contiguous one, as in the driver API.

    ``tensor`` owns the memory and gives its address; ``element_type`` may reinterpret its bytes. ``dims`` and
    ``box`` are in elements; ``strides`` in bytes for dimensions 1 and up (``len(dims) - 1`` of them,
    multiples of 16); ``element_strides`` step within the box (1: dense). Out-of-bounds elements read as zero,
    or as NaN with ``nan_fill``.

    The limits checked here are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor Map Object
    Management").

    Raises:
        ArgumentError: a field outside them.
    """

    tensor: torch.Tensor
    element_type: ElementType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = "none"
    l2_promotion: Literal["none", "64B", "128B", "256B"] = "none"
    nan_fill: bool = False
    element_strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))
        rank = len(self.dims)
        if not 1 <= rank <= 5:
            raise ArgumentError("dims", self.dims, "1 to 5 dimensions")
        if len(self.strides) != rank - 1 or any(s <= 0 or s % 16 or s >= 1 << 40 for s in self.strides):
            raise ArgumentError(
                "strides", self.strides, f"{rank - 1} positive multiples of 16 bytes below 2^40"
            )
        if any(not 1 <= d <= 1 << 32 for d in self.dims):
            raise ArgumentError("dims", self.dims, "sizes between 1 and 2^32")
        if len(self.box) != rank or any(not 1 <= b <= 256 for b in self.box):
            raise ArgumentError("box", self.box, f"{rank} sizes between 1 and 256")
        if len(self.element_strides) != rank or any(not 1 <= e <= 8 for e in self.element_strides):
            raise ArgumentError("element_strides", self.element_strides, f"{rank} steps between 1 and 8")
        inner = self.box[0] * self.element_bytes
        if inner % 16:
            raise ArgumentError("box", self.box, "a first dimension of a multiple of 16 bytes")
        span = {"32B": 32, "64B": 64, "128B": 128, "128B_ATOM_32B": 128}.get(self.swizzle)
        if span is not None and inner > span:
            raise ArgumentError(
                "box", self.box, f"a first dimension of at most {span} bytes with swizzle {self.swizzle}"
            )
        if self.tensor.data_ptr() % 16:
            raise ArgumentError(
                "tensor", f"address {self.tensor.data_ptr():#x}", "memory aligned to 16 bytes"
            )

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return _ELEMENT_BYTES[self.element_type]

    @property
    def address(self) -> int:
        """Address of element 0."""
        return self.tensor.data_ptr()

    def get_device(self) -> int:
        """Index of the tensor's CUDA device, -1 for the CPU; named as for a tensor."""
        return self.tensor.get_device()

    @functools.cached_property
    def encoded(self) -> bytes:
        """The 128 bytes that the GPU reads, encoded by the driver once.

        Raises:
            DriverError: no driver, or it refuses the description.
        """
        driver = bindings()
        promotion = "NONE" if self.l2_promotion == "none" else f"L2_{self.l2_promotion}"
        fill = "NAN_REQUEST_ZERO_FMA" if self.nan_fill else "NONE"
        rank = len(self.dims)
        # The map must be aligned to its own size, which a Python object's memory is not, so cuda.bindings'
        # CUtensorMap cannot hold it and the driver is called with a buffer that is.
        storage = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
        offset = -ctypes.addressof(storage) % TENSOR_MAP_BYTES
        status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.c_void_p(ctypes.addressof(storage) + offset),
            int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{self.element_type.upper()}")),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * rank)(*self.dims),
            (ctypes.c_uint64 * rank)(*self.strides),
            (ctypes.c_uint32 * rank)(*self.box),
            (ctypes.c_uint32 * rank)(*self.element_strides),
            int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{self.swizzle.upper()}")),
            int(getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}")),
            int(getattr(driver.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}")),
        )
        check("cuTensorMapEncodeTiled", (driver.CUresult(status),), f"for {self}")
        return storage.raw[offset : offset + TENSOR_MAP_BYTES]
