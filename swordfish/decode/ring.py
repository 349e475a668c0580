"""Host side of ``device/ring.cu``: the configuration of the decode kernel for few rows and what follows from
it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from swordfish.decode.bound import BoundLaunch, WeightTensors, address
from swordfish.decode.defines import scheme_defines
from swordfish.errors import ArgumentError
from swordfish.runtime.arguments import Argument
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.raw_launch import RawLaunch
from swordfish.runtime.source import KernelSource, assemble
from swordfish.scheme import Scheme

__all__ = ["MAX_ROWS", "MAX_SPLIT", "RingConfig"]

MAX_ROWS = 16
"""Rows (tokens) of a row tile, at most: two mma token tiles of 8."""

MAX_SPLIT = 8
"""CTAs of a cluster, at most: the portable cluster size."""


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil_div(a, b) * b


@dataclass(frozen=True)
class RingConfig:
    """Tile configuration of ``decode_ring``; every field is a compile-time constant of the kernel except
    ``ctas``.

    Attributes:
        rows: rows of x per row tile, 1 to 16. A call with more rows takes several row tiles.
        cols: 64-column blocks per tile, 1, 2 or 4; more columns share one copy of the tokens.
        unit: k64 blocks per ring slot, 1, 2 or 4.
        warps: warps per CTA; they split K.
        slots: ring slots per warp.
        split: CTAs of the cluster that splits K, 1 to 8.
        ctas: CTAs per row tile that walk over the column tiles when ``split`` is 1; 0 means one CTA per tile.
        min_ctas: CTAs per SM that registers must allow.
        gather: read x through the permutation of an act-order weight instead of expecting it in packed order.
    """

    rows: int
    cols: int = 1
    unit: int = 2
    warps: int = 8
    slots: int = 3
    split: int = 1
    ctas: int = 0
    min_ctas: int = 1
    gather: bool = False

    def __post_init__(self) -> None:
        limits = {
            "rows": (1, MAX_ROWS),
            "warps": (1, 16),
            "slots": (1, 16),
            "split": (1, MAX_SPLIT),
            "ctas": (0, 65535),
            "min_ctas": (1, 8),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ArgumentError(f"RingConfig.{name}", getattr(self, name), f"{low} to {high}")
        for name in ("cols", "unit"):
            if getattr(self, name) not in (1, 2, 4):
                raise ArgumentError(f"RingConfig.{name}", getattr(self, name), "1, 2 or 4")
        if self.split > 1 and self.ctas:
            raise ArgumentError(
                "RingConfig.ctas", self.ctas, f"0 when split={self.split}: a cluster owns one tile"
            )

    def __str__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)]
        return f"ring({', '.join(changed)})"

    def shared_bytes(self, scheme: Scheme, k: int, exchanges: int = 1) -> int:
        """Shared memory in bytes up to ``RING_END`` of ``device/ring_shape.cuh`` and, with ``gather``, of x;
        kernels assert that they compute the same. ``exchanges`` buffers for the sums of a cluster."""
        unit_k = self.unit * 64
        scale_rows = unit_k // self._fold_k(_group(scheme, k), k)
        row_kinds = 1 if scheme.zeros == "none" else 2
        weights = self.cols * self.unit * scheme.bits * 512 + row_kinds * scale_rows * self.cols * 128
        barriers = self.warps * _round_up(self.slots * (weights + self.rows * (unit_k * 2 + 16)), 128)
        partials = _round_up(barriers + (self.warps * self.slots + exchanges) * 8, 16)
        end = partials + self.warps * self.rows * (self.cols * 64 + 4) * 4
        if self.split > 1:
            end += exchanges * self.split * self.rows * _ceil_div(self.cols * 16, self.split) * 16
        return _round_up(end + 8, 128) + self.rows * k * 2 if self.gather else end

    def _fold_k(self, group: int, k: int) -> int:
        unit_k = self.unit * 64
        if group >= k or group % unit_k == 0:
            return unit_k
        if unit_k % group == 0:
            return group
        return math.gcd(group, 64)

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when a CTA needs more shared memory than the device has, or a CTA of a
        cluster has no work."""
        need, units = self.shared_bytes(scheme, k), _ceil_div(_ceil_div(k, 64), self.unit)
        if need > props.smem_per_cta:
            allowed = f"at most {props.smem_per_cta} bytes of shared memory per CTA"
            raise ArgumentError("RingConfig", self, allowed, f"It needs {need}.")
        if self.split > units:
            raise ArgumentError("RingConfig.split", self.split, f"at most the {units} units of K={k}")

    def source(self, scheme: Scheme, k: int, n: int, *, bias: bool) -> KernelSource:
        """The kernel for weights of shape ``[k, n]``."""
        defines = scheme_defines(scheme, k, n, bias=bias) | self.defines(scheme, k)
        defines |= {"SF_GATHER": int(self.gather), "SF_SHARED_BYTES": self.shared_bytes(scheme, k)}
        return assemble("swordfish/decode/device/ring.cu", "decode_ring", defines)

    def defines(self, scheme: Scheme, k: int, exchanges: int = 1) -> dict[str, int | str]:
        """What ``device/ring_shape.cuh`` needs besides the scheme."""
        return {
            "SF_GROUP": _group(scheme, k),
            "SF_ROWS": self.rows,
            "SF_COLS": self.cols,
            "SF_UNIT": self.unit,
            "SF_WARPS": self.warps,
            "SF_SLOTS": self.slots,
            "SF_SPLIT": self.split,
            "SF_EXCHANGES": exchanges,
            "SF_MIN_CTAS": self.min_ctas,
        }

    def launch_config(self, scheme: Scheme, m: int, k: int, n: int) -> LaunchConfig:
        """Grid and shared memory of a call with ``m`` rows."""
        tiles = _ceil_div(_ceil_div(n, 64), self.cols)
        return LaunchConfig(
            grid=(_ceil_div(m, self.rows) * self.split, min(tiles, self.ctas or tiles), 1),
            block=(self.warps * 32, 1, 1),
            cluster=(self.split, 1, 1),
            shared_bytes=self.shared_bytes(scheme, k),
            programmatic=True,
        )

    @staticmethod
    def arguments(
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        x: torch.Tensor,
        perm: torch.Tensor | None,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> tuple[Argument, ...]:
        """Kernel arguments, in order. ``x`` and ``out`` are 2-D with unit inner stride; without ``gather``,
        rows of x are 16-byte aligned, in packed order and padded to blocks of 64."""
        return (
            words,
            scales,
            zeros,
            x,
            perm,
            bias,
            out,
            x.shape[0],
            x.stride(0),
            out.stride(0),
        )

    @staticmethod
    def bind(launch: RawLaunch, weight: WeightTensors, shape: tuple[int, int, int]) -> BoundLaunch:
        """A launch with this weight for ``(M, row pitch of x, N)``; what of the tensors it needs is looked up
        now."""
        m, pitch, n = shape
        w, s, z, p, b = map(address, weight)

        def run(x: torch.Tensor, x_address: int, out: torch.Tensor, stream: int) -> None:
            launch(stream, w, s, z, x_address, p, b, out.data_ptr(), m, pitch, n)

        return run


def _group(scheme: Scheme, k: int) -> int:
    """Group size in rows; one group spans the whole (padded) K of a channelwise weight."""
    return _round_up(k, 64) if scheme.group_size == -1 else scheme.group_size
