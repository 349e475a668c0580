"""How an expert layer runs: a pure function of its shape, the number of tokens and device properties."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from swordfish.decode.choose_wide import ONE_TILE, TOKEN_BUCKETS
from swordfish.decode.ring import RingConfig
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.experts.blocks import expected_blocks
from swordfish.experts.choose_dense import choose_dense, dense_rows, no_dense
from swordfish.experts.choose_grouped import choose_grouped, grouped_rows, grouped_unsupported
from swordfish.experts.dense import ExpertDense
from swordfish.experts.grouped import ExpertGrouped
from swordfish.experts.kernels import SHORT_K, ExpertRing, ExpertWide
from swordfish.prefill.config import ARCHITECTURES
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["ExpertConfig", "ExpertPlan", "LayerShape", "plan_experts"]

ExpertConfig: TypeAlias = "ExpertRing | ExpertWide | ExpertDense | ExpertGrouped"

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Rows of a block for which ring kernels are compiled."""

MOST_SPAN = 8
"""Stages of a span, at most: 16 take 441 where 8 take 398 (qwen3 gate_up at M = 4096)."""

MOST_LANE_ROWS = 512
"""Rows of a block times tiles of columns, up to which lanes of the wide kernel bring the rows of x, anew for
each tile. That saves a launch: 58.9 on qwen3 and 57.3 on qwen1.5 gate_up at M = 256, with the launch 66.4 and
60.7. With more of them tensor copies are worth it: qwen1.5 at M = 512, 1024 and 4096 73.8, 111 and 314, by
lanes 78.8, 115 and 333."""

BLOCK_COST = 20
"""What a block costs besides its rows, in rows."""


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
    take blocks of the same number of rows. ``narrow``: pairs leave down rounded to 16 bits.
    """

    path: str
    gate_up: ExpertConfig | None
    down: ExpertConfig | None
    direct: bool
    reason: str
    narrow: bool = False

    @property
    def kernels(self) -> tuple[ExpertConfig | None, ExpertConfig | None, bool, bool]:
        """Plans that agree in this run the same kernels."""
        return self.gate_up, self.down, self.direct, self.narrow

    @property
    def dense(self) -> bool:
        """Weights are dequantised into memory first."""
        return isinstance(self.gate_up, ExpertDense)

    def __str__(self) -> str:
        if self.gate_up is None:
            return f"{self.path}: {self.reason}"
        sorting = "direct" if self.direct else "sorted"
        sorting += ", 16 bits by pair" if self.narrow else ""
        return f"{self.path}, {sorting}, gate_up {self.gate_up}, down {self.down}: {self.reason}"


@functools.lru_cache(maxsize=4096)
def plan_experts(
    tokens: int, top_k: int, shape: LayerShape, props: DeviceProps | None, wanted: str | None = None
) -> ExpertPlan:
    """The plan for ``tokens`` tokens of ``top_k`` experts each; ``props`` is ``None`` for the CPU reference.

    ``wanted`` names kernels as :mod:`swordfish.paths` does and is taken if they serve the layer:
    ``"decode"`` ring and wide, ``"prefill"`` grouped, ``"dense"`` dequantised weights.

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
    mean = tokens * top_k / shape.global_experts
    kind, why = _kind(mean, shape, props, wanted)
    if tokens == 1 and kind == "blocks":
        first, second = (_ring(1, *dims, top_k, props) for dims in _products(shape))
        return ExpertPlan("experts", first, second, True, "one token: each of its experts has one row")
    # down writes a row for every pair and the final sum reads it: beyond L2 in 4 bytes, so in 2.
    narrow = tokens * top_k * shape.n2 * 4 > props.l2_bytes
    if kind == "dense":
        dense = choose_dense(props)
        blocks = expected_blocks(mean, dense.block_rows) * shape.experts
        return ExpertPlan("experts", dense, dense, False, _told(mean, blocks, dense.block_rows, why), narrow)
    if kind == "grouped":
        choice = choose_grouped(_products(shape), shape.experts, mean, props)
        grouped13, grouped2 = choice.configs
        told = _told(mean, choice.blocks * shape.experts, grouped13.block_rows, why)
        return ExpertPlan("experts", grouped13, grouped2, False, told, narrow)
    rows, blocks = min(
        ((rows, expected_blocks(mean, rows)) for rows in _buckets(shape, props)),
        key=lambda choice: (choice[0] + BLOCK_COST) * choice[1],
    )
    told = _told(mean, blocks * shape.experts, rows, why)
    if rows >= first_wide_rows(props):
        wide13, wide2 = (_wide(rows, *dims, props) for dims in _products(shape))
        return ExpertPlan("experts", wide13, replace(wide2, in_order=True), False, told, narrow)
    expected = max(1, round(blocks * shape.experts))
    ring13, ring2 = (_ring(rows, *dims, expected, props) for dims in _products(shape))
    return ExpertPlan("experts", ring13, ring2, False, told)


def _told(mean: float, blocks: float, rows: int, why: str) -> str:
    return f"{mean:.1f} rows an expert make {blocks:.0f} blocks of {rows}" + (f" ({why})" if why else "")


def _kind(mean: float, shape: LayerShape, props: DeviceProps, wanted: str | None) -> tuple[str, str]:
    """``"blocks"`` (ring or wide), ``"grouped"`` or ``"dense"``, and what there is to say about it."""
    if wanted == "decode":
        return "blocks", "asked for"
    if wanted is not None:
        kinds = {"prefill": "grouped", "dense": "dense"}
        refused = grouped_unsupported(_products(shape), props) if wanted == "prefill" else no_dense(props)
        if refused is None:
            return kinds[wanted], "asked for"
        kind, why = _kind(mean, shape, props, None)
        return kind, "; ".join(filter(None, (why, f"not {kinds[wanted]}: {refused}")))
    if props.arch in ARCHITECTURES:
        least = grouped_rows(_products(shape), shape.experts, props)
        if mean < least:
            return "blocks", f"grouped from {least} rows an expert on"
        refused = grouped_unsupported(_products(shape), props)
        return ("grouped", "") if refused is None else ("blocks", f"not grouped: {refused}")
    if no_dense(props) is None:
        least, why = dense_rows(_products(shape))
        return ("dense", why) if mean >= least else ("blocks", f"dense from {least} rows an expert on")
    return "blocks", ""


def first_wide_rows(props: DeviceProps) -> int:
    """Rows of a block from which on the wide kernel takes over. Later than for a single weight
    (decode/choose.py): the ring goes on from block to block, which the wide kernel does not."""
    return 9 if props.arch == "sm_90a" else 17


def _products(shape: LayerShape) -> Sequence[tuple[int, int, Scheme]]:
    return (shape.k13, shape.n13, shape.scheme13), (shape.k2, shape.n2, shape.scheme2)


def _buckets(shape: LayerShape, props: DeviceProps) -> list[int]:
    """Rows of a block to choose from. Offsets, and all sums without wgmma, need registers for more than
    products, as in the dense kernel (decode/choose_wide.py).

    With int4 144 rows: qwen1.5 and qwen3 gate_up at M = 4096, 273 and 256 rows an expert in mostly two
    blocks, take 314 and 359, in three blocks of 96 rows 329 and 387.
    """
    wide_from, most = first_wide_rows(props), TOKEN_BUCKETS[-1]
    for _, _, scheme in _products(shape):
        if scheme.zeros == "offset":
            most = min(most, 32)
        elif props.arch != "sm_90a":
            most = min(most, 48)
        elif scheme.bits == 8:
            most = min(most, ONE_TILE)  # more spill
    return [
        *(r for r in ROW_BUCKETS if r < wide_from),
        *(t for t in TOKEN_BUCKETS if wide_from <= t <= most),
    ]


def _ring(rows: int, k: int, n: int, scheme: Scheme, blocks: int, props: DeviceProps) -> ExpertRing:
    """The ring configuration for about ``blocks`` blocks of ``rows`` rows.

    Read off sweeps on an H200 (bench/sweep_moe.py, int4, group size 128, bf16): microseconds of gate_up
    or down of the models in docs/moe.md.
    """
    unit = 4096 // (scheme.bits * 512)
    units = -(-k // (64 * unit))
    items = blocks * (n // 64)
    heavy = scheme.bits == 8 or scheme.zeros != "none"  # in registers
    if rows >= 8:
        if units <= 8:
            # A short K: 29.8 on qwen3 down at M = 64, in pairs of columns that share their tokens; 40.7 else.
            ring = RingConfig(rows, 2, 1, 6, 2, min_ctas=1 if heavy else 2)
        else:
            # 119 on mixtral gate_up at M = 16, two CTAs of six warps 130; but 58 on down, where 512 items
            # make two even rounds of 264 and uneven ones of 396 (73).
            four = RingConfig(rows, 1, unit, 4, 2, min_ctas=2 if heavy or rows > 8 else 3)
            six = RingConfig(rows, 1, unit, 6, 2, min_ctas=1 if heavy or rows > 8 else 2)
            even4, even6 = (_evenness(items, ring.min_ctas * props.sm_count) for ring in (four, six))
            ring = six if even6 > even4 + 0.15 else four
    elif units >= 24 and items < 3 * props.sm_count:
        # Few items of a long K: pairs of CTAs share it (15.4 on mixtral down at M = 1; half the warps 20.4).
        ring = RingConfig(rows, 1, unit, 12 if rows == 1 else 8, 2, 2, min_ctas=1 if heavy else 2)
    elif units >= 24 and rows == 1:
        # A long K wants more bytes in flight: 32.8 on mixtral gate_up at M = 1, with two slots 34.4.
        ring = RingConfig(rows, 1, unit, 4, 3, min_ctas=3 if heavy else 4)
    elif units >= 24:
        # 79.9 on mixtral gate_up at M = 4; two slots 82 and more.
        ring = RingConfig(rows, 1, unit, 6, 3, min_ctas=2)
    else:
        # 15.3 and 34.6 on qwen1.5 gate_up at M = 4 and 16; three CTAs of six warps 17.6 and 34.9.
        ring = RingConfig(rows, 1, unit, 4, 2, min_ctas=3 if heavy else 4)
    ring = replace(ring, warps=max(1, min(ring.warps, -(-k // (64 * ring.unit)) // ring.split)))
    config = ExpertRing(ring, 0, 1)
    while True:
        ring = config.ring
        # Items are dealt out to as many CTAs as fit, whose rings run on (16.1 on qwen1.5 down at M = 16, a
        # CTA each 21.2), unless that takes hardly more than one round, or they are long: better taken then
        # as CTAs become free (15.4 on qwen1.5 gate_up at M = 4, dealt out 21.5).
        clusters = ring.min_ctas * props.sm_count // ring.split
        tiles = blocks * -(-n // (64 * ring.cols))
        config = ExpertRing(ring, 0, 1)
        if tiles >= (2.5 if units >= 24 and rows < 8 else 1.5) * clusters:
            config = ExpertRing(ring, clusters, min(64, _power(2 * -(-tiles // clusters))))
        if _fits(config, scheme, k, props):
            break
        if ring.slots > 2:
            config = replace(config, ring=replace(ring, slots=ring.slots - 1))
        elif ring.min_ctas > 1:
            config = replace(config, ring=replace(ring, min_ctas=ring.min_ctas - 1))
        elif ring.warps > 1:
            config = replace(config, ring=replace(ring, warps=ring.warps - 1))
        else:
            break
    config.check(scheme, k, props)
    return config


def _fits(config: ExpertRing, scheme: Scheme, k: int, props: DeviceProps) -> bool:
    limit = min(props.smem_per_cta, props.smem_per_sm // config.ring.min_ctas - props.smem_reserved)
    return config.shared_bytes(scheme, k) <= limit


def _evenness(items: int, places: int) -> float:
    """The share of places that have work, over all rounds."""
    return items / (-(-items // places) * places)


def _power(v: int) -> int:
    return 1 << max(0, v - 1).bit_length()


def _wide(tokens: int, k: int, n: int, scheme: Scheme, props: DeviceProps) -> ExpertWide:
    """The wide configuration for blocks of ``tokens`` rows; from the same sweeps. Cuts are tiles,
    warpgroups, k of a stage, slots, CTAs on an SM and stages of a span."""
    wgmma = props.arch == "sm_90a"
    plain = scheme.bits == 4 and scheme.zeros == "none"
    # Two sets of sums as far as registers reach: 113 on qwen3 gate_up at M = 1024, one set 115.
    two_sets = 80 if plain and scheme.group_size % 128 == 0 else 48
    in_place = tokens > two_sets and scheme.zeros != "offset" and wgmma
    if tokens <= 32 and k < 8192 and plain and wgmma:
        # 58.9 and 33.1 on qwen3 at M = 256, tiles of 128 columns 63.6 and 33.6.
        cuts = [(4, 1, 128, 3, 2, 2)]
    elif tokens <= 48 and k < 8192 and plain:
        # 73.8 on qwen1.5 gate_up at M = 512, one CTA of 256 columns 79.6.
        cuts = [(2, 1, 128, 4, 2, 2), (2, 1, 128, 3, 2, 2)]
    elif tokens <= 48 and k < 8192:
        # With half of the registers spans spill: int8 gate_up on qwen3 at M = 256 110, in spans of two 127.
        cuts = [(2, 1, 128, 3, 2, 1)]
    elif tokens <= 48:
        # 66.5 on mixtral down at M = 64; tiles of 128 columns 97.
        cuts = [(2, 2, 256, 4, 1, 1), (2, 2, 128, 4, 1, 1)]
    elif k < SHORT_K and not in_place:
        # Another CTA works during the output: 63.8 on qwen3 down at M = 1024, one CTA of 256 columns 65.2.
        cuts = [(2, 1, 128, 3, 2, 1)]
    else:
        # As few pauses of the tensor cores as registers allow: one takes 208 on qwen3 down at M = 4096, two
        # 211; two 396 on its gate_up (rows by lanes), four 415, sixteen 422.
        span = min(MOST_SPAN, -(-k // 128)) if in_place else 1
        cuts = [(2, 2, 128, slots, 1, span) for slots in (5, 4, 3)]
    for tiles, warpgroups, stage_k, slots, wanted, span in (
        *cuts,
        (2, 1, 128, 4, 1, 1),
        (2, 1, 128, 3, 1, 1),
    ):
        ctas = wanted if wgmma else 1  # on an SM, for their registers
        aligned = scheme.group_size != CHANNELWISE and stage_k % scheme.group_size == 0
        wide = WideConfig(
            tokens,
            tiles,
            warpgroups,
            stage_k,
            slots,
            min_ctas=ctas,
            ctas=ctas * props.sm_count,
            wgmma=wgmma,
            in_place=in_place,
            scale_rows=stage_k // scheme.group_size if aligned else 1,
            span=span if wgmma else 1,
        )
        config = ExpertWide(wide, in_order=tokens * -(-n // wide.columns) > MOST_LANE_ROWS)
        room = min(props.smem_per_cta, props.smem_per_sm // ctas - props.smem_reserved)
        if config.shared_bytes(scheme) <= room:
            return config
    raise ArgumentError("scheme", scheme, "a scheme whose stages fit in shared memory")
