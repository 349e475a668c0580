"""Which configuration of the wide kernel serves a call: a function of shape, scheme and device properties.

The rules are read off sweeps of 10 to 90 configurations per shape and M on an H200 (int4, group size 128,
bf16, the seven Llama shapes of docs/decode.md; `swordfish tune`); times are microseconds of one launch. A cut
is written tiles x warpgroups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["MAX_TOKENS", "SMALL_WEIGHTS", "TOKEN_BUCKETS", "choose_wide"]

TOKEN_BUCKETS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
"""Token counts for which kernels are compiled: products cost time in proportion from 32 tokens on."""

MAX_TOKENS = TOKEN_BUCKETS[-1]
"""Rows of a tile. More rows make several tiles, in one launch."""

LARGEST_SPLIT = 8
"""CTAs of a cluster that every device can run."""

SMALL_WEIGHTS = 1 << 25
"""Elements below which a launch is over before its start is paid for."""

LARGE_WEIGHTS = 1 << 27
"""Elements from which on more CTAs with less shared memory each stream faster; half as many up to 16 rows."""

LONG_WORK = 5_000_000_000
"""Multiplications from which on the 2 us that Stream-K takes to merge its sums are well spent."""

FULL_WAVES = 0.9
FULL_SHORT_WAVES = 0.8
"""Of the SMs, those with work over all waves from which on tiles need not be divided; and of tiles with a
short K, for which merging weighs more."""

SHORT_STAGES = 32
"""Stages of 256 k below which K is short."""


@dataclass(frozen=True)
class _Cut:
    """What a rule decides: the tile of a CTA, its depth, CTAs per SM, whether they share the work evenly."""

    tiles: int
    warpgroups: int
    stage_k: int
    resident: int
    slots: int
    in_place: bool = False
    stream: bool = False

    @property
    def blocks(self) -> int:
        """64-column blocks of a CTA."""
        return self.tiles * self.warpgroups


def choose_wide(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> tuple[WideConfig, str]:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows), and why.

    Rows beyond what registers allow make several tiles, as even as possible.

    Raises:
        ArgumentError: ``m`` is not positive.
    """
    if m < 1:
        raise ArgumentError("m", m, "1 or more")
    columns = -(-n // 64)
    wgmma = props.arch == "sm_90a"
    # Offsets need the sums of the tokens as well, and registers for them are there up to 64 tokens; so it is
    # with the two sets of sums of int8 and mma.sync (128 tokens spill 268 bytes).
    most = 64 if scheme.zeros == "offset" or (scheme.bits == 8 and not wgmma) else MAX_TOKENS
    if not wgmma and 0 < scheme.group_size < 128:
        most = min(most, 112)  # two groups in a stage: 128 tokens spill up to 268 bytes
    row_tiles = -(-m // most)
    tokens = next(t for t in TOKEN_BUCKETS if t * row_tiles >= m)
    blocks, weights = columns * row_tiles, columns * k * 64
    many, long = blocks >= 2 * props.sm_count, tokens * row_tiles * weights >= LONG_WORK
    if not wgmma:
        wanted, reason = _mma(tokens, scheme)
    elif tokens > 64 and (many or (row_tiles > 1 and long and 3 * blocks >= 4 * props.sm_count)):
        wanted, reason = _many_products(), "256 share their tokens, one set of sums"
    elif many:
        wanted, reason = _many_columns(tokens, blocks, long, props)
    else:
        wanted, reason = _few_columns(tokens, weights, long)
    if wgmma and _spills(wanted, tokens, scheme):
        wanted, reason = _Cut(1, 2, 256, 1, 3, stream=wanted.stream), "128 share their tokens"
    # Narrow CTAs always fit.
    for cut in (wanted, replace(wanted, stage_k=128), _Cut(1, 1, 128, 1, 4)):
        tiles = -(-columns // cut.blocks) * row_tiles
        places = props.sm_count * cut.resident
        waves = -(-tiles // places)
        stages = -(-k // cut.stage_k)
        # 4096 x 28672: 26.6 and 101 at M = 48 and 256, in equal parts 30.0 and 108; but 42.6 and 41.7 at 96.
        short = k < SHORT_STAGES * 256 and (tokens <= 64 or row_tiles > 1)
        uneven = tiles < (FULL_SHORT_WAVES if short else FULL_WAVES) * waves * places
        stream = cut.stream and uneven and places <= tiles // row_tiles * stages
        split = 1 if cut.stream else _split(cut, tiles, stages, props)
        config = _fit(cut, tokens, split, places if stream else 0, scheme, props, wgmma)
        if config is not None:
            how = f"{tokens} tokens, {blocks} blocks of 64 columns, {reason}"
            return config, f"{how}, {places} equal parts" if stream else how
    raise ArgumentError("scheme", scheme, "a scheme whose stages fit in shared memory")


def _spills(cut: _Cut, tokens: int, scheme: Scheme) -> bool:
    """Whether a cut that fits symmetric int4 lacks the registers for the sums of the tokens (offsets), or for
    the zero points of four tiles of int8: up to 328 bytes were spilled."""
    if scheme.bits == 8 and scheme.zeros != "none" and cut.tiles == 4:
        return True
    if scheme.zeros != "offset":
        return False
    sums = cut.tiles * tokens + tokens // 2
    return sums + 8 * cut.tiles + 86 > min(255, 512 // (cut.warpgroups * cut.resident))


def _many_products() -> _Cut:
    """More than 64 tokens and enough tiles of 256 columns: limited by the tensor cores."""
    # M = 128: 51.3 on 4096 x 28672, 174 on 8192 x 57344; whole tiles (112, 224) 53.1 and 197; with two sets
    # of sums 128 columns are all that fits: 53.7 and 211. M = 512 on 4096 x 4096 and 14336 x 4096: 32.7 and
    # 100; 128 columns 34.4 and 101, 256 tokens by 128 columns 36.3 and 106.
    return _Cut(2, 2, 256, 1, 2, in_place=True, stream=True)


def _many_columns(tokens: int, blocks: int, long: bool, props: DeviceProps) -> tuple[_Cut, str]:
    """Up to 64 tokens and enough columns for every SM."""
    one_wave = blocks <= 4 * props.sm_count  # 128 columns a CTA, two CTAs on an SM
    if tokens <= 32:
        if one_wave:
            # 18.1 and 21.3 on 4096 x 28672 at M = 16 and 32; one CTA of 256 columns 19.8 and 22.3, shares of
            # equal length 22.1 at M = 16.
            return _Cut(1, 2, 256, 2, 4), "two CTAs of 128 on an SM"
        if tokens <= 16:
            # 62.6 on 8192 x 57344; 256 columns a CTA 65.5: the tail of the last wave is longer.
            return _Cut(2, 1, 256, 4, 2), "four CTAs of 128 on an SM"
        # 73.8 on 8192 x 57344; 128 columns a CTA 78.7: tokens are read twice as often.
        return _Cut(4, 1, 256, 2, 2), "two CTAs of 256 on an SM"
    if tokens <= 48:
        # 8192 x 57344 at M = 48: 88.5; whole tiles 104.
        return _Cut(2, 2, 256, 1, 3, stream=long), "256 share their tokens"
    # M = 64: 31.8 on 4096 x 28672, 104 on 8192 x 57344; whole tiles 31.7 and 119, 256 columns a CTA 31.1 and
    # 117.
    return _Cut(2, 1, 256, 2, 2, stream=long), "two CTAs of 128 on an SM"


def _few_columns(tokens: int, weights: int, long: bool) -> tuple[_Cut, str]:
    """K is divided so that every SM has work: over clusters, or where it is worth it, evenly."""
    if tokens <= 32 and weights >= (LARGE_WEIGHTS if tokens > 16 else LARGE_WEIGHTS // 2):
        # 28672 x 8192 at M = 16 and 32: 35.7 and 42.0; 256 columns a CTA 40.6 and 47.3, equal parts 38.5 and
        # 41.3. 8192 x 8192 at M = 16: 12.5; two CTAs on an SM 13.0.
        return _Cut(2, 1, 256, 3, 2), "three CTAs of 128 on an SM"
    if tokens <= 16:
        # 4.8 and 6.2 at M = 8 on 4096 x 4096 and x 6144; 5.0, 6.2 and 12.0 at M = 16 on these and 14336 x
        # 4096, 256 columns a CTA 5.6, 7.5 and 13.4. The room for a second CTA lets the next launch begin.
        return _Cut(1, 2, 256, 2, 3), "two CTAs of 128 on an SM"
    if tokens <= 32:
        # M = 32: 6.6, 8.2, 14.3, 15.6 on these four; 128 columns a CTA 6.8, 8.7, 14.9, 15.1.
        return _Cut(1, 4, 256, 1, 4), "256 share their tokens"
    if tokens <= 64:
        if long:
            # 28672 x 8192 at M = 48 and 64: 51.9 and 60.2; clusters of two 56.3 and 66.0.
            return _Cut(2, 1, 256, 2, 2, stream=True), "two CTAs of 128 on an SM"
        # M = 64: 8.5, 10.5, 19.4, 17.9 on the four; 256 columns a CTA 9.9, 11.1, 20.0, 21.9: coarser tiles
        # leave more SMs without work.
        return _Cut(1, 2, 256, 1, 3), "128 share their tokens"
    if long and tokens <= 96 and weights < LARGE_WEIGHTS:
        # M = 96: 24.9 and 26.0 on 14336 x 4096 and 8192 x 8192; short stages 25.9 and 27.2 (but 79.4 and 87.5
        # on 28672 x 8192), clusters 26.4 and 26.2.
        return _Cut(1, 2, 256, 1, 3, stream=True), "128 share their tokens"
    # M = 128: 29.9, 32.8, 94.7 on 14336 x 4096, 8192 x 8192 and 28672 x 8192; clusters 33.6, 33.1 and 105,
    # which win on less work: 14.3 instead of 15.4 on 4096 x 4096. Only two stages of 256 k fit: 38.2, 38.7.
    return _Cut(1, 2, 128, 1, 5, stream=long), "128 share their tokens, in short stages"


def _mma(tokens: int, scheme: Scheme) -> tuple[_Cut, str]:
    """mma.sync: not timed; the largest cuts that the compiler builds without spills.

    Two sets of sums throughout: one set in place is rescaled by a quotient of scales, which can move a
    result by one unit in the last place where the exact one lies half-way between two.
    """
    if tokens <= 32 or (tokens <= 64 and scheme.zeros != "offset"):
        return _Cut(2, 1, 128, 2, 4), "two tiles share token fragments"
    return _Cut(1, 2, 128, 1, 4), "128 share their tokens"


def _split(cut: _Cut, tiles: int, stages: int, props: DeviceProps) -> int:
    """CTAs of a cluster.

    A cluster lies in one GPC, and GPCs have unequal numbers of SMs. Pairs fill a machine (128 of 132 SMs);
    larger clusters surely fill three quarters of it, or all but one incomplete cluster for every 16 SMs. One
    too many doubles the time (14.3 instead of 9.3 on 4096 x 4096 at M = 64).
    """
    places = props.sm_count * cut.resident

    def fits(split: int) -> bool:
        lost = 0 if split == 2 else min(places // 4, -(-props.sm_count // 16) * (split - 1))
        return split <= stages and tiles * split <= places - lost

    return max(s for s in range(1, LARGEST_SPLIT + 1) if s == 1 or fits(s))


def _fit(
    cut: _Cut, tokens: int, split: int, ctas: int, scheme: Scheme, props: DeviceProps, wgmma: bool
) -> WideConfig | None:
    """The cut with as many slots as it wants or memory holds; exchanged sums beside the ring if they fit."""
    room = min(props.smem_per_cta, props.smem_per_sm // cut.resident - props.smem_reserved)
    # The single scale of a column waits for the end, unless a CTA goes on to other columns.
    in_place = cut.in_place and (scheme.group_size != CHANNELWISE or ctas > 0)
    whole = scheme.group_size != CHANNELWISE and cut.stage_k % scheme.group_size == 0
    base = WideConfig(
        tokens,
        cut.tiles,
        cut.warpgroups,
        cut.stage_k,
        max(3, cut.slots),
        split,
        cut.resident,
        wgmma=wgmma,
        in_place=in_place,
        refill_batch=1 if wgmma else 0,
        scale_rows=cut.stage_k // scheme.group_size if whole else 1,
        ctas=ctas,
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
