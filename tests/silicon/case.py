"""What one case of the silicon suite is: PTX, a launch, deterministic arguments and its outputs.

Everything here needs only numpy, so that the recorder runs on a machine that has a GPU and little else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Arg", "Array", "Case", "TensorMapSpec"]

Array = np.ndarray


@dataclass(frozen=True)
class TensorMapSpec:
    """A tiled tensor map over another argument of the same case.

    ``dims``, ``box`` and ``element_strides`` are innermost first, in elements; ``strides`` are the byte strides of
    dimensions 1, 2, ... . ``dtype`` is the suffix of the driver's ``CU_TENSOR_MAP_DATA_TYPE_*`` name; ``swizzle`` is the
    span in bytes (0 for none).
    """

    buffer: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    nan_fill: bool = False


Arg = Array | np.generic | TensorMapSpec


@dataclass(frozen=True)
class Case:
    """One kernel launch whose outputs are compared with silicon.

    ``inputs()`` returns the kernel's arguments in order: an array is a device buffer (its initial content), a numpy scalar
    is passed by value, a :class:`TensorMapSpec` becomes a 128-byte parameter. ``outputs`` maps the index of an output
    buffer to the labels of its rows (the first axis), or to an empty tuple. ``ulp`` is the largest allowed distance in
    units in the last place of a float32 result; 0 asks for equal bits. ``faults`` marks a kernel that the GPU stops with an
    error: it has no outputs.
    """

    name: str
    ptx: str
    inputs: Callable[[], list[Arg]]
    outputs: Mapping[int, tuple[str, ...]]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    ulp: int = 0
    faults: bool = False
    entry: str = "kernel"

    @property
    def family(self) -> str:
        return self.name.split("/", 1)[0]

    @property
    def key(self) -> str:
        """Names the compiled kernel: cases that differ only in data share one."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()[:20]

    def fingerprint(self) -> int:
        """32 bits over the PTX and the arguments: a recording made from other inputs is noticed, not compared."""
        digest = hashlib.sha256(self.ptx.encode())
        for arg in self.inputs():
            digest.update(repr(arg).encode() if isinstance(arg, TensorMapSpec) else np.asarray(arg).tobytes())
        digest.update(repr((self.grid, self.block, self.cluster, self.shared_bytes)).encode())
        return int.from_bytes(digest.digest()[:4], "little")
