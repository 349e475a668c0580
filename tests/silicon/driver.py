"""The little of the CUDA driver that the recorder needs, through ctypes: no binding package, no toolkit."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .case import Case, TensorMapSpec

__all__ = ["CudaError", "Device"]

_DTYPES = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16",
           "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ")  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_ATTRIBUTE_CLUSTER = 4
_MAX_DYNAMIC_SHARED = 8
_NON_PORTABLE_CLUSTER = 9


class CudaError(RuntimeError):
    """A driver call failed."""


class _Attribute(c.Structure):
    _fields_ = [("id", c.c_uint), ("pad", c.c_uint), ("value", c.c_uint * 16)]


class _LaunchConfig(c.Structure):
    _fields_ = [
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("stream", c.c_void_p),
        ("attributes", c.POINTER(_Attribute)),
        ("count", c.c_uint),
    ]


class Device:
    """The first GPU, its primary context, and one blocking launch at a time."""

    def __init__(self) -> None:
        self._lib = c.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = c.c_int(), c.c_void_p()
        self._call("cuDeviceGet", c.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        name = c.create_string_buffer(100)
        self._call("cuDeviceGetName", name, 100, device)
        version = c.c_int()
        self._call("cuDriverGetVersion", c.byref(version))
        self.description = f"{name.value.decode()}, CUDA driver {version.value}"

    def _call(self, function: str, *args: object) -> None:
        code = getattr(self._lib, function)(*args)
        if code:
            text = c.c_char_p()
            self._lib.cuGetErrorName(code, c.byref(text))
            raise CudaError(f"{function}: {(text.value or b'?').decode()} ({code})")

    def run(self, case: Case, cubin: Path) -> list[np.ndarray]:
        """Launch once; returns the output buffers in the order of their indices, then the tensor maps as encoded.

        The address in a tensor map (its first eight bytes) is set to zero, since it differs from run to run.
        """
        module, function = c.c_void_p(), c.c_void_p()
        self._call("cuModuleLoadData", c.byref(module), cubin.read_bytes())
        self._call("cuModuleGetFunction", c.byref(function), module, case.entry.encode())
        if case.shared_bytes > 48 * 1024:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, case.shared_bytes)
        args = case.inputs()
        buffers = {i: self._upload(a) for i, a in enumerate(args) if isinstance(a, np.ndarray)}
        values: list[c.Array] = []
        for i, a in enumerate(args):
            if i in buffers:
                values.append((c.c_uint64 * 1)(buffers[i].value or 0))
            elif isinstance(a, TensorMapSpec):
                values.append(self._encode(a, buffers[a.buffer]))
            else:
                raw = np.asarray(a).tobytes()
                values.append((c.c_char * len(raw)).from_buffer_copy(raw))
        pointers = (c.c_void_p * len(values))(*(c.addressof(v) for v in values))
        self._launch(case, function, pointers)
        results = []
        for i in case.outputs:
            out = np.empty(args[i].shape, args[i].dtype)
            self._call("cuMemcpyDtoH_v2", c.c_void_p(out.ctypes.data), buffers[i], c.c_size_t(out.nbytes))
            results.append(out)
        for i, a in enumerate(args):
            if isinstance(a, TensorMapSpec):
                encoded = np.frombuffer(bytes(values[i]), dtype=np.uint8).copy()
                encoded[:8] = 0
                results.append(encoded)
        for pointer in buffers.values():
            self._call("cuMemFree_v2", pointer)
        self._call("cuModuleUnload", module)
        return results

    def _upload(self, array: np.ndarray) -> c.c_uint64:
        pointer = c.c_uint64()
        array = np.ascontiguousarray(array)
        self._call("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(array.nbytes))
        self._call("cuMemcpyHtoD_v2", pointer, c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes))
        return pointer

    def _launch(self, case: Case, function: c.c_void_p, pointers: c.Array) -> None:
        attribute = _Attribute(_ATTRIBUTE_CLUSTER, 0, (c.c_uint * 16)(*case.cluster))
        config = _LaunchConfig(
            (c.c_uint * 3)(*case.grid),
            (c.c_uint * 3)(*case.block),
            case.shared_bytes,
            None,
            c.pointer(attribute),
            int(case.cluster != (1, 1, 1)),
        )
        self._call("cuLaunchKernelEx", c.byref(config), function, pointers, None)
        self._call("cuCtxSynchronize")

    def _encode(self, spec: TensorMapSpec, address: c.c_uint64) -> c.Array:
        # The descriptor must lie on a 64-byte boundary, which ctypes does not promise.
        raw = (c.c_char * 256)()
        offset = -c.addressof(raw) % 64
        encoded = (c.c_char * 128).from_buffer(raw, offset)
        rank = len(spec.dims)
        self._call(
            "cuTensorMapEncodeTiled",
            c.byref(encoded),
            c.c_int(_DTYPES.index(spec.dtype)),
            c.c_uint(rank),
            address,
            _array(c.c_uint64, spec.dims),
            _array(c.c_uint64, spec.strides or (0,)),
            _array(c.c_uint32, spec.box),
            _array(c.c_uint32, spec.element_strides or (1,) * rank),
            c.c_int(0),
            c.c_int(_SWIZZLES[spec.swizzle]),
            c.c_int(0),
            c.c_int(int(spec.nan_fill)),
        )
        return encoded


def _array(kind: type, values: Sequence[int]) -> c.Array:
    return (kind * len(values))(*values)
