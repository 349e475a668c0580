"""Kernel arguments -> the parameter buffer, the regions that the kernel may touch, and the tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from swordfish.emulator.decode import Program
from swordfish.emulator.tensormap import ELEMENT_BITS, SWIZZLES, TensorMap
from swordfish.errors import ArgumentError, ArgumentTypeError

__all__ = ["Marshalled", "marshal"]

MAP_MAGIC = b"SWFTMAP\x01"
_FLOATS = ("float16", "bfloat16", "float32", "float32_ftz", "tfloat32", "tfloat32_ftz", "float64")


@dataclass
class Marshalled:
    """``params`` is the buffer, ``regions`` are ``(address, bytes, writable, name)``, ``maps`` go to the
    core."""

    params: bytearray
    regions: list[tuple[int, int, bool, str]] = field(default_factory=list)
    maps: list[tuple[int, TensorMap]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)


def extent(t: Any) -> tuple[int, int] | None:
    """Address and bytes of the memory behind a tensor or array, ``None`` for anything else."""
    if isinstance(t, torch.Tensor):
        s = t.untyped_storage()
        return s.data_ptr(), s.nbytes()
    if isinstance(t, np.ndarray):
        lo = int(t.ctypes.data)
        steps = [(n - 1) * s for n, s in zip(t.shape, t.strides, strict=True)]
        first, last = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return lo + first, (last - first + t.itemsize) if t.size else 0
    return None


def pointer(t: Any) -> int:
    """The address that a kernel gets for a tensor or array."""
    return int(t.data_ptr()) if isinstance(t, torch.Tensor) else int(t.ctypes.data)


def _region(out: Marshalled, t: Any, name: str) -> None:
    if isinstance(t, torch.Tensor) and t.device.type != "cpu":
        raise ArgumentError(name, t.device, "a CPU tensor for the emulator")
    e = extent(t)
    if e and e[1] and all(r[:2] != e for r in out.regions):
        writable = bool(t.flags.writeable) if isinstance(t, np.ndarray) else True
        out.regions.append((*e, writable, name))


def marshal(p: Program, args: Sequence[Any], regions: Sequence[Any] = ()) -> Marshalled:
    """Fill the parameter buffer of a decoded kernel.

    ``args`` are torch tensors, numpy arrays, ``None``, numpy or Python scalars, :class:`TensorMap` or
    ``bytes``. ``regions`` are more tensors that the kernel reaches through addresses hidden in opaque
    arguments.

    Raises ``ArgumentError`` when the number or the size of the arguments does not fit the kernel,
    ``ArgumentTypeError`` for a type that is not allowed."""
    if len(args) != len(p.params):
        raise ArgumentError(
            "args", f"{len(args)} values", f"{len(p.params)} values for the parameters of {p.name}"
        )
    out = Marshalled(bytearray(p.param_bytes))
    for k, (value, (name, size, offset, kind)) in enumerate(zip(args, p.params, strict=True)):
        label = f"args[{k}]"
        data = _bytes_of(out, value, label, size, kind, offset)
        if len(data) > size or (len(data) < size and isinstance(value, (bytes, bytearray, np.generic))):
            raise ArgumentError(label, f"{len(data)} bytes", f"{size} bytes for parameter {name}")
        out.params[offset : offset + len(data)] = data
    for t in regions:
        _region(out, t, "a registered buffer")
    return out


def _bytes_of(out: Marshalled, value: Any, label: str, size: int, kind: str, offset: int) -> bytes:
    if value is None:
        return bytes(8)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        _region(out, value, label)
        out.keep.append(value)
        return pointer(value).to_bytes(8, "little")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, (bool, int)):
        return (int(value) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
    if isinstance(value, float):
        return np.float64(value).tobytes() if kind == "f64" else np.float32(value).tobytes()
    if isinstance(value, ctypes.Structure):
        return bytes(value)
    if isinstance(value, TensorMap):
        check_map(value, label)
        if extent(value.tensor):
            _region(out, value.tensor, label)
            out.keep.append(value.tensor)
        out.maps.append((offset, value))
        return MAP_MAGIC + (len(out.maps) - 1).to_bytes(8, "little") + bytes(112)
    raise ArgumentTypeError(label, type(value).__name__, "a tensor, array, None, scalar, TensorMap or bytes")


def check_map(t: TensorMap, label: str) -> None:
    """Apply the encoder's limits (CUDA driver API, ``cuTensorMapEncodeTiled``) that a wrong map breaks most
    often."""
    if t.dtype not in ELEMENT_BITS:
        raise ArgumentTypeError(f"{label}.dtype", t.dtype, ", ".join(ELEMENT_BITS))
    if t.swizzle not in SWIZZLES:
        raise ArgumentError(f"{label}.swizzle", t.swizzle, ", ".join(SWIZZLES))
    rank = len(t.dims)
    if not 1 <= rank <= 5 or len(t.box) != rank or len(t.strides) != rank - 1:
        raise ArgumentError(
            label,
            f"dims {t.dims}, strides {t.strides}, box {t.box}",
            "1 to 5 dims, as many box, one stride less",
        )
    bits = ELEMENT_BITS[t.dtype]
    for b in t.box:
        if not 1 <= b <= 256:
            raise ArgumentError(f"{label}.box", t.box, "1 to 256 elements per dimension")
    if t.box[0] * bits // 8 % 16:
        raise ArgumentError(f"{label}.box", t.box, "an innermost box of a multiple of 16 bytes")
    span = {"32": 32, "64": 64}.get(t.swizzle, 128)
    if t.swizzle != "none" and t.box[0] * bits // 8 > span:
        raise ArgumentError(
            f"{label}.box", t.box, f"an innermost box of at most {span} bytes with this swizzle"
        )
    for s in t.strides:
        if s % 16 or not 0 <= s < 1 << 40:
            raise ArgumentError(f"{label}.strides", t.strides, "multiples of 16 bytes below 2**40")
    base = t.tensor if isinstance(t.tensor, int) else pointer(t.tensor)
    if base % 16:
        raise ArgumentError(f"{label}.tensor", hex(base), "a 16-byte aligned address")


def map_fields(t: TensorMap) -> tuple[int, list[int]]:
    """Address, and ``elem_bits, swizzle, interleave, nan_fill, is_float, dtype`` for the core."""
    base = t.tensor if isinstance(t.tensor, int) else pointer(t.tensor)
    interleave = {"none": 0, "16": 1, "32": 2}[str(t.interleave)]
    return base, [ELEMENT_BITS[t.dtype], SWIZZLES.index(t.swizzle), interleave, int(t.fill == "nan"),
                  int(t.dtype in _FLOATS), list(ELEMENT_BITS).index(t.dtype)]  # fmt: skip
