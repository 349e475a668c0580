"""Host side of ``device/routing.cuh``: sorting, gathering and summing pairs of (token, expert)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch

from swordfish.experts.weights import ExpertWeights
from swordfish.runtime.launch import LaunchConfig, PreparedLaunch
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble

__all__ = [
    "Routing",
    "block_bound",
    "gather_rows",
    "gather_source",
    "routing_defines",
    "sort_pairs",
    "sort_source",
    "sum_experts",
    "sum_source",
]

_ENTRY = 4  # words: one entry for the counts, one for each block
_SORT_THREADS = 1024
_THREADS = 128


def block_bound(pairs: int, experts: int, block_rows: int) -> int:
    """Most blocks that ``pairs`` pairs can make: every expert wastes up to ``block_rows - 1`` rows."""
    return (pairs + min(experts, pairs) * (block_rows - 1)) // block_rows


@dataclass(frozen=True, eq=False)
class Routing:
    """Who goes where, on the device.

    ============== =================================================================================
    ``ids``        ``[tokens, top_k]`` int32 or int64, contiguous: global expert ids
    ``expert_map`` int32 ``[global experts]`` or ``None``: place among the experts here, -1 elsewhere
    ``experts``    experts here
    ``schedule``   int32 ``[4 * (blocks + 1)]``, see device/routing.cuh; ``None``: pairs are their own blocks
    ``order``      int32 ``[pairs]`` or ``None``
    ``block_rows`` rows of a block, at most
    ``begins``     int32 ``[experts + 1]``: blocks before each expert and in all; ``None``: nobody reads it
    ============== =================================================================================
    """

    ids: torch.Tensor
    expert_map: torch.Tensor | None
    experts: int
    block_rows: int
    schedule: torch.Tensor | None = None
    order: torch.Tensor | None = None
    begins: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[0])

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])

    @property
    def pairs(self) -> int:
        return self.tokens * self.top_k

    @property
    def global_experts(self) -> int:
        """Ids at and above this are nobody's."""
        return self.experts if self.expert_map is None else int(self.expert_map.shape[0])

    @property
    def blocks(self) -> int:
        """Blocks, at most."""
        return self.pairs if self.direct else block_bound(self.pairs, self.experts, self.block_rows)

    @property
    def direct(self) -> bool:
        """Pairs are blocks as they are."""
        return self.schedule is None

    @property
    def wide_ids(self) -> bool:
        """Ids are 64 bits."""
        return self.ids.dtype == torch.int64


def routing_defines(experts: int, wide_ids: bool, *, direct: bool = False) -> dict[str, int | str]:
    """Constants of device/routing.cuh."""
    return {"SF_EXPERTS": experts, "SF_IDS64": int(wide_ids), "SF_DIRECT": int(direct)}


def _source(file: str, entry: str, defines: dict[str, int | str]) -> KernelSource:
    del defines["SF_DIRECT"]  # these kernels work on a schedule, or need none
    return assemble(f"swordfish/experts/device/{file}.cu", entry, {"SF_BF16": 1} | defines)


@functools.cache
def sort_source(experts: int, wide_ids: bool) -> KernelSource:
    """The kernel of ``device/sort.cu``."""
    return _source("sort", "sort_pairs", routing_defines(experts, wide_ids))


def _gather_copies(act_order: bool) -> int:
    """16-byte copies of a lane. A permuted one consists of 8 loads that are in flight together already."""
    return 1 if act_order else 8


@functools.cache
def gather_source(experts: int, wide_ids: bool, k: int, act_order: bool, in_order: bool) -> KernelSource:
    """The kernel of ``device/gather.cu`` for rows of ``k`` values."""
    defines = routing_defines(experts, wide_ids) | {
        "SF_K": k,
        "SF_ACT_ORDER": int(act_order),
        "SF_SORTED": int(in_order),
        "SF_COPIES": _gather_copies(act_order),
    }
    return _source("gather", "gather_rows", defines)


@functools.cache
def sum_source(experts: int, wide_ids: bool, n: int, bf16: bool, narrow: bool) -> KernelSource:
    """The kernel of ``device/sum.cu`` for rows of ``n`` columns, fp32 or (``narrow``) 16 bits."""
    defines = routing_defines(experts, wide_ids)
    defines |= {"SF_N": n, "SF_BF16": int(bf16), "SF_NARROW": int(narrow)}
    return _source("sum", "sum_experts", defines)


@functools.lru_cache(maxsize=4096)
def _prepared(source: KernelSource, arch: str, ctas: int, threads: int) -> PreparedLaunch:
    config = LaunchConfig((ctas, 1, 1), (threads, 1, 1), programmatic=True)
    return get_kernel(source, arch).prepare(config)


def sort_pairs(
    ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    experts: int,
    block_rows: int,
    arch: str,
    *,
    begins: bool = False,
) -> Routing:
    """The routing with its schedule and, if asked for, ``begins``, sorted by one launch of one CTA. At least
    one pair."""
    device, pairs = ids.device, ids.numel()
    bound = block_bound(pairs, experts, block_rows)
    schedule = torch.empty(_ENTRY * (bound + 1), dtype=torch.int32, device=device)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    begin = torch.empty(experts + 1, dtype=torch.int32, device=device) if begins else None
    routing = Routing(ids, expert_map, experts, block_rows, schedule, order, begin)
    launch = _prepared(sort_source(experts, routing.wide_ids), arch, 1, _SORT_THREADS)
    scalars = (np.int32(pairs), np.int32(routing.global_experts), np.int32(block_rows))
    launch((ids, expert_map, schedule, order, begin, *scalars))
    return routing


def gather_rows(
    x: torch.Tensor, weights: ExpertWeights, routing: Routing, arch: str, *, in_order: bool
) -> torch.Tensor:
    """Rows of tokens in the order by experts, as the experts' weights read them: ``[pairs, ceil(R/64) *
    64]``.

    ``x`` has unit inner stride; its rows belong to tokens, or with ``in_order`` to places in the order.
    Without act-order rows are 16-byte aligned and padded to blocks of 64.
    """
    k = weights.packed_k
    padded = -(-k // 64) * 64
    out = torch.empty((routing.pairs, padded), dtype=x.dtype, device=x.device)
    act_order = weights.perm is not None
    pieces = -(-padded // (256 * _gather_copies(act_order)))
    ctas = -(-routing.pairs * pieces // (_THREADS // 32))
    source = gather_source(routing.experts, routing.wide_ids, k, act_order, in_order)
    launch = _prepared(source, arch, ctas, _THREADS)
    scalars = (np.int32(routing.pairs), np.int32(routing.global_experts), np.int32(routing.top_k))
    tables = (routing.schedule, routing.order, routing.ids, routing.expert_map)
    launch((x, np.int64(x.stride(0)), weights.perm, out, *tables, *scalars))
    return out


def sum_experts(sums: torch.Tensor, routing: Routing, out: torch.Tensor, arch: str) -> None:
    """``out[token, :N]`` = the sum of the token's pairs that are here; ``sums`` fp32 or in the dtype of
    ``out``
    ``[pairs, ceil(N/64) * 64]``, ``out`` with unit inner stride."""
    n = out.shape[1]
    ctas = -(-out.shape[0] * -(-n // 4) // _THREADS)
    source = sum_source(
        routing.experts, routing.wide_ids, n, out.dtype == torch.bfloat16, sums.dtype != torch.float32
    )
    launch = _prepared(source, arch, ctas, _THREADS)
    scalars = (np.int32(routing.tokens), np.int32(routing.global_experts), np.int32(routing.top_k))
    launch((sums, out, np.int64(out.stride(0)), routing.ids, routing.expert_map, *scalars))
