"""Which configuration of the wide kernel serves a call: a function of shape, scheme and device properties.

The rules are read off sweeps of 10 to 90 configurations per shape and M on an H200 (int4, group size 128,
bf16, the seven Llama shapes of docs/decode.md; bench/tune_decode_wide.py); times are microseconds of one
launch. A cut is written tiles x warpgroups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["MAX_TOKENS", "TOKEN_BUCKETS", "choose_wide"]

TOKEN_BUCKETS = (16, 24, 32, 48, 64, 80, 96, 112, 128)
"""Token counts for which kernels are compiled: products cost time in proportion from 32 tokens on."""

MAX_TOKENS = TOKEN_BUCKETS[-1]

LARGEST_SPLIT = 8
"""CTAs of a cluster that every device can run."""

SMALL_WEIGHTS = 1 << 25
"""Weights below which a launch is over before its start is paid for."""


@dataclass(frozen=True)
class _Cut:
    """What a rule decides: the tile of a CTA, its depth, CTAs per SM."""

    tiles: int
    warpgroups: int
    stage_k: int
    ctas: int
    slots: int
    in_place: bool = False

    @property
    def blocks(self) -> int:
        """64-column blocks of a CTA."""
        return self.tiles * self.warpgroups


def choose_wide(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> tuple[WideConfig, str]:
    """The configuration for ``m`` rows (1 to 128) of a ``[k, n]`` weight (``k`` in packed rows), and why.

    A configuration with fewer tokens than ``m`` (of an offset weight) is launched repeatedly.

    Raises:
        ArgumentError: ``m`` is out of range.
    """
    if not 1 <= m <= MAX_TOKENS:
        raise ArgumentError("m", m, f"1 to {MAX_TOKENS}")
    columns = -(-n // 64)
    wgmma = props.arch == "sm_90a"
    # Offsets need the sums of the tokens as well, and registers for them are there up to 64 tokens; so it is
    # with the two sets of sums of int8 and mma.sync (128 tokens spill 268 bytes).
    most = 64 if scheme.zeros == "offset" or (scheme.bits == 8 and not wgmma) else MAX_TOKENS
    if not wgmma and 0 < scheme.group_size < 128:
        most = min(most, 112)  # two groups in a stage: 128 tokens spill up to 268 bytes
    tokens = next(t for t in TOKEN_BUCKETS if t >= min(m, most))
    if not wgmma:
        wanted, reason = _mma(tokens, scheme)
    elif columns >= 2 * props.sm_count:
        wanted, reason = _many_columns(tokens, columns, props)
    else:
        wanted, reason = _few_columns(tokens, columns * k * 64)
    # Narrow CTAs always fit.
    for cut in (wanted, replace(wanted, stage_k=128), _Cut(1, 1, 128, 1, 4)):
        split = _split(cut, columns, k, props)
        config = _fit(cut, tokens, split, scheme, props, wgmma)
        if config is not None:
            return config, f"{tokens} tokens, {columns} blocks of 64 columns, {reason}"
    raise ArgumentError("scheme", scheme, "a scheme whose stages fit in shared memory")


def _many_columns(tokens: int, columns: int, props: DeviceProps) -> tuple[_Cut, str]:
    """Enough columns for every SM: K is not split."""
    one_wave = columns <= 4 * props.sm_count  # 128 columns a CTA, two CTAs on an SM
    if tokens <= 32:
        if one_wave:
            # 18.1 and 21.3 on 4096 x 28672 at M = 16 and 32; one CTA of 256 columns 19.8 and 22.3.
            return _Cut(1, 2, 256, 2, 4), "two CTAs of 128 on an SM"
        if tokens <= 16:
            # 62.6 on 8192 x 57344; 256 columns a CTA 65.5: the tail of the last wave is longer.
            return _Cut(2, 1, 256, 4, 2), "four CTAs of 128 on an SM"
        # 73.8 on 8192 x 57344; 128 columns a CTA 78.7: tokens are read twice as often.
        return _Cut(4, 1, 256, 2, 2), "two CTAs of 256 on an SM"
    if tokens <= 64:
        if one_wave and tokens > 48:
            # 28.6 on 4096 x 28672; 256 columns a CTA 29.9.
            return _Cut(2, 1, 256, 2, 2), "two CTAs of 128 on an SM"
        # 25.8 and 92.9 at M = 48 with 2x2, 108.1 at M = 64 on 8192 x 57344 with 1x4 (2x2: 115).
        cut = _Cut(2, 2, 256, 1, 3) if tokens <= 48 else _Cut(1, 4, 256, 1, 3)
        return cut, "256 share their tokens"
    # 49.2 and 190 at M = 128; with two sets of sums 128 columns are all that fits: 53.7 and 216.
    return _Cut(2, 2, 256, 1, 2, in_place=True), "256 share their tokens, one set of sums"


def _few_columns(tokens: int, weights: int) -> tuple[_Cut, str]:
    """K is split over clusters so that every SM has work."""
    if tokens <= 16 and weights < SMALL_WEIGHTS:
        # 5.0 and 6.2 on 4096 x 4096 and x 6144; 256 columns a CTA 5.6 and 7.5. The room for a second CTA lets
        # the next launch begin.
        return _Cut(1, 2, 256, 2, 3), "two CTAs of 128 on an SM"
    if tokens <= 32:
        # M = 32: 6.6, 8.2, 14.3, 15.6, 45.9 on the five shapes with few columns; 128 columns a CTA 6.8, 8.7,
        # 14.9, 15.1; three warpgroups 6.8, 8.3, 15.2.
        return _Cut(1, 4, 256, 1, 4), "256 share their tokens"
    if tokens <= 64:
        # M = 64: 8.5, 10.5, 19.4, 17.9, 53.9; 256 columns a CTA 9.9, 11.1, 20.0, 21.9, 63.5: coarser tiles
        # leave more SMs without work.
        return _Cut(1, 2, 256, 1, 3), "128 share their tokens"
    # M = 128: 13.1, 16.7, 30.3, 27.7, 85.1; stages of 256 k 15.4, 18.7, 37.5, 32.7, 100: only two fit.
    return _Cut(1, 2, 128, 1, 5), "128 share their tokens, in short stages"


def _mma(tokens: int, scheme: Scheme) -> tuple[_Cut, str]:
    """mma.sync: not timed; the largest cuts that the compiler builds without spills.

    Two sets of sums throughout: one set in place is rescaled by a quotient of scales, which can move a
    result by one unit in the last place where the exact one lies half-way between two.
    """
    if tokens <= 48 or (tokens <= 64 and scheme.zeros != "offset"):
        return _Cut(2, 1, 128, 2, 4), "two tiles share token fragments"
    return _Cut(1, 2, 128, 1, 4), "128 share their tokens"


def _split(cut: _Cut, columns: int, k: int, props: DeviceProps) -> int:
    """CTAs of a cluster.

    A cluster lies in one GPC, and GPCs have unequal numbers of SMs. Pairs fill a machine (128 of 132 SMs);
    larger clusters surely fill only three quarters of it, and one too many doubles the time (14.3 instead of
    9.3 on 4096 x 4096 at M = 64).
    """
    tiles, places = -(-columns // cut.blocks), props.sm_count * cut.ctas
    stages = -(-k // cut.stage_k)
    return max(
        s
        for s in range(1, LARGEST_SPLIT + 1)
        if s == 1 or (s <= stages and tiles * s <= (places if s == 2 else places * 3 // 4))
    )


def _fit(
    cut: _Cut, tokens: int, split: int, scheme: Scheme, props: DeviceProps, wgmma: bool
) -> WideConfig | None:
    """The cut with as many slots as it wants or memory holds; exchanged sums beside the ring if they fit."""
    room = min(props.smem_per_cta, props.smem_per_sm // cut.ctas - props.smem_reserved)
    in_place = cut.in_place and scheme.group_size != CHANNELWISE
    whole = scheme.group_size != CHANNELWISE and cut.stage_k % scheme.group_size == 0
    base = WideConfig(
        tokens,
        cut.tiles,
        cut.warpgroups,
        cut.stage_k,
        max(3, cut.slots),
        split,
        cut.ctas,
        wgmma=wgmma,
        in_place=in_place,
        refill_batch=1 if wgmma else 0,
        scale_rows=cut.stage_k // scheme.group_size if whole else 1,
    )
    fewest = 3 if cut.stage_k * cut.tiles < 256 else 2
    for overlay in (False, True) if split > 1 else (False,):
        # Its own place for the sums costs at most half of the slots.
        least = max(fewest, cut.slots - 1) if not overlay and split > 1 else fewest
        for slots in range(max(cut.slots, fewest), least - 1, -1):
            config = replace(base, slots=slots, overlay=overlay)
            if config.shared_bytes(scheme) <= room:
                return config
    return None
