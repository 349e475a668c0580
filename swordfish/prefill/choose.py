"""Which prefill configuration serves a call: a pure function of shape, scheme and device properties.

The choice rests on the model of ``model.py``; it has not been measured on hardware.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from swordfish.errors import ArgumentError
from swordfish.prefill.config import GROUPS_SERVED, PrefillConfig, serves_groups
from swordfish.prefill.launch import Grid
from swordfish.prefill.model import MEMORY_BYTES_PER_CLOCK, step_cycles
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["PrefillChoice", "choose_prefill", "even_cycles", "unsupported"]

TOKENS = (32, 64, 96, 128, 192, 224, 256)
_SLICES = (2, 3, 4, 6, 8)
ALIKE = 1.04
TILE_CYCLES = 1200
"""Filling and draining the pipelines of a tile whose epilogue does not overlap, or of the last one."""
_REDUCTION_CYCLES = 2500
"""A second launch that waits on the first one's SMs, on top of its traffic."""


@dataclass(frozen=True)
class PrefillChoice:
    """A configuration, why it was chosen, and what the model says.

    ``cycles`` of an SM, and ``fetched_bytes`` that all SMs together read from L2.
    """

    config: PrefillConfig
    reason: str
    cycles: float
    fetched_bytes: float


def unsupported(n: int, k: int, scheme: Scheme, props: DeviceProps) -> str | None:
    """Why no prefill kernel serves a ``[k, n]`` weight on a device; ``None`` if one does."""
    if not serves_groups(scheme.group_size):
        return f"group size {scheme.group_size} is not {GROUPS_SERVED}"
    if n % 8:
        return f"N={n} is not a multiple of 8, so rows of y are not whole 16 bytes"
    pair, single = (PrefillConfig(scheme, TOKENS[0], ctas).refused_by(props) for ctas in (2, 1))
    return pair if single is not None else None


@functools.lru_cache(maxsize=1024)
def choose_prefill(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps, *, split: bool = True
) -> PrefillChoice:
    """The configuration for ``m`` rows of a ``[k, n]`` weight (``k`` packed rows).

    Of those within 4 % of the fewest modelled cycles, which is less than the model is worth, the one that
    fetches least from L2: large tiles where they fill the machine. ``split=False`` leaves K whole.

    Raises:
        ArgumentError: ``m`` below 1, or a weight that :func:`unsupported` refuses.
    """
    if m < 1:
        raise ArgumentError("m", m, "1 or more")
    reason = unsupported(n, k, scheme, props)
    if reason is not None:
        raise ArgumentError("shape", (k, n), "a shape that the prefill kernel serves", reason)
    plain = replace(scheme, act_order=False)
    candidates = [c for c in _candidates(m, n, k, plain, props) if split or not c.config.partial]
    limit = ALIKE * min(choice.cycles for choice in candidates)
    return min((c for c in candidates if c.cycles <= limit), key=lambda choice: choice.fetched_bytes)


def _candidates(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> Iterator[PrefillChoice]:
    for config in _tiles(scheme):
        if config.refused_by(props) is not None:
            continue
        yield _evaluate(config, m, n, k, props)
        grid = Grid.of(config, m, n, k, props)
        underfills = grid.row_tiles * grid.token_tiles * config.ctas < props.sm_count
        for slices in _SLICES:
            cut = replace(config, slices=slices)
            if underfills and 2 * slices <= grid.k_stages and cut.refused_by(props) is None:
                yield _evaluate(cut, m, n, k, props)


def _tiles(scheme: Scheme) -> Iterator[PrefillConfig]:
    for ctas, tokens in itertools.product((2, 1), TOKENS):
        with contextlib.suppress(ArgumentError):  # a tile too large for shared memory
            yield PrefillConfig(scheme, tokens, ctas)


def even_cycles(m: int, n: int, k: int, scheme: Scheme, props: DeviceProps) -> float:
    """What the model gives if the stages of all tiles were divided evenly over all SMs at no cost, for the
    best tile of CTA pairs: no Stream-K schedule is faster."""
    cycles = []
    for tokens in TOKENS:
        config = PrefillConfig(scheme, tokens)
        grid, pairs = Grid.of(config, m, n, k, props), props.sm_count // config.ctas
        stages = -(-grid.row_tiles * grid.token_tiles * grid.k_stages // pairs)
        busy = 2 * stages * step_cycles(config).bound()[1] + TILE_CYCLES
        cycles.append(max(busy, _memory_cycles(grid, m, n, k, config, props)))
    return min(cycles)


def _memory_cycles(grid: Grid, m: int, n: int, k: int, config: PrefillConfig, props: DeviceProps) -> float:
    """Cycles to move weights, once per band, x and y at the device's bandwidth."""
    bands = -(-grid.token_tiles // grid.band)
    total = bands * n * k * config.scheme.bits / 8 + 2 * m * k + 2 * m * n
    return total / (MEMORY_BYTES_PER_CLOCK[props.arch] * props.sm_count)


def _evaluate(config: PrefillConfig, m: int, n: int, k: int, props: DeviceProps) -> PrefillChoice:
    """Waves of tiles at the pace of the busiest resource, but no faster than memory."""
    grid = Grid.of(config, m, n, k, props)
    items = grid.row_tiles * grid.token_tiles * grid.slices
    step = step_cycles(config)
    bound, pace = step.bound()
    waves = -(-items // grid.pairs)
    drain = 0 if config.accumulators == 2 else 2 * config.tokens
    busy = waves * (2 * grid.slice_stages * pace + drain) + TILE_CYCLES
    # An SM cannot draw more than twice its share of the bandwidth.
    share = min(1.0, 2 * grid.pairs * config.ctas / props.sm_count)
    memory = _memory_cycles(grid, m, n, k, config, props) / share
    cycles = max(busy, memory)
    if config.partial:
        traffic = 8.0 * grid.slices * m * n
        cycles += _REDUCTION_CYCLES + traffic / (MEMORY_BYTES_PER_CLOCK[props.arch] * props.sm_count)
    cut = f", K in {grid.slices} slices" if config.partial else ""
    limit = "memory" if memory > busy else bound
    tile = f"{128 * config.ctas} x {config.tokens}"
    reason = f"{items} tiles of {tile}{cut} in {waves} waves of {grid.pairs}; {limit} bounds them"
    fetched = items * 2 * grid.slice_stages * config.ctas * (step.weight_bytes + step.token_bytes)
    return PrefillChoice(config, reason, cycles, fetched)
