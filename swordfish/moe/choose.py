"""How an expert layer runs: a pure function of its shape, the number of tokens and device properties."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from swordfish.decode.choose_wide import TOKEN_BUCKETS
from swordfish.decode.ring import MAX_ROWS, RingConfig
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.moe.kernels import ExpertRing, ExpertWide
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["ExpertConfig", "ExpertPlan", "LayerShape", "plan_experts"]

ExpertConfig: TypeAlias = "ExpertRing | ExpertWide"

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Rows of a block for which ring kernels are compiled."""


@dataclass(frozen=True)
class LayerShape:
    """What a plan depends on besides the tokens.

    ``experts`` are those here, ``global_experts`` those that tokens can choose; ``k`` and ``n`` count packed
    rows and columns of w13 and w2.
    """

    experts: int
    global_experts: int
    k13: int
    n13: int
    k2: int
    n2: int
    scheme13: Scheme
    scheme2: Scheme


@dataclass(frozen=True)
class ExpertPlan:
    """``path`` is ``"experts"``, ``"reference"`` (CPU tensors, nothing emulated) or ``"empty"`` (no tokens).

    ``direct``: one token, whose pairs are blocks as they are; nothing is sorted. ``gate_up`` and ``down``
    take blocks of the same number of rows.
    """

    path: str
    gate_up: ExpertConfig | None
    down: ExpertConfig | None
    direct: bool
    reason: str

    def __str__(self) -> str:
        if self.gate_up is None:
            return f"{self.path}: {self.reason}"
        sorting = "direct" if self.direct else "sorted"
        return f"{self.path}, {sorting}, gate_up {self.gate_up}, down {self.down}: {self.reason}"


@functools.lru_cache(maxsize=4096)
def plan_experts(tokens: int, top_k: int, shape: LayerShape, props: DeviceProps | None) -> ExpertPlan:
    """The plan for ``tokens`` tokens of ``top_k`` experts each; ``props`` is ``None`` for the CPU reference.

    Raises ``ArgumentError`` when ``tokens`` or ``top_k`` is negative.
    """
    for name, value in (("tokens", tokens), ("top_k", top_k)):
        if value < 0:
            raise ArgumentError(name, value, "0 or more")
    if tokens == 0:
        return ExpertPlan("empty", None, None, False, "no tokens: nothing is launched")
    if props is None:
        reason = "tensors on the CPU and no GPU emulated: fp64 products of the exact weights"
        return ExpertPlan("reference", None, None, False, reason)
    if tokens == 1:
        first, second = (_ring(1, *dims, top_k, props) for dims in _products(shape))
        return ExpertPlan("experts", first, second, True, "one token: each of its experts has one row")
    mean = tokens * top_k / shape.global_experts
    wanted = min(tokens, mean + 2 * math.sqrt(mean))
    active = shape.experts * (1 - (1 - 1 / shape.global_experts) ** (tokens * top_k))
    told = f"{mean:.1f} rows an expert, {wanted:.0f} in all but a few of {active:.0f} active ones"
    if wanted >= first_wide_rows(props):
        rows = next((t for t in TOKEN_BUCKETS if t >= wanted), TOKEN_BUCKETS[-1])
        rows = min(
            rows, *(_most_rows(scheme, wgmma=props.arch == "sm_90a") for _, _, scheme in _products(shape))
        )
        wide13, wide2 = (_wide(rows, *dims, props) for dims in _products(shape))
        return ExpertPlan("experts", wide13, wide2, False, f"{told}: blocks of {rows}")
    rows = next((r for r in ROW_BUCKETS if r >= wanted), MAX_ROWS)
    blocks = math.ceil(active * max(1.0, mean / rows))
    ring13, ring2 = (_ring(rows, *dims, blocks, props) for dims in _products(shape))
    return ExpertPlan("experts", ring13, ring2, False, f"{told}: blocks of {rows}")


def first_wide_rows(props: DeviceProps) -> int:
    """Rows an expert from which on the wide kernel takes over."""
    return 9 if props.arch == "sm_90a" else 17


def _products(shape: LayerShape) -> Sequence[tuple[int, int, Scheme]]:
    return (shape.k13, shape.n13, shape.scheme13), (shape.k2, shape.n2, shape.scheme2)


def _ring(rows: int, k: int, n: int, scheme: Scheme, blocks: int, props: DeviceProps) -> ExpertRing:
    """The ring configuration for about ``blocks`` blocks of ``rows`` rows."""
    unit = 4096 // (scheme.bits * 512)
    units = -(-k // (64 * unit))
    warps = max(1, min(8, units))
    columns = n // 64
    # Two CTAs on an SM; the plan of a cluster holds its share of the items.
    ctas = 2 * props.sm_count
    items = min(64, max(8, _power(2 * -(-blocks * columns // ctas))))
    config = ExpertRing(RingConfig(rows, 1, unit, warps, 3, min_ctas=2), ctas, items)
    while not _fits(config, scheme, k, props):
        ring = config.ring
        if ring.slots > 2:
            ring = replace(ring, slots=ring.slots - 1)
        elif ring.warps > 4:
            ring = replace(ring, warps=ring.warps - 1)
        elif ring.min_ctas > 1:
            ring = replace(ring, min_ctas=1)
        elif ring.warps > 1:
            ring = replace(ring, warps=ring.warps - 1)
        else:
            break
        config = replace(config, ring=ring)
    config.check(scheme, k, props)
    return config


def _fits(config: ExpertRing, scheme: Scheme, k: int, props: DeviceProps) -> bool:
    limit = min(props.smem_per_cta, props.smem_per_sm // config.ring.min_ctas - props.smem_reserved)
    return config.shared_bytes(scheme, k) <= limit


def _power(v: int) -> int:
    return 1 << max(0, v - 1).bit_length()


def _most_rows(scheme: Scheme, *, wgmma: bool) -> int:
    """Most rows of a wide block: the limits of the dense kernel (decode/choose_wide.py). Offsets and
    small groups need more registers."""
    if scheme.zeros == "offset" or (scheme.bits == 8 and not wgmma):
        return 64
    return 112 if not wgmma and 0 < scheme.group_size < 128 else TOKEN_BUCKETS[-1]


def _wide(tokens: int, k: int, n: int, scheme: Scheme, props: DeviceProps) -> ExpertWide:
    """The wide configuration for blocks of ``tokens`` rows."""
    wgmma = props.arch == "sm_90a"
    whole = scheme.group_size != CHANNELWISE
    in_place = tokens > 64 and scheme.zeros != "offset" and wgmma
    for stage_k, slots, ctas in (
        (256, 4, 2),
        (256, 3, 2),
        (128, 4, 2),
        (128, 3, 2),
        (128, 4, 1),
        (128, 3, 1),
    ):
        aligned = whole and stage_k % scheme.group_size == 0
        config = WideConfig(
            tokens,
            2,
            1,
            stage_k,
            slots,
            min_ctas=ctas,
            wgmma=wgmma,
            in_place=in_place,
            refill_batch=1 if wgmma else 0,
            scale_rows=stage_k // scheme.group_size if aligned else 1,
            ctas=ctas * props.sm_count,
        )
        if config.shared_bytes(scheme) <= min(
            props.smem_per_cta, props.smem_per_sm // ctas - props.smem_reserved
        ):
            return ExpertWide(config)
    raise ArgumentError("scheme", scheme, "a scheme whose stages fit in shared memory")
