"""Host side of ``device/ring.cu`` and ``device/wide.cu``: one product of a layer over all blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from swordfish.decode.defines import scheme_defines
from swordfish.decode.ring import RingConfig
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.experts.activation import Activation
from swordfish.experts.routing import Routing, routing_defines
from swordfish.experts.weights import ExpertWeights
from swordfish.runtime.arguments import Argument
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.source import KernelSource, assemble
from swordfish.scheme import Scheme

__all__ = ["SHORT_K", "ExpertRing", "ExpertWide", "Product"]

SHORT_K = 2048
"""Below it tiles are short: beginning and storing them is a good part of the time."""

_ITEM_BYTES = 16
_EXCHANGES = 2
_GATHER_REGISTERS = 32
_SORTED_REGISTERS = 24
"""Of a thread of the wide kernel that does not multiply, with and without rows to gather."""
_RING_FIELDS = ("rows", "cols", "unit", "warps", "slots", "split", "min_ctas")


@dataclass(frozen=True)
class Product:
    """What a kernel computes; every field is a compile-time constant of it.

    ``activation`` makes it gate_up (16-bit rows in the order by experts), ``None`` down (fp32 rows by pair);
    ``router`` multiplies by the router weights; ``in_order`` says that x is in the order by experts,
    ``early`` that the schedule was complete before the previous launch began; ``direct`` that there is none,
    see device/routing.cuh; ``narrow`` makes the rows of down 16 bits.
    """

    scheme: Scheme
    experts: int
    k: int
    n: int
    bias: bool
    activation: Activation | None
    router: bool
    in_order: bool
    early: bool
    wide_ids: bool
    direct: bool = False
    narrow: bool = False

    @classmethod
    def of(
        cls,
        weights: ExpertWeights,
        direct: bool,
        wide_ids: bool,
        activation: Activation | None,
        *,
        router: bool,
        in_order: bool,
        early: bool,
        narrow: bool = False,
    ) -> Product:
        """The product with these weights; ``k`` counts packed rows and ``n`` packed columns."""
        return cls(
            weights.scheme,
            weights.experts,
            weights.packed_k,
            weights.padded_n,
            weights.bias_rows is not None,
            activation,
            router,
            in_order,
            early,
            wide_ids,
            direct,
            narrow,
        )

    def defines(self) -> dict[str, int | str]:
        """Constants that both kernels take."""
        return (
            scheme_defines(self.scheme, self.k, self.n, bias=self.bias)
            | routing_defines(self.experts, self.wide_ids, direct=self.direct)
            | ({} if self.activation is None else self.activation.defines())
            | {
                "SF_GATED": int(self.activation is not None),
                "SF_ROUTER": int(self.router),
                "SF_SORTED": int(self.in_order),
                "SF_EARLY": int(self.early),
                "SF_NARROW": int(self.narrow),
            }
        )


@dataclass(frozen=True)
class ExpertRing:
    """``experts_ring``.

    ``ring``      how an item (``rows`` of a block, ``cols`` x 64 columns) is cut; without ``ctas`` and
    ``gather``.
    ``clusters``  how many clusters of ``split`` CTAs share the items; 0: one each.
    ``items``     how many a cluster can take, room in its plan: there are more clusters if that is too few.

    Raises ``ArgumentError`` on a value outside these sets.
    """

    ring: RingConfig
    clusters: int = 0
    items: int = 8

    in_order: ClassVar[bool] = False
    """Whether rows of x are read in the order by experts."""

    def __post_init__(self) -> None:
        if self.ring.gather or self.ring.ctas:
            raise ArgumentError("ExpertRing.ring", self.ring, "a configuration without gather and ctas")
        if self.ring.split not in (1, 2, 4, 8):
            raise ArgumentError("RingConfig.split", self.ring.split, "1, 2, 4 or 8")
        if not 1 <= self.items <= 1024:
            raise ArgumentError("ExpertRing.items", self.items, "1 to 1024")

    def __str__(self) -> str:
        ring = ", ".join(f"{f}={getattr(self.ring, f)}" for f in _RING_FIELDS)
        return f"ring({ring}, clusters={self.clusters}, items={self.items})"

    @property
    def block_rows(self) -> int:
        """Rows of a block, at most."""
        return self.ring.rows

    def shared_bytes(self, scheme: Scheme, k: int) -> int:
        """Dynamic shared memory of a CTA in bytes; the kernel asserts that it computes the same."""
        ring = self.ring.shared_bytes(scheme, k, _EXCHANGES)
        return -(-ring // 16) * 16 + self.items * (_ITEM_BYTES + self.ring.rows * 16)

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when the configuration does not fit the device or the shape."""
        need = self.shared_bytes(scheme, k)
        if need > props.smem_per_cta:
            allowed = f"at most {props.smem_per_cta} bytes of shared memory per CTA"
            raise ArgumentError("ExpertRing", self, allowed, f"It needs {need}.")
        units = -(-k // (64 * self.ring.unit))
        if self.ring.split > units:
            raise ArgumentError("RingConfig.split", self.ring.split, f"at most the {units} units of K={k}")

    def source(self, product: Product) -> KernelSource:
        """The kernel of a product."""
        scheme, k = product.scheme, product.k
        defines = self.ring.defines(scheme, k, _EXCHANGES) | product.defines()
        defines |= {"SF_ITEMS": self.items, "SF_SHARED_BYTES": self.shared_bytes(scheme, k)}
        return assemble("swordfish/experts/device/ring.cu", "experts_ring", defines)

    def launch_config(self, product: Product, blocks: int) -> LaunchConfig:
        """Launch for up to ``blocks`` blocks: as many clusters as configured, more if their plans would
        not hold all items."""
        items = blocks * -(-product.n // (64 * self.ring.cols))
        clusters = max(-(-items // self.items), min(items, self.clusters or items))
        split = self.ring.split
        return LaunchConfig(
            grid=(clusters * split, 1, 1),
            block=(self.ring.warps * 32, 1, 1),
            cluster=(split, 1, 1),
            shared_bytes=self.shared_bytes(product.scheme, product.k),
            programmatic=True,
        )

    @staticmethod
    def arguments(
        weights: ExpertWeights,
        x: torch.Tensor,
        router_weights: torch.Tensor | None,
        routing: Routing,
        out: torch.Tensor,
    ) -> tuple[Argument, ...]:
        """Kernel arguments, in order. Rows of ``x`` are 16-byte aligned and padded to blocks of 64;
        ``router_weights`` fp32 ``[tokens, top_k]``."""
        return (
            weights.words,
            weights.scale_rows,
            weights.zero_rows,
            weights.bias_rows,
            x,
            np.int64(x.stride(0)),
            out,
            routing.schedule,
            routing.order,
            routing.ids,
            routing.expert_map,
            router_weights,
            np.int32(routing.pairs),
            np.int32(routing.global_experts),
            np.int32(routing.top_k),
        )


@dataclass(frozen=True)
class ExpertWide:
    """``experts_wide``: ``wide`` cuts the output into tiles, ``tokens`` rows of a block and ``columns``
    columns, which up to ``ctas`` CTAs share. ``in_order``: gate_up wants rows of x in the order by experts,
    gathered by a launch, and copies them as boxes; else lanes bring them.

    Raises ``ArgumentError`` if several CTAs would make a tile, or a warpgroup has a single m64 tile.
    """

    wide: WideConfig
    in_order: bool = True

    def __post_init__(self) -> None:
        if self.wide.split != 1:
            raise ArgumentError("WideConfig.split", self.wide.split, "1: a CTA makes a tile")
        if not self.wide.ctas:
            raise ArgumentError("WideConfig.ctas", self.wide.ctas, "1 or more, which share the tiles")
        if self.wide.tiles % 2:
            raise ArgumentError("WideConfig.tiles", self.wide.tiles, "2 or 4: a warp owns gate and up")

    def __str__(self) -> str:
        return f"{self.wide}, rows {'in order' if self.in_order else 'by lanes'}"

    @property
    def block_rows(self) -> int:
        """Rows of a block, at most."""
        return self.wide.tokens

    def shared_bytes(self, scheme: Scheme) -> int:
        """Dynamic shared memory of a CTA in bytes."""
        return -(-self.wide.shared_bytes(scheme) // 16) * 16 + 32 + 2 * (16 + 12 * self.wide.tokens)

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when the configuration does not fit the device or the shape."""
        replace(self.wide, ctas=1).check(scheme, k, props)  # however many: they need no counters
        need = self.shared_bytes(scheme)
        if need > props.smem_per_cta:
            allowed = f"at most {props.smem_per_cta} bytes of shared memory per CTA"
            raise ArgumentError("ExpertWide", self, allowed, f"It needs {need}.")

    def source(self, product: Product) -> KernelSource:
        """The kernel of a product."""
        defines = self.wide.defines(product.scheme, product.k) | product.defines()
        producers = _SORTED_REGISTERS if product.in_order else _GATHER_REGISTERS
        defines["SF_TOKENS_BY_LANES"] = int(not product.in_order)
        defines["SF_PRODUCER_REGISTERS"] = producers
        defines["SF_REGISTERS"] = self.wide.registers_beside(producers)
        return assemble("swordfish/experts/device/wide.cu", "experts_wide", defines)

    def launch_config(self, product: Product, blocks: int) -> LaunchConfig:
        """Launch for up to ``blocks`` blocks."""
        return LaunchConfig(
            grid=(min(self.wide.ctas, blocks * -(-product.n // self.wide.columns)), 1, 1),
            block=(self.wide.threads, 1, 1),
            shared_bytes=self.shared_bytes(product.scheme),
            programmatic=True,
        )

    def arguments(
        self,
        weights: ExpertWeights,
        x: torch.Tensor,
        router_weights: torch.Tensor | None,
        routing: Routing,
        out: torch.Tensor,
    ) -> tuple[Argument, ...]:
        """Kernel arguments, in order. Rows of ``x`` belong to tokens or are in the order by experts, as the
        product says, 16-byte aligned and padded to blocks of 64; ``router_weights`` fp32 ``[tokens,
        top_k]``."""
        zeros = None if weights.zero_rows is None else weights.zero_rows.flatten(0, 1)
        maps = self.wide.maps(weights.words.flatten(0, 1), weights.scale_rows.flatten(0, 1), zeros, x)
        return (
            *maps,
            x,
            np.int32(x.stride(0) // 8),
            weights.bias_rows,
            out,
            routing.schedule,
            routing.order,
            router_weights,
            np.int32(routing.top_k),
        )
