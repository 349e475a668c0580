"""Which configuration of the wide kernel serves a call: a function of shape, scheme and device properties.

The rules are read off sweeps of 10 to 90 configurations per shape and M on an H200 (int4, group size 128,
bf16, the seven Llama shapes of docs/decode.md; `swordfish tune`); times are microseconds of one launch. A cut
is written tiles x warpgroups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from swordfish.decode.wide import PART_TOKENS, WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["MAX_TOKENS", "TOKEN_BUCKETS", "choose_wide"]

TOKEN_BUCKETS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144)
"""Token counts for which kernels are compiled: products cost time in proportion from 32 tokens on."""

MAX_TOKENS = TOKEN_BUCKETS[-1]
"""Rows of a tile. More rows make several tiles, in one launch. With 160 rows tiles of 256 columns spill."""

ONE_TILE = 128
"""Rows that make one tile, whatever it costs."""

ROWS_OF_TILES = (MAX_TOKENS, ONE_TILE, PART_TOKENS)
"""Rows of a tile, at most, among which many rows choose. Others would be more kernels for little: with all
numbers of tiles 1.006 instead of 1.007 of the fastest (TILE_COST)."""

TILE_COST = 5120
"""What a tile costs besides its rows times columns, in the same unit."""

STREAM_COST = 1.15
"""What equal parts take longer than the same work in whole tiles. These two numbers choose well: of 112 cases
of 129 to 2,560 rows (17 on five shapes with int4, 10 on three with int8), each timed with up to four numbers
of tiles, they miss the fastest one by 0.7 % in geometric mean, by 10 % at most; tiles of 128 rows miss it by
5 % (int4), at most by 31 %."""

LARGEST_SPLIT = 8
"""CTAs of a cluster that every device can run."""

LARGE_WEIGHTS = 1 << 26
"""Elements from which on more CTAs with less shared memory each stream faster, up to 16 rows."""

LONG_WORK = 3_700_000_000
"""Multiplications from which on the 2 us that Stream-K takes to merge its sums are well spent."""

LONG_NARROW_WORK = 2_500_000_000
"""The same where tiles of 128 columns take half of the SMs or fewer, so that clusters would be large ones."""

FULL_WAVES = 0.9
FULL_SHORT_WAVES = 0.8
"""Of the SMs, those with work over all waves from which on tiles need not be divided; and of tiles with a
short K, for which merging weighs more."""

FULL_CLUSTERS = 0.76
"""Of the places for CTAs, those that clusters are given with four CTAs on an SM: 400 of 528 were fast."""

SHORT_K = 8192
"""K below which it is short."""


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
    span: int = 1
    always: bool = False  # equal parts also where whole tiles would leave few SMs without work

    @property
    def blocks(self) -> int:
        """64-column blocks of a CTA."""
        return self.tiles * self.warpgroups


def choose_wide(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> tuple[WideConfig, str]:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows), and why.

    Rows beyond what registers allow make several tiles, as even as possible; as many as cost least.

    Raises:
        ArgumentError: ``m`` is not positive.
    """
    if m < 1:
        raise ArgumentError("m", m, "1 or more")
    columns = -(-n // 64)
    most = _most_tokens(scheme, props)
    row_tiles = -(-m // most)
    if m <= ONE_TILE or props.arch != "sm_90a" or most < ONE_TILE:
        return _with_row_tiles(row_tiles, m, columns, k, scheme, props)
    found = [
        _with_row_tiles(tiles, m, columns, k, scheme, props)
        for tiles in dict.fromkeys(-(-m // rows) for rows in ROWS_OF_TILES)
    ]
    return min(found, key=lambda choice: _cost(choice[0], m, columns, props.sm_count))


def _most_tokens(scheme: Scheme, props: DeviceProps) -> int:
    """Rows of a tile, as far as registers reach."""
    wgmma = props.arch == "sm_90a"
    # Offsets need the sums of the tokens as well, and registers for them are there up to 64 tokens; so it is
    # with the two sets of sums of int8 and mma.sync (128 tokens spill 268 bytes).
    if scheme.zeros == "offset" or (scheme.bits == 8 and not wgmma):
        return 64
    if wgmma:
        return MAX_TOKENS
    return 96 if 0 < scheme.group_size < 128 else ONE_TILE  # two groups in a stage: 112 tokens spill 80 bytes


def _cost(config: WideConfig, m: int, columns: int, sms: int) -> float:
    """Of many rows, in rows by columns that a CTA goes through; infinite for what never pays."""
    tiles = -(-m // config.tokens) * -(-columns * 64 // config.columns) * config.split
    if config.slots < 3 and config.tokens > ONE_TILE:
        return inf  # int8, M = 288 on 4096 x 4096: 27.7, with 96 rows and six slots 19.3
    if config.tokens <= PART_TOKENS and (config.ctas or tiles > sms):
        return inf  # low tiles are for filling one wave
    waves = tiles / sms * STREAM_COST if config.ctas else -(-tiles // sms) / config.split
    return waves * (config.tokens * config.columns + TILE_COST)


def _with_row_tiles(
    row_tiles: int, m: int, columns: int, k: int, scheme: Scheme, props: DeviceProps
) -> tuple[WideConfig, str]:
    """The configuration for so many tiles of rows."""
    wgmma = props.arch == "sm_90a"
    tokens = next(t for t in TOKEN_BUCKETS if t * row_tiles >= m)
    blocks, work = columns * row_tiles, tokens * row_tiles * columns * k * 64
    if not wgmma:
        wanted, reason = _mma(tokens, scheme)
    elif tokens > 64:
        wanted, reason = _many_tokens(tokens, row_tiles, columns, k, scheme.bits, props)
    elif blocks >= 2 * props.sm_count:
        wanted, reason = _many_columns(tokens, blocks, props)
    else:
        wanted, reason = _few_columns(tokens, columns, k, work >= LONG_WORK, scheme.bits, props)
    if wgmma and _spills(wanted, tokens, scheme):
        wanted, reason = _Cut(1, 2, 256, 1, 3, stream=wanted.stream), "128 share their tokens"
    # Narrow CTAs always fit.
    for cut in (wanted, replace(wanted, stage_k=128), _Cut(1, 1, 128, 1, 4)):
        tiles = -(-columns // cut.blocks) * row_tiles
        places = props.sm_count * cut.resident
        waves = -(-tiles // places)
        stages = -(-k // cut.stage_k)
        # 4096 x 28672: 29.3 at M = 64, in equal parts 30.5; but 42.1 and 52.3 in equal parts at 96 and 128,
        # 44.0 and 53.8 by whole tiles.
        short = k < SHORT_K and (tokens <= 64 or row_tiles > 1)
        uneven = tiles < (FULL_SHORT_WAVES if short else FULL_WAVES) * waves * places
        stream = cut.stream and (uneven or cut.always) and places <= tiles // row_tiles * stages
        split = 1 if stream else _split(cut, tiles, stages, props)
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
    config = WideConfig(tokens, cut.tiles, cut.warpgroups, min_ctas=cut.resident)
    return sums + 8 * cut.tiles + 86 > config.registers


def _many_tokens(
    tokens: int, row_tiles: int, columns: int, k: int, bits: int, props: DeviceProps
) -> tuple[_Cut, str]:
    """More than 64 tokens: limited by the tensor cores, or by how fast L2 gives the tokens."""
    tiles = -(-columns // 2) * row_tiles  # of 128 columns
    narrow, wide = "128 share their tokens", "256 share their tokens, one set of sums"
    few = tokens <= PART_TOKENS
    if tiles >= 2 * props.sm_count and row_tiles == 1:
        # M = 80, 112 and 128 on 8192 x 57344: 138, 178 and 195; without spans 142, 182 and 200. At 96 tokens
        # 156, but 153 with tiles of 128 columns (at 80 144).
        if 80 < tokens <= PART_TOKENS or (bits == 8 and tokens > ONE_TILE):
            return _Cut(1, 2, 128, 1, 6, stream=True, span=4), narrow
        if tokens > ONE_TILE:
            return _Cut(2, 2, 128, 1, 4, in_place=True, stream=True, span=4), wide
        return _Cut(2, 2, 256, 1, 2, in_place=True, stream=True, span=2), wide
    # Short stages leave the ring deep: 26.9 on 8192 x 8192 at M = 128, stages of 256 k 30.4.
    if tiles <= props.sm_count // 2:
        if not few:
            full = 2 * tiles >= FULL_WAVES * props.sm_count
            if full and k > 2 * SHORT_K:
                # A long K wants the deeper ring: 91.1 on 28672 x 8192 at M = 128, spans 95.7, in equal parts
                # 92.2.
                return _Cut(1, 2, 128, 1, 5), narrow
            if k > SHORT_K:
                # 14336 x 4096 at M = 112 and 128: 26.4 and 28.0; in clusters 28.2 and 29.9, without spans
                # 27.3 and 30.1.
                return _Cut(1, 2, 128, 1, 4, stream=True, span=4), narrow
            # M = 128: 12.1, 15.6 and 27.8 on 4096 x 4096, x 6144 and 8192 x 8192; without spans 12.2, 16.1
            # and 29.5, in equal parts 14.4, 17.4 and 31.3.
            return _Cut(1, 2, 128, 1, 3, span=4), narrow
        # M = 96: 9.5, 12.0, 22.1 on 4096 x 4096, x 6144, 8192 x 8192 in clusters; in equal parts 11.8, 14.1,
        # 25.7. But 22.5 and 72.4 in equal parts on 14336 x 4096 and 28672 x 8192. Without spans 10.0, 13.1,
        # 24.6 and 24.7, 83.2.
        even = k > SHORT_K
        return _Cut(1, 2, 128, 1, 6 if even else 4, stream=even, span=4), narrow
    if row_tiles == 1:
        # M = 96, 112 and 128 on 4096 x 28672: 42.1, 49.0 and 52.3; without spans 45.8, 50.4 and 54.5, 256
        # columns 44.0 and 53.8 at 96 and 128.
        return _Cut(1, 2, 128, 1, 6 if few else 5, stream=True, span=4), narrow
    return _many_rows(tokens, tiles, -(-columns // 4) * row_tiles, k, bits, props.sm_count)


def _many_rows(tokens: int, tiles: int, wide: int, k: int, bits: int, sms: int) -> tuple[_Cut, str]:
    """More rows than a tile has: ``tiles`` of 128 columns, or ``wide`` ones of 256 with one set of sums.

    Equal parts go from tile to tile without a start and an end for each; whole tiles have nothing to merge.
    Times of int4 and, behind a stroke, int8.
    """

    def fill(count: int) -> bool:
        return count >= FULL_WAVES * -(-count // sms) * sms

    narrow = _Cut(1, 2, 128, 1, 6 if tokens <= PART_TOKENS else 5, span=4)
    # M = 1024 on four shapes, of cuBLAS: without spans 0.82 | 0.81, with stages of 256 k 0.89; with both or
    # with spans 0.90 | 0.90.
    broad = _Cut(2, 2, 128, 1, 4, in_place=True, span=4 if bits == 4 else 8)
    even_narrow, even_broad = (replace(cut, stream=True, always=True) for cut in (narrow, broad))
    wide_waves, waves = -(-wide // sms), -(-tiles // sms)
    two, one = "128 share their tokens", "256 share their tokens, one set of sums"
    whole = (fill(tiles) and waves <= 2) or (0.7 * sms <= tiles <= sms and k < SHORT_K)
    if bits == 8 and tokens > ONE_TILE:  # 256 columns spill 188 bytes
        return (narrow if whole else even_narrow), two
    if wide_waves >= 4:
        # M = 640, 1024, 2048 on 4096 x 28672: 229, 372, 731 | 251, 386, 789; whole tiles 263, 378, 762 | 287,
        # 395, 813; of 128 columns 230, 376, 726 | 253, 400, 798.
        return even_broad, one
    if fill(wide):
        # M = 1024 on 4096 x 4096, 14336 x 4096 and 8192 x 8192: 50.4, 173, 205 | 53.3, 189, 216; equal parts
        # 59.5, 182, 211 | 63.9, 199, 221; 128 columns 53.6, 183, 209 | 58.9, 199, 225.
        return broad, one
    if whole:
        # M = 512 on 4096 x 4096 and 14336 x 4096: 24.8, 88.6 | 28.6, 94.6; in equal parts 30.3, 94.0 | 33.6,
        # 102, without spans 26.7, 92.0 | 30.0, 98.5. M = 256 on 4096 x 6144, 0.73 of a wave: 24.6 | 25.9 and
        # 26.2 | 28.3 in equal parts. Three waves, 4096 x 4096 at M = 1536, are level.
        return narrow, two
    if wide >= sms and k > SHORT_K:
        # M = 1280, 1536, 2560 on 14336 x 4096: 221, 262, 439 | 233, 287, 483; of 128 columns (without spans)
        # 237, 268, 461 | 238, 289, 509. On 4096 x 4096 72, 85, 139 | 81, 94, 148 and 66, 78, 133 | 73, 85,
        # 143.
        return even_broad, one
    # M = 768 on 4096 x 4096, x 6144, 14336 x 4096 and 8192 x 8192: 40.8, 61.1, 131, 157 | 44.5, 67.1, 149,
    # 169; without spans 41.4, 62.2, 152, 158 | 45.5, 68.2, 151, 173; 256 columns 47.5, 66.9, 138, 158 | 53.6,
    # 72.2, 165, 173.
    return even_narrow, two


def _many_columns(tokens: int, blocks: int, props: DeviceProps) -> tuple[_Cut, str]:
    """Up to 64 tokens and enough columns for every SM."""
    if tokens <= 32 and blocks <= 4 * props.sm_count:
        # 16.3, 18.4, 19.6 and 21.1 on 4096 x 28672 at M = 8, 16, 24 and 32; 256 columns a CTA 19.1 at 16,
        # without spans 21.2 and 23.1 at 24 and 32.
        return _Cut(1, 2, 256, 2, 4, span=8 if tokens > 16 else 1), "two CTAs of 128 on an SM"
    # M = 8, 16, 24, 32, 48, 64 on 8192 x 57344: 59.5, 62.9, 71.1, 80.9, 96.5 and 117; without spans 73.9,
    # 83.2 and 102 at 24, 32 and 48, and 117 at 64; 256 columns a CTA 59.2, 64.4 at 8 and 16. On 4096 x 28672
    # whole tiles: 26.2 and 29.3 at 48 and 64.
    return _Cut(2, 1, 256, 2, 4, stream=True, span=_span_of_pairs(tokens)), "two CTAs of 128 on an SM"


def _few_columns(
    tokens: int, columns: int, k: int, long: bool, bits: int, props: DeviceProps
) -> tuple[_Cut, str]:
    """Up to 64 tokens. K is divided so that every SM has work: over clusters, or where it is worth it,
    evenly."""
    large = columns * k * 64 >= LARGE_WEIGHTS
    pairs = 2 * -(-columns // 2) >= FULL_WAVES * props.sm_count  # of CTAs of 128 columns, fill the device
    if not pairs and tokens > 32 and columns * k * tokens * 64 >= LONG_NARROW_WORK:
        # 14336 x 4096 at M = 48 and 64: 15.6 and 18.2; in clusters 16.4 and 20.8, without spans 18.9 at 64.
        return _Cut(1, 2, 128, 1, 6, stream=True, span=4), "128 share their tokens"
    if long and large and k > SHORT_K:
        # 28672 x 8192 at M = 16, 24, 32, 48, 64: 33.7, 37.7, 41.2, 50.7 and 56.5; without spans 39.3, 42.8
        # and 52.4 at 24, 32 and 48; clusters 37.1 at 16 and 46.5 at 32.
        return _Cut(2, 1, 256, 2, 4, stream=True, span=_span_of_pairs(tokens)), "two CTAs of 128 on an SM"
    if tokens <= 16:
        if large:
            # 8192 x 8192 at M = 16: 11.7; two CTAs on an SM 12.2. 28672 x 8192 at M = 8: 31.4.
            return _Cut(2, 1, 128, 3, 4), "three CTAs of 128 on an SM"
        if bits == 8:
            # 6.1, 7.8, 8.5 and 15.7 at M = 16 on 4096 x 4096, x 6144, 5120 x 5120 and 14336 x 4096; two CTAs
            # of 128 columns on an SM 6.2, 8.8, 8.9 and 16.6, four of 64 with 4 slots 6.1, 8.4, 8.5 and 16.6.
            return _Cut(1, 1, 128, 3, 5), "three CTAs of 64 on an SM"
        if k < SHORT_K:
            # 4.4, 5.6 and 5.6 at M = 8 on 4096 x 4096, x 6144 and 5120 x 5120; 4.8, 6.0 and 6.0 at M = 16.
            # Three CTAs on an SM with deeper rings 4.4, 5.8, 5.7 and 4.8, 6.3, 6.2; two of 128 columns 4.7,
            # 5.8, 6.2 and 5.1, 6.3, 6.8.
            return _Cut(1, 1, 256, 4, 2), "four CTAs of 64 on an SM"
        # 10.0 and 10.5 at M = 8 and 16 on 14336 x 4096; four CTAs on an SM 14.6 and 11.7, two of 128 columns
        # 10.6 and 11.4.
        return _Cut(1, 1, 256, 3, 3), "three CTAs of 64 on an SM"
    if tokens <= 32 and not pairs:
        # M = 24 and 32 on these: 5.4 and 5.9, 6.4 and 7.3, 12.3 and 13.8; without spans 5.6 and 6.0, 6.8 and
        # 7.4, 13.1 and 13.9; one CTA an SM 6.2, 7.8 and 13.7 at 32.
        return _Cut(1, 2, 128, 2, 4, span=4 if tokens <= 24 else 2), "two CTAs of 128 on an SM"
    if tokens <= 32:
        # M = 24 and 32 on 8192 x 8192: 12.5 and 13.4; without spans 13.6 and 14.5, in equal parts 15.0 at 32.
        return _Cut(1, 2, 128, 1, 6, span=8), "128 share their tokens"
    # M = 48 and 64 on 4096 x 4096, x 6144 and 8192 x 8192: 7.1 and 7.8, 8.6 and 9.6, 16.1 and 18.1; without
    # spans 8.4, 10.7 and 20.3 at 64, two CTAs on an SM 7.4 and 9.0 at 48.
    return _Cut(1, 2, 128, 1, 4, span=4), "128 share their tokens"


def _span_of_pairs(tokens: int) -> int:
    """For two tiles of a warpgroup and stages of 256 k, whose other CTA on the SM fills pauses as well."""
    if tokens <= 16 or tokens > 48:
        return 1
    return 4 if tokens <= 32 else 2


def _mma(tokens: int, scheme: Scheme) -> tuple[_Cut, str]:
    """mma.sync: not timed; the largest cuts that the compiler builds without spills.

    Two sets of sums throughout: one set in place is rescaled by a quotient of scales, which can move a
    result by one unit in the last place where the exact one lies half-way between two.
    """
    most = 32 if scheme.zeros == "offset" else 48 if 0 < scheme.group_size < 128 else 64
    if tokens <= most:
        return _Cut(2, 1, 128, 2, 4), "two tiles share token fragments"
    return _Cut(1, 2, 128, 1, 4), "128 share their tokens"


def _split(cut: _Cut, tiles: int, stages: int, props: DeviceProps) -> int:
    """CTAs of a cluster.

    A cluster lies in one GPC, and GPCs have unequal numbers of SMs. Pairs fill a machine (128 of 132 SMs);
    larger clusters surely fill three quarters of it, or all but one incomplete cluster for every 16 SMs. One
    too many doubles the time (14.3 instead of 9.3 on 4096 x 4096 at M = 64). With four CTAs on an SM it is
    three quarters: 64 clusters of 7 in 528 places took 14.6 instead of 10.0 on 14336 x 4096 at M = 8.

    With three or four CTAs on an SM (others were not timed so) there are no more than make the longest range
    shorter: 16 stages of 4096 x 4096 take 4.8 at M = 16 with 4; with 5, of which one has 4 stages, too, 5.2.
    """
    places = props.sm_count * cut.resident

    def fits(split: int) -> bool:
        lost = 0 if split == 2 else min(places // 4, -(-props.sm_count // 16) * (split - 1))
        if split > 2 and cut.resident > 3:
            lost = int(places * (1 - FULL_CLUSTERS))
        return split <= stages and tiles * split <= places - lost

    most = max(s for s in range(1, LARGEST_SPLIT + 1) if s == 1 or fits(s))
    return -(-stages // -(-stages // most)) if cut.resident > 2 else most


def _fit(
    cut: _Cut, tokens: int, split: int, ctas: int, scheme: Scheme, props: DeviceProps, wgmma: bool
) -> WideConfig | None:
    """The cut with as many slots as it wants or memory holds; exchanged sums beside the ring if they fit."""
    room = min(props.smem_per_cta, props.smem_per_sm // cut.resident - props.smem_reserved)
    # The single scale of a column waits for the end, unless a CTA goes on to other columns.
    in_place = cut.in_place and (scheme.group_size != CHANNELWISE or ctas > 0)
    whole = scheme.group_size != CHANNELWISE and cut.stage_k % scheme.group_size == 0
    span = cut.span
    if scheme.bits == 8 and cut.resident > 1:
        span = 1  # with half of the registers, spans spill up to 448 bytes
    elif scheme.bits == 8 and (scheme.zeros != "none" or 0 < scheme.group_size < 64):
        span = min(span, 2)  # long ones spill up to 32 bytes: zero points of two tiles, short groups
    elif scheme.group_size == CHANNELWISE:
        span = min(span, 4)  # eight stages of 256 k without a pause spill 776 bytes
    base = WideConfig(
        tokens,
        cut.tiles,
        cut.warpgroups,
        cut.stage_k,
        max(2, cut.slots),
        split,
        cut.resident,
        wgmma=wgmma,
        in_place=in_place,
        scale_rows=cut.stage_k // scheme.group_size if whole else 1,
        ctas=ctas,
        span=span,
    )
    for overlay in (False, True) if split > 1 else (False,):
        # Its own place for the sums costs at most half of the slots.
        least = max(2, cut.slots - 1) if not overlay and split > 1 else 2
        for slots in range(cut.slots, least - 1, -1):
            config = replace(base, slots=slots, overlay=overlay)
            if config.shared_bytes(scheme) <= room:
                return config
    return None
