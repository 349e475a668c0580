"""Host side of ``device/dense.cu``: one product of a layer with weights that are dequantised into memory
first."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from swordfish.decode.wide import wgmma_defines
from swordfish.dense.dequant import DequantConfig
from swordfish.errors import ArgumentError
from swordfish.experts.kernels import Product
from swordfish.experts.routing import Routing
from swordfish.experts.weights import ExpertWeights
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig, PreparedLaunch
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble
from swordfish.runtime.tensor_map import TensorMap
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["COLUMNS", "WEIGHT_BYTES", "ExpertDense", "dense_bytes", "dequant_source", "experts_at_a_time"]

WEIGHT_BYTES = 1 << 30
"""The dequantised weights of experts take at most this much memory at a time, unless one expert has more: the
others follow in another round, in the same memory."""

COLUMNS = 256
"""Weight columns of a tile."""

_BLOCK = 64
_THREADS = 384
_DEQUANT = DequantConfig(transposed=True)
_ONE_GROUP = 2**31 - 1


@dataclass(frozen=True)
class ExpertDense:
    """``experts_dense``.

    ``tokens``  rows of a block, a multiple of 16 from 16 to 176.
    ``slots``   of 64 k in the ring, 3 or more: rows of x are announced when the next stage is on its way.
    ``ctas``    that share the tiles, at most.

    Raises ``ArgumentError`` on a value outside these sets.
    """

    tokens: int
    slots: int
    ctas: int

    in_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tokens not in range(16, 177, 16):
            raise ArgumentError("ExpertDense.tokens", self.tokens, "a multiple of 16 from 16 to 176")
        for name, least in (("slots", 3), ("ctas", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"ExpertDense.{name}", getattr(self, name), f"{least} or more")

    def __str__(self) -> str:
        return f"dense(tokens={self.tokens}, slots={self.slots}, ctas={self.ctas})"

    @property
    def block_rows(self) -> int:
        """Rows of a block, at most."""
        return self.tokens

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes; the kernel asserts that it computes the same."""
        return self.slots * ((COLUMNS + self.tokens) * 128 + 16) + 32 + 2 * (16 + 12 * self.tokens)

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when the configuration does not fit the device."""
        if props.arch != "sm_90a":
            raise ArgumentError(
                "ExpertDense", self, f"another kernel on {props.arch}: it multiplies by wgmma"
            )
        need = self.shared_bytes
        if need > props.smem_per_cta:
            allowed = f"at most {props.smem_per_cta} bytes of shared memory per CTA"
            raise ArgumentError("ExpertDense", self, allowed, f"It needs {need}.")

    def source(self, product: Product) -> KernelSource:
        """The kernel of a product; whatever the weights were packed as."""
        defines = product.defines() | wgmma_defines(self.tokens, product.scheme, shared_a=True)
        for name in ("SF_BITS", "SF_ZEROS", "SF_EARLY"):
            del defines[name]
        defines |= {
            "SF_TOKENS": self.tokens,
            "SF_SLOTS": self.slots,
            "SF_SHARED_BYTES": self.shared_bytes,
        }
        return assemble("swordfish/experts/device/dense.cu", "experts_dense", defines)

    def launch_config(self, product: Product, blocks: int) -> LaunchConfig:
        """Launch for up to ``blocks`` blocks."""
        return LaunchConfig(
            grid=(min(self.ctas, blocks * -(-product.n // COLUMNS)), 1, 1),
            block=(_THREADS, 1, 1),
            shared_bytes=self.shared_bytes,
            programmatic=True,
        )

    def multiply(
        self,
        launch: PreparedLaunch,
        weights: ExpertWeights,
        x: torch.Tensor,
        router_weights: torch.Tensor | None,
        routing: Routing,
        out: torch.Tensor,
        arch: str,
    ) -> None:
        """The product by ``launch``, for as many experts at a time as :data:`WEIGHT_BYTES` holds.

        Rows of ``x`` belong to tokens or are in the order by experts, as the product says, 16-byte aligned
        and padded to blocks of 64; ``router_weights`` fp32 ``[tokens, top_k]``; the routing has ``begins``.
        """
        assert routing.begins is not None
        k, n = -(-weights.packed_k // _BLOCK) * _BLOCK, weights.padded_n
        step = experts_at_a_time(weights)
        values = torch.empty((step, n, k), dtype=weights.dtype, device=weights.device)
        columns, rows = _columns(values), _rows(x, self.tokens)
        for first in range(0, weights.experts, step):
            count = min(step, weights.experts - first)
            begins = routing.begins[first : first + count + 1]
            _dequantise(weights, first, count, begins, values, arch)
            launch(
                (
                    columns,
                    rows,
                    x,
                    np.int32(x.stride(0) // 8),
                    weights.bias_rows,
                    out,
                    routing.schedule,
                    routing.order,
                    begins,
                    router_weights,
                    np.int32(first),
                    np.int32(count),
                    np.int32(routing.top_k),
                )
            )


def experts_at_a_time(weights: ExpertWeights) -> int:
    """Experts that are dequantised together: as many in every round."""
    most = min(weights.experts, max(1, WEIGHT_BYTES // _expert_bytes(weights)))
    return -(-weights.experts // -(-weights.experts // most))


def dense_bytes(weights: ExpertWeights) -> int:
    """Bytes of the experts that are dequantised together."""
    return experts_at_a_time(weights) * _expert_bytes(weights)


def _expert_bytes(weights: ExpertWeights) -> int:
    return 2 * (-(-weights.packed_k // _BLOCK) * _BLOCK) * weights.padded_n


def dequant_source(scheme: Scheme) -> KernelSource:
    """The kernel that dequantises weights of a scheme. Rows stay in packed order, x comes in it."""
    return _DEQUANT.source(replace(scheme, act_order=False))


@functools.lru_cache(maxsize=1024)
def _dequant(scheme: Scheme, k: int, n: int, count: int, arch: str) -> PreparedLaunch:
    return get_kernel(dequant_source(scheme), arch).prepare(_DEQUANT.launch_config(k, n, count))


def _dequantise(
    weights: ExpertWeights, first: int, count: int, begins: torch.Tensor, out: torch.Tensor, arch: str
) -> None:
    """Experts ``first`` to ``first + count`` that have rows, as ``[count, P, ceil(R/64) * 64]``."""
    _, n, k = out.shape
    size, scales, zeros = weights.scheme.group_size, weights.scale_rows, weights.zero_rows
    part = slice(first, first + count)
    _dequant(weights.scheme, k, n, count, arch)(
        (
            weights.words[part],
            scales[part],
            None if zeros is None else zeros[part],
            None,
            out,
            k,
            n,
            scales.shape[1],
            _ONE_GROUP if size == CHANNELWISE else size,
            scales.stride(1),
            out.stride(1),
            begins,
        )
    )


def _columns(values: torch.Tensor) -> TensorMap:
    """64 k of a tile's columns, runs of 16: even ones, then odd ones."""
    experts, n, k = values.shape
    row = 2 * k
    return TensorMap(
        values,
        str(values.dtype).removeprefix("torch."),
        (64, 16, experts * n // 32, 2, k // 64),
        (row, 32 * row, 16 * row, 128),
        (64, 16, COLUMNS // 32, 2, 1),
        swizzle="128",
        l2_promotion="256",
    )


def _rows(x: torch.Tensor, rows: int) -> TensorMap:
    """64 k of ``rows`` rows of x."""
    m, k = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    return TensorMap(
        x, dtype, (64, m, k // 64), (x.stride(0) * 2, 128), (64, rows, 1), swizzle="128", l2_promotion="256"
    )
