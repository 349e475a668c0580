"""Host side of ``device/dequant.cu``: a packed weight, or columns of one, as 16-bit numbers in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from swordfish.decode.defines import value_defines
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts.packing import BLOCK
from swordfish.packed import PackedWeight
from swordfish.runtime.device import device_props
from swordfish.runtime.launch import LaunchConfig, PreparedLaunch
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["BULK_BYTES", "DequantConfig", "dequantize_into", "fill"]

_STEP = 16
"""Rows that a CTA takes in ``[K, N]``; in ``[N, K]`` it takes a whole block."""

BULK_BYTES = 200_000_000
"""``[K, N]`` outputs from here on are stored by the copy engine: faster from 235 MB on, slower at 34 MB,
where the output stays in L2; sizes between were not compared (docs/dense.md)."""

_WIDTHS = (8, 4, 2, 1)
_ONE_GROUP = 2**31 - 1


@dataclass(frozen=True)
class DequantConfig:
    """What the kernel is compiled for besides the scheme; K, N and the group size are its arguments.

    ``transposed``  writes ``[N, K]`` instead of ``[K, N]``.
    ``width``       elements of a store, 8, 4, 2 or 1: what the rows of the output are aligned to.
    ``bulk``        the copy engine stores, in pieces of 1 KB; for ``[K, N]`` with a width of 8.
    """

    transposed: bool = False
    width: int = 8
    bulk: bool = False

    def __post_init__(self) -> None:
        if self.width not in _WIDTHS:
            raise ArgumentError("DequantConfig.width", self.width, f"one of {_WIDTHS}")
        if self.bulk and (self.transposed or self.width != 8):
            raise ArgumentError("DequantConfig.bulk", True, "False unless [K, N] has a width of 8")

    @classmethod
    def for_output(cls, out: torch.Tensor, *, transposed: bool) -> DequantConfig:
        """The widest stores that ``out``, 2-D with unit inner stride, allows; by the copy engine if it is
        large."""
        pitch = out.stride(0) if out.shape[0] > 1 else 0
        fits = (w for w in _WIDTHS if not (out.data_ptr() % (2 * w) or pitch % w or out.shape[1] % w))
        width, size = next(fits), out.numel() * out.element_size()
        return cls(transposed, width, bulk=not transposed and width == 8 and size >= BULK_BYTES)

    @classmethod
    def for_product(cls, scheme: Scheme) -> DequantConfig:
        """What :func:`~swordfish.dense.dense_mm` uses for a weight of a scheme.

        ``[N, K]``, with which cuBLAS is up to a tenth faster, but with act-order ``[K, N]``, where the rows
        that go to their places are whole lines.
        """
        return cls(transposed=not scheme.act_order)

    def source(self, scheme: Scheme) -> KernelSource:
        """The kernel for weights of a scheme."""
        return _source(self, replace(scheme, group_size=CHANNELWISE))

    @property
    def warps(self) -> int:
        """Of a CTA: the steps of a block, or so many blocks side by side."""
        return 8 if self.bulk else 4

    def launch_config(self, k: int, n: int, weights: int = 1) -> LaunchConfig:
        """The launch for ``k`` packed rows and ``n`` columns of so many ``weights``."""
        n_blocks = -(-n // BLOCK)
        ctas = n_blocks * -(-k // BLOCK) if self.transposed else -(-n_blocks // self.warps) * -(-k // _STEP)
        return LaunchConfig((ctas, weights, 1), (32 * self.warps, 1, 1), programmatic=True)


@functools.cache
def _source(config: DequantConfig, scheme: Scheme) -> KernelSource:
    return assemble(
        "swordfish/dense/device/dequant.cu",
        "dequantise",
        value_defines(scheme)
        | {
            "SF_TRANSPOSED": int(config.transposed),
            "SF_STORE": config.width,
            "SF_BULK": int(config.bulk),
            "SF_WARPS": config.warps,
            "SF_PERMUTED": int(scheme.act_order),
        },
    )


@functools.lru_cache(maxsize=1024)
def _prepared(config: DequantConfig, scheme: Scheme, k: int, n: int, arch: str) -> PreparedLaunch:
    return get_kernel(config.source(scheme), arch).prepare(config.launch_config(k, n))


def dequantize_into(
    w: PackedWeight, out: torch.Tensor, *, transposed: bool = False, columns: tuple[int, int] | None = None
) -> torch.Tensor:
    """Write the values of ``w`` to ``out`` in one launch on the current stream and return ``out``.

    The values are those of :func:`swordfish.dequantize`, bit for bit: exact, then one rounding. Rows are in
    the checkpoint's order; with act-order each row is written to its place, and padding is not written.

    Args:
        w: the weight, on a GPU, or on the CPU while one is emulated.
        out: ``[K, N]`` (``transposed``: ``[N, K]``) in ``w.dtype`` on the device of ``w``, unit inner stride.
            Rows that are not aligned to 16 bytes take narrower stores. ``transposed`` with act-order
            scatters single elements: many times slower.
        transposed: write the transposed weight.
        columns: ``(start, stop)``: only these columns of the weight; ``start`` is a multiple of 64.

    Raises:
        ArgumentError: shape, strides or device of ``out``, or columns, that do not fit; tensors on the CPU
            with nothing emulated.
        ArgumentTypeError: a dtype other than the weight's.
        UnsupportedDeviceError: a GPU without kernels.
    """
    k, n = w.shape
    start, stop = (0, n) if columns is None else columns
    if not 0 <= start < stop <= n or start % BLOCK:
        raise ArgumentError("columns", columns, f"(start, stop) within N={n}, start a multiple of {BLOCK}")
    _check_out(out, (stop - start, k) if transposed else (k, stop - start), w)
    fill(w, out, DequantConfig.for_output(out, transposed=transposed), start, stop, w.packed_k)
    return out


def fill(w: PackedWeight, out: torch.Tensor, config: DequantConfig, start: int, stop: int, rows: int) -> None:
    """The launch of :func:`dequantize_into`: packed ``rows`` of columns ``start`` to ``stop``, both up to the
    end of the last block, into memory that has room for them."""
    size = w.scheme.group_size
    launch = _prepared(config, w.scheme, rows, stop - start, device_props(w.device).arch)
    launch(
        (
            w.words[start // BLOCK :],
            w.scale_rows[:, start:],
            None if w.zero_rows is None else w.zero_rows[:, start:],
            w.perm,
            out,
            rows,
            stop - start,
            w.scale_rows.shape[0],
            _ONE_GROUP if size == CHANNELWISE else size,
            w.scale_rows.stride(0),
            out.stride(0),
            None,
        )
    )


def _check_out(out: torch.Tensor, shape: tuple[int, int], w: PackedWeight) -> None:
    if out.dtype != w.dtype:
        raise ArgumentTypeError("out.dtype", out.dtype, str(w.dtype))
    if tuple(out.shape) != shape:
        raise ArgumentError("out.shape", tuple(out.shape), str(shape))
    if out.device != w.device:
        raise ArgumentError("out.device", out.device, f"{w.device}, where the weight is")
    if (out.shape[1] > 1 and out.stride(1) != 1) or (out.shape[0] > 1 and out.stride(0) < out.shape[1]):
        raise ArgumentError("out.stride()", out.stride(), "(at least the number of columns, 1)")
