"""Host side of ``swordfish/prefill/collective/grouped.py``: one product of a layer over all blocks of rows,
on the prefill collective."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from swordfish.errors import ArgumentError
from swordfish.experts.kernels import Product
from swordfish.experts.routing import Routing
from swordfish.experts.weights import ExpertWeights
from swordfish.prefill.config import STAGE_K, TILE_ROWS, PrefillConfig
from swordfish.prefill.launch import COLLECTIVE, rows_map, tokens_map, words_map
from swordfish.runtime.arguments import Argument
from swordfish.runtime.cute import CuteSource
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig
from swordfish.scheme import Scheme

__all__ = ["ExpertGrouped"]


@dataclass(frozen=True)
class ExpertGrouped:
    """The grouped kernel of the prefill collective.

    ``tokens``    rows of a block: the collective's token tile, a multiple of 32 from 32 to 256.
    ``ctas``      2: a pair of CTAs makes 256 columns of a block; 1: 128.
    ``clusters``  how many clusters of ``ctas`` CTAs share the tiles.

    Raises ``ArgumentError`` when there are no clusters; :meth:`tile`, :meth:`check` and whatever needs the
    scheme raise it for a tile that cannot be.
    """

    tokens: int
    ctas: int
    clusters: int

    in_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.clusters < 1:
            raise ArgumentError("ExpertGrouped.clusters", self.clusters, "1 or more")

    def __str__(self) -> str:
        return f"grouped(tokens={self.tokens}, ctas={self.ctas}, clusters={self.clusters})"

    @property
    def block_rows(self) -> int:
        """Rows of a block, at most."""
        return self.tokens

    def tile(self, scheme: Scheme) -> PrefillConfig:
        """The collective for weights of a scheme; it does not know of their order of rows."""
        return _tile(scheme, self.tokens, self.ctas)

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when the configuration does not fit the device or the scheme."""
        reason = self.tile(scheme).refused_by(props)
        if reason is not None:
            raise ArgumentError("ExpertGrouped", self, "a tile that the device can run", reason)

    def source(self, product: Product) -> CuteSource:
        """The kernel of a product; it serves every shape and number of experts."""
        act = product.activation
        constants = ("alpha", "beta", "limit") if act is not None and act.kind == "swiglu" else ()
        values = self.tile(product.scheme).flat() | {
            "activation": None if act is None else act.kind,
            "constants": " ".join(repr(float(getattr(act, name))) for name in constants),
            "router": product.router,
            "narrow": product.narrow,
        }
        return CuteSource.of("swordfish.prefill.collective.grouped", "build", values, packages=COLLECTIVE)

    def launch_config(self, product: Product, blocks: int) -> LaunchConfig:
        """Launch for up to ``blocks`` blocks: a cluster for each tile, as many as configured at most."""
        tile = self.tile(product.scheme)
        clusters = min(self.clusters, blocks * self._row_tiles(product.n))
        return LaunchConfig(
            grid=(clusters * self.ctas, 1, 1),
            block=(tile.threads, 1, 1),
            cluster=(self.ctas, 1, 1),
            shared_bytes=tile.shared_bytes,
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
        """Kernel arguments, in order. Rows of ``x`` are in the order by experts, 16-byte aligned and
        padded to blocks of 64; ``router_weights`` fp32 ``[tokens, top_k]``."""
        tile = self.tile(weights.scheme)
        k, n = weights.packed_k, weights.padded_n
        k_stages = -(-k // STAGE_K)
        scales = rows_map(tile, weights.scale_rows)
        return (
            words_map(tile, weights.words),
            scales,
            scales if weights.zero_rows is None else rows_map(tile, weights.zero_rows),
            tokens_map(tile, x, k),
            weights.scale_rows if tile.scales_results else None,
            weights.bias_rows,
            routing.schedule,
            routing.order,
            router_weights,
            out,
            *map(np.int32, (n, self._row_tiles(n), k_stages, tile.group_stages(k_stages))),
        )

    def _row_tiles(self, n: int) -> int:
        return -(-n // (TILE_ROWS * self.ctas))


@functools.lru_cache(maxsize=1024)
def _tile(scheme: Scheme, tokens: int, ctas: int) -> PrefillConfig:
    return PrefillConfig(replace(scheme, act_order=False), tokens, ctas, grouped=True)
