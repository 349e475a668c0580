"""When an expert layer takes the grouped kernel of the prefill collective, and with which tiles: a pure
function of shape, scheme and device properties.

Nothing here is measured: the threshold is the dense product's (``swordfish/paths.py``), the tiles are those
of least cycles by the collective's model (``swordfish/prefill/model.py``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from swordfish.errors import ArgumentError
from swordfish.experts.blocks import expected_blocks
from swordfish.experts.grouped import ExpertGrouped
from swordfish.paths import prefill_rows
from swordfish.prefill import unsupported
from swordfish.prefill.choose import ALIKE, TILE_CYCLES, TOKENS
from swordfish.prefill.config import STAGE_K, TILE_ROWS
from swordfish.prefill.model import MEMORY_BYTES_PER_CLOCK, step_cycles
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["GroupedChoice", "ProductShape", "choose_grouped", "grouped_rows", "grouped_unsupported"]

ProductShape: TypeAlias = "tuple[int, int, Scheme]"
"""Packed rows and columns of an expert's weight, and its scheme."""


@dataclass(frozen=True)
class GroupedChoice:
    """A configuration for each product, blocks of as many rows in all, and what the model says.

    ``blocks`` expected of an expert, ``cycles`` of an SM, ``fetched_bytes`` that all SMs together read from
    L2.
    """

    configs: tuple[ExpertGrouped, ...]
    blocks: float
    cycles: float
    fetched_bytes: float


def grouped_unsupported(products: Sequence[ProductShape], props: DeviceProps) -> str | None:
    """Why the grouped kernel does not serve these products on a device; ``None`` if it does."""
    reasons = (unsupported(n, k, scheme, props) for k, n, scheme in products)
    return next((reason for reason in reasons if reason is not None), None)


def grouped_rows(products: Sequence[ProductShape], experts: int, props: DeviceProps) -> int:
    """Fewest expected rows of an expert for the grouped kernel.

    That of prefill for a dense product of as many columns as all experts together, which run side by side.
    """
    return max(prefill_rows(experts * n, k, props)[0] for k, n, _ in products)


def choose_grouped(
    products: Sequence[ProductShape], experts: int, mean: float, props: DeviceProps
) -> GroupedChoice:
    """The tiles for all ``products`` of ``experts`` experts with ``mean`` expected rows each, which
    :func:`grouped_unsupported` allows: as for a dense product, of those within 4 % of the fewest cycles the
    one that fetches least."""
    found = []
    for tokens in TOKENS:
        blocks = expected_blocks(mean, tokens)
        best = [_best(_candidates(tokens, product, experts, blocks, props)) for product in products]
        if all(best):
            sums = (sum(getattr(c, name) for c in best if c) for name in ("cycles", "fetched_bytes"))
            configs = tuple(config for choice in best if choice for config in choice.configs)
            found.append(GroupedChoice(configs, blocks, *sums))
    chosen = _best(found)
    assert chosen is not None, "grouped_unsupported says that the smallest tile fits"
    return chosen


def _best(choices: Iterable[GroupedChoice]) -> GroupedChoice | None:
    made = list(choices)
    limit = ALIKE * min((c.cycles for c in made), default=0.0)
    return min((c for c in made if c.cycles <= limit), key=lambda c: c.fetched_bytes, default=None)


def _candidates(
    tokens: int, product: ProductShape, experts: int, blocks: float, props: DeviceProps
) -> Iterator[GroupedChoice]:
    """Tiles of ``tokens`` rows: rounds of tiles at the pace of the busiest resource, but no faster than
    memory delivers the weights once."""
    k, n, scheme = product
    for ctas in (2, 1):
        clusters = props.sm_count // ctas
        with contextlib.suppress(ArgumentError):  # a tile too large for shared memory, or no cluster
            config = ExpertGrouped(tokens, ctas, clusters)
            tile = config.tile(scheme)
            if tile.refused_by(props) is not None:
                continue
            step, steps = step_cycles(tile), 2 * -(-k // STAGE_K)
            tiles = experts * blocks * -(-n // (TILE_ROWS * ctas))
            drain = 0 if tile.accumulators == 2 else 2 * tokens
            busy = math.ceil(tiles / clusters) * (steps * step.bound()[1] + drain) + TILE_CYCLES
            weights = experts * n * k * scheme.bits / 8
            memory = weights / (MEMORY_BYTES_PER_CLOCK[props.arch] * props.sm_count)
            fetched = tiles * steps * ctas * (step.weight_bytes + step.token_bytes)
            yield GroupedChoice((config,), blocks, max(busy, memory), fetched)
