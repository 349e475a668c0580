"""Configurations of the wide kernel (:mod:`swordfish.decode.wide`) that are worth timing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["candidates", "check"]

FEWEST_ROWS = 5
"""Up to 4 rows most of the smallest tile, 8 tokens, would be padding."""

ROWS_OF_A_TILE = 128
"""Beyond it the sums of a tile may not fit the registers."""

WARPGROUPS = (2, 6)
"""Warpgroups of an SM: fewer do not hide latency, more have no registers for their sums."""

FULL_WAVE = 0.55
"""Of the places for CTAs, those taken at least in the only wave of a split K."""

MOST_SLOTS = 8


def candidates(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps) -> list[WideConfig]:
    """Configurations that fit shared memory and registers and leave few SMs without work."""
    if m < FEWEST_ROWS:
        return []
    parts = (m, _ceil_div(m, 2)) if m > ROWS_OF_A_TILE else (m,)
    tokens_of = [_ceil_div(part, 8) * 8 for part in parts]
    found: dict[WideConfig, None] = {}
    wgmma = props.arch == "sm_90a"
    # Depths of a stage and stages of a span.
    depths = [(128, 1), (256, 1), *([(128, 4), (256, 2)] if wgmma else [])]
    cuts = itertools.product(tokens_of, (1, 2, 4), (1, 2, 3, 4, 5), (1, 2, 3, 4), (False, True), depths)
    for tokens, tiles, warpgroups, resident, in_place, (stage_k, span) in cuts:
        if not WARPGROUPS[0] <= warpgroups * resident <= WARPGROUPS[1] or 64 * tiles * warpgroups > 320:
            continue
        columns, stages = _ceil_div(n, 64 * tiles * warpgroups), _ceil_div(k, stage_k)
        output_tiles, places = columns * _ceil_div(m, tokens), props.sm_count * resident
        # Every tile for itself, split over clusters that fill most of one wave, or over all SMs evenly.
        splits = [s for s in range(2, min(8, stages) + 1) if FULL_WAVE * places <= output_tiles * s <= places]
        even = [(1, places)] if places <= columns * stages else []
        for split, stream in [(1, 0), *((s, 0) for s in splits), *even]:
            base = WideConfig(
                tokens,
                tiles,
                warpgroups,
                stage_k,
                MOST_SLOTS,
                split,
                resident,
                wgmma=wgmma,
                in_place=in_place,
                scale_rows=_scale_rows(scheme, stage_k),
                ctas=stream,
                span=span,
            )
            for config in _depths(base, scheme, props):
                try:
                    check(config, scheme, m, k, n, props, False)
                except ArgumentError:
                    continue
                found[config] = None
    return list(found)


def check(
    config: WideConfig, scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, padded_rows: bool
) -> None:
    """Raises ``ArgumentError`` for a configuration that does not fit the problem or the device."""
    config.check(scheme, k, props)
    config.launch_config(scheme, m, k, n)
    if config.wgmma and props.arch != "sm_90a":
        raise ArgumentError("WideConfig.wgmma", True, f"False on {props.arch}, which has no wgmma")


def _depths(base: WideConfig, scheme: Scheme, props: DeviceProps) -> Iterator[WideConfig]:
    """A cut with as many slots as fit and with fewer, which leaves room for the next launch to begin in; sums
    in a place of their own and in that of the slots."""
    if _registers(base) > base.registers:
        return
    room = min(props.smem_per_cta, props.smem_per_sm // base.min_ctas - props.smem_reserved)
    for overlay in (False, True) if base.split > 1 else (False,):
        depths = (replace(base, slots=slots, overlay=overlay) for slots in range(2, MOST_SLOTS + 1))
        fitting = [config for config in depths if config.shared_bytes(scheme) <= room]
        yield from (config for config in fitting if config.slots <= 4 or config is fitting[-1])


def _scale_rows(scheme: Scheme, stage_k: int) -> int:
    whole = scheme.group_size != CHANNELWISE and stage_k % scheme.group_size == 0
    return stage_k // scheme.group_size if whole else 1


def _registers(config: WideConfig) -> int:
    """A little less than what the compiler was seen to need: sums, fragments, words and addresses."""
    sets = 1 if config.in_place else 2
    return sets * config.tiles * config.tokens // 2 + 8 * config.tiles + 54


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
