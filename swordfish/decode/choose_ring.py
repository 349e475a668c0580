"""Which configuration of the ring kernel serves a call: a pure function of shape, scheme and device
properties.

The rules are read off sweeps of 50 to 140 configurations per shape and M on an H200 (`swordfish tune`;
int4, group size 128, bf16, the seven Llama shapes of docs/decode.md); each states what it is worth there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swordfish.decode.ring import MAX_ROWS, MAX_SPLIT, RingConfig
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["ROW_BUCKETS", "choose_ring"]

ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Rows for which kernels are compiled; a call uses the smallest bucket that holds its rows, or 16."""

GATHER_ROWS = 2
GATHER_K = 16384
"""Act-order: up to so many rows of x and this K the kernel keeps x in shared memory and permutes it there:
10.4 us on 14336 x 4096 with two rows, 11.3 with a launch that gathers first. Beyond it every CTA would
copy too much: 31.4 us on 28672 x 8192 with one row, 30.1 with the launch."""

SHORT_K = 4096
"""K that can be in flight as a whole."""


def choose_ring(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps, *, padded_rows: bool = False
) -> tuple[RingConfig, str]:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows), and why.

    ``padded_rows``: packed rows include padding between groups (unequal groups of an act-order shard).
    """
    rows = next((r for r in ROW_BUCKETS if r >= m), MAX_ROWS)
    gather = scheme.act_order and not padded_rows and rows <= GATHER_ROWS and k % 64 == 0 and k <= GATHER_K
    columns = -(-n // 64)
    tiles = columns * -(-m // rows)
    if tiles > props.sm_count:
        wanted, reason = _many_tiles(rows, columns, tiles, k, scheme, props, gather)
    elif rows <= 4 and tiles * 2 > props.sm_count:
        wanted, reason = _a_tile_per_sm(rows, tiles, k, scheme, gather)
    else:
        wanted, reason = _few_tiles(rows, tiles, k, scheme, props, gather)
    config = _first_that_fits([replace(c, gather=gather) for c in wanted], scheme, k, props)
    return config, f"{rows} rows per tile; {tiles} tiles of 64 columns, {reason}"


def _many_tiles(
    rows: int, columns: int, tiles: int, k: int, scheme: Scheme, props: DeviceProps, gather: bool
) -> tuple[list[RingConfig], str]:
    """More tiles than SMs: K is not split."""
    unit, units = _unit(k, scheme)
    if rows > 8:
        # Two columns of 16 rows need more registers than there are.
        waves = -(-tiles // props.sm_count)
        one = RingConfig(rows, 1, 1, min(12, _units(k, 1)), 2, ctas=-(-columns // waves))
        return [one, replace(one, warps=min(8, _units(k, 1)))], f"{waves} for each of {one.ctas} CTAs"
    if rows == 8:
        # 128 columns share one copy of the tokens, which are as many bytes as the weights by now: 10 to 15 %.
        waves = -(-tiles // (2 * props.sm_count))
        wide = RingConfig(rows, 2, unit, min(8, units), 2, ctas=-(-columns // (2 * waves)))
        return [wide, replace(wide, unit=1, warps=min(8, _units(k, 1)))], "in pairs that share their tokens"
    waves = -(-tiles // props.sm_count)
    if rows == 1 and tiles >= 0.95 * waves * props.sm_count:
        # The tiles go round almost evenly: one CTA of 16 warps per SM takes several in turn, its ring full
        # all the time (54.0 us on 8192 x 57344, 896 tiles, against 54.6 to 56.6 for one tile per CTA).
        even = RingConfig(rows, 1, unit, min(16, units), 2, ctas=-(-columns // waves))
        return [even, replace(even, warps=min(8, units))], f"{waves} for each of {even.ctas} CTAs"
    # Two CTAs of 8 warps on an SM, each taking the same number of tiles.
    waves = -(-tiles // (2 * props.sm_count))
    even = RingConfig(rows, 1, unit, min(8, units), 3, ctas=-(-columns // waves), min_ctas=2)
    if rows > 1 or gather:
        return [even, replace(even, slots=2)], f"{waves} for each of {even.ctas} CTAs"
    # One row: four small CTAs on an SM, one tile each (14.3 us on 4096 x 28672, against 15.0 as above).
    return [RingConfig(rows, 1, unit, min(4, units), 3, min_ctas=4), even], "four on an SM"


def _a_tile_per_sm(
    rows: int, tiles: int, k: int, scheme: Scheme, gather: bool
) -> tuple[list[RingConfig], str]:
    """Between half as many tiles as SMs and as many: two CTAs share an SM."""
    # Two slots rather than three: what a launch leaves free is where the next one prefetches (9.6 us against
    # 10.9 on 8192 x 8192).
    unit, units = _unit(k, scheme)
    split = min(2, units)
    if 1024 <= k <= SHORT_K and scheme.bits == 4 and not gather:
        # 5.0, 5.3 and 5.6 us at 1, 2 and 4 rows on 4096 x 6144, units of 4 KB in two slots 5.0, 5.7 and 5.8;
        # and 1.5 less behind 14336 x 4096 in a chain.
        return [RingConfig(rows, 1, 1, 8, 3, 2, min_ctas=2)], "K split over 2 CTAs, two on an SM"
    halves = RingConfig(rows, 1, unit, max(1, min(8, units // split)), 2, split, min_ctas=2)
    whole = RingConfig(rows, 1, unit, min(16, units), 2)
    wanted = [halves, whole]
    warps = -(-_units(k, 2 * unit) // split)
    if gather and _coarse(scheme) and split == 2 and k <= SHORT_K and 4 <= warps <= 8:
        # All of K in flight in units of 8 KB: 5.4 us on 4096 x 6144 and, with two rows, 6.0; as above 5.5 and
        # 6.4.
        wanted.insert(0, replace(halves, unit=2 * unit, warps=warps, slots=1))
    return wanted, f"K split over {split} CTAs, two on an SM"


def _few_tiles(
    rows: int, tiles: int, k: int, scheme: Scheme, props: DeviceProps, gather: bool
) -> tuple[list[RingConfig], str]:
    """K is split over a cluster until every SM has one CTA.

    More is slower, since clusters of 4 and 8 do not pack two to an SM (4096 x 4096, one row: 5.1 us split in
    4, 4.2 split in 2).
    """
    unit, units = _unit(k, scheme)
    split = max(1, min(MAX_SPLIT, props.sm_count // tiles, units))
    reason = f"K split over {split} CTAs to fill {props.sm_count} SMs"
    if rows >= 8:
        # Shared memory is full of tokens: more warps with units of one block are 2 to 5 % faster than 8 with
        # two.
        if tiles * 2 > props.sm_count and k >= 8192:
            # Pairs of columns halve the traffic of tokens: 30.1 us on 28672 x 8192 with 8 rows, 31.3 without.
            pairs = RingConfig(rows, 2, 1, 8, 2, 2)
            return [pairs], "in pairs that share their tokens, K split over 2 CTAs"
        if tiles * 2 > props.sm_count:
            return [RingConfig(rows, 1, 1, min(16, _units(k, 1)), 2)], "one on an SM"
        warps = max(1, min(12, _units(k, 1) // split))
        return [RingConfig(rows, 1, 1, warps, 2, split)], reason
    if gather:
        # x takes room in shared memory: 9.7 us on 14336 x 4096 with 12 warps, 10.1 with 16; two rows 10.4
        # with 8.
        most = 12 if rows == 1 else 8
    else:
        # Where a warp has many units, fewer warps: 8.7 and 8.9 at 1 and 2 rows on 14336 x 4096, 16 warps 8.9
        # and 9.4.
        most = 12 if rows <= 2 and scheme.bits == 4 and units > 32 * split else 16
    wanted = [RingConfig(rows, 1, unit, max(1, min(most, units // split)), 2, split)]
    if 2 * split <= MAX_SPLIT and k <= SHORT_K and units >= 8 * split:
        wanted[:0] = _short_k(rows, unit, units, 2 * split, scheme, gather)
    return wanted, reason


def _short_k(rows: int, unit: int, units: int, split: int, scheme: Scheme, gather: bool) -> list[RingConfig]:
    """All of a short K in flight at once, by twice the CTAs."""
    if not _coarse(scheme):
        return []  # with groups of 32 the code becomes too long, or spills
    if not gather:
        return [RingConfig(1, 1, 2 * unit, 4, 2, split, min_ctas=3)] if rows == 1 else []  # 3.8 us
    if units > 8 * split:
        return []
    if rows == 1:
        return [RingConfig(1, 1, unit, -(-units // split), 1, split, min_ctas=3)]  # 4.5 us on 4096 x 4096
    return [RingConfig(rows, 1, 2 * unit, 4, 1, split, min_ctas=3)]  # 5.0 us; 5.3 with a gathering launch


def _coarse(scheme: Scheme) -> bool:
    return scheme.group_size == CHANNELWISE or scheme.group_size >= 64


def _units(k: int, unit: int) -> int:
    return -(-k // (64 * unit))


def _unit(k: int, scheme: Scheme) -> tuple[int, int]:
    """Blocks of a 4 KB unit (2 KB costs 10 to 60 % in every shape) and the number of such units in K."""
    unit = 4096 // (scheme.bits * 512)
    return unit, _units(k, unit)


def _first_that_fits(wanted: Sequence[RingConfig], scheme: Scheme, k: int, props: DeviceProps) -> RingConfig:
    """The first configuration that shared memory holds as it is; else the last, with less of everything."""

    def fits(config: RingConfig) -> bool:
        limit = min(props.smem_per_cta, props.smem_per_sm // config.min_ctas - props.smem_reserved)
        return config.shared_bytes(scheme, k) <= limit

    for config in wanted:
        if fits(config):
            break
    while not fits(config) and config.slots > 2:
        config = replace(config, slots=config.slots - 1)
    while not fits(config) and config.min_ctas > 1:
        config = replace(config, min_ctas=config.min_ctas - 1)
    while not fits(config) and config.warps > 1:
        config = replace(config, warps=config.warps - 1)
    config.check(scheme, k, props)
    return config
