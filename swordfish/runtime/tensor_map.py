"""Tensor maps: the descriptors that bulk tensor copies (TMA) read.

A :class:`TensorMap` says in plain values what ``cuTensorMapEncodeTiled`` is told, so that one object serves
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

# Bits of an element in global memory, by data type.
_BITS = {
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "int32": 32,
    "uint64": 64,
    "int64": 64,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "16u4_align8b": 4,
    "16u4_align16b": 4,
}

# Swizzle mode -> (the driver's name for it, largest first box dimension in bytes).
_SWIZZLES = {
    "none": ("NONE", None),
    "32": ("32B", 32),
    "64": ("64B", 64),
    "128": ("128B", 128),
    "128_atom32": ("128B_ATOM_32B", 128),
    "128_atom32_flip8": ("128B_ATOM_32B_FLIP_8B", 128),
    "128_atom64": ("128B_ATOM_64B", 128),
}

_FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map over global memory. Dimension 0 is the contiguous one, as in the driver API.

    ``tensor`` owns the memory and gives the address of element 0; ``dtype`` names the element type, which may
    reinterpret the bytes. ``dims`` and ``box`` are in elements; ``strides`` in bytes for dimensions 1 and up
    (multiples of 16); ``element_strides`` step within the box (default: dense). Elements out of bounds read
    as zero, or as NaN with ``fill="nan"``.

    The limits checked here are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, tensor map management).

    Raises:
        ArgumentError: a field outside them.
    """

    tensor: torch.Tensor
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    fill: Literal["zero", "nan"] = "zero"
    l2_promotion: Literal["none", "64", "128", "256"] = "none"

    def __post_init__(self) -> None:
        rank = len(self.dims)
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * rank)
        if self.dtype not in _BITS:
            raise ArgumentError("dtype", self.dtype, f"one of {', '.join(_BITS)}")
        if self.swizzle not in _SWIZZLES:
            raise ArgumentError("swizzle", self.swizzle, f"one of {', '.join(_SWIZZLES)}")
        if not 1 <= rank <= 5 or any(not 1 <= d <= 1 << 32 for d in self.dims):
            raise ArgumentError("dims", self.dims, "1 to 5 sizes between 1 and 2^32")
        if len(self.strides) != rank - 1 or any(s <= 0 or s % 16 or s >= 1 << 40 for s in self.strides):
            raise ArgumentError(
                "strides", self.strides, f"{rank - 1} positive multiples of 16 bytes below 2^40"
            )
        if len(self.box) != rank or any(not 1 <= b <= 256 for b in self.box):
            raise ArgumentError("box", self.box, f"{rank} sizes between 1 and 256")
        if len(self.element_strides) != rank or any(not 1 <= e <= 8 for e in self.element_strides):
            raise ArgumentError("element_strides", self.element_strides, f"{rank} steps between 1 and 8")
        row, widest = self.box[0] * _BITS[self.dtype] // 8, _SWIZZLES[self.swizzle][1]
        if row % 16 and self.dtype != "16u4_align8b":
            raise ArgumentError("box", self.box, "a first dimension of a multiple of 16 bytes")
        if widest is not None and row > widest:
            allowed = f"a first dimension of at most {widest} bytes with swizzle {self.swizzle}"
            raise ArgumentError("box", self.box, allowed)
        if self.tensor.data_ptr() % 16:
            raise ArgumentError(
                "tensor", f"address {self.tensor.data_ptr():#x}", "memory aligned to 16 bytes"
            )

    def get_device(self) -> int:
        """Index of the tensor's CUDA device, -1 for the CPU; named as for a tensor."""
        return self.tensor.get_device()

    @functools.cached_property
    def encoded(self) -> bytes:
        """The 128 bytes that the GPU reads, encoded by the driver once for equal maps.

        Raises:
            DriverError: no driver, or it refuses the description.
        """
        return _encode(
            self.tensor.data_ptr(),
            self.dtype,
            self.dims,
            self.strides,
            self.box,
            self.element_strides,
            self.swizzle,
            self.fill,
            self.l2_promotion,
        )


@functools.lru_cache(maxsize=8192)
def _encode(
    address: int,
    dtype: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    element_strides: tuple[int, ...],
    swizzle: str,
    fill: str,
    l2_promotion: str,
) -> bytes:
    """``cuTensorMapEncodeTiled``, a function of plain values: nothing is read from ``address``."""
    driver = bindings()
    rank = len(dims)
    promotion = "NONE" if l2_promotion == "none" else f"L2_{l2_promotion}B"
    # The map must be aligned to its own size, which a Python object's memory is not, so cuda.bindings'
    # CUtensorMap cannot hold it and the driver is called with a buffer that is.
    storage = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
    offset = -ctypes.addressof(storage) % TENSOR_MAP_BYTES
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(storage) + offset),
        int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}")),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * rank)(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*element_strides),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle][0]}")),
        int(getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}")),
        int(getattr(driver.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{_FILLS[fill]}")),
    )
    check("cuTensorMapEncodeTiled", (driver.CUresult(status),), f"for {dtype} {dims}")
    return storage.raw[offset : offset + TENSOR_MAP_BYTES]
