"""The grouped kernel: one product of a layer's experts. ``build`` is the entry of the compiler.

All roles but the epilogue are those of ``kernel.py``. Tiles come from a schedule in device memory instead of
M, and tensor maps have one more dimension: the expert.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from swordfish.prefill.collective.blocks import BlockSchedule, load_fresh
from swordfish.prefill.collective.kernel import (
    Map,
    Maps,
    Shared,
    fill_accumulators,
    finish,
    parameter_maps,
    pointer,
    start,
)
from swordfish.prefill.collective.operand import prove_store_layout
from swordfish.prefill.collective.operands import element_of
from swordfish.prefill.collective.rows import Rows, Tensors, store_rows
from swordfish.prefill.config import PrefillConfig


def build(values: dict[str, Any], arch: str) -> tuple[Any, list[Any]]:
    """The jitted host function of a configuration and its arguments, for ``cute.compile``."""
    c = PrefillConfig.from_flat(values)
    kind = Rows.from_flat(values)

    @cute.kernel
    def grouped(
        words: Map,
        scales: Map,
        zeros: Map,
        x: Map,
        factors: cute.Pointer,
        bias: cute.Pointer,
        table: cute.Pointer,
        order: cute.Pointer,
        router: cute.Pointer,
        out: cute.Pointer,
        n: Int32,
        row_tiles: Int32,
        k_stages: Int32,
        group_stages: Int32,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.thread_idx()[0] & 31
        block, grid = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        maps = Maps(words, scales, zeros, x, None)
        shared = Shared.allocate(c)
        pair, pairs = (block >> 1, grid >> 1) if cutlass.const_expr(c.ctas == 2) else (block, grid)
        items = load_fresh(table) * row_tiles
        shape = (row_tiles, k_stages, group_stages, items)
        schedule = BlockSchedule(c, table, *shape, block & (c.ctas - 1), pair, pairs)
        tmem = start(c, shared, warp)

        fill_accumulators(c, shared, maps, schedule, tmem, warp, lane)
        if warp < c.first_transform_warp:
            tensors = Tensors(factors, bias, order, router, out, n)
            store_rows(c, kind, shared, schedule, tensors, tmem, warp, lane)

        finish(c, warp, tmem)

    @cute.jit
    def host(
        memory: cute.Pointer,
        numbers: cute.Pointer,
        indices: cute.Pointer,
        weights: cute.Pointer,
        out: cute.Pointer,
        sizes: Int32,
    ):
        prove_store_layout(c)
        maps = parameter_maps(memory, 4)
        grouped(*maps, numbers, numbers, indices, indices, weights, out, *[sizes] * 4).launch(
            grid=(c.ctas, 1, 1), block=(c.threads, 1, 1), cluster=(c.ctas, 1, 1), min_blocks_per_mp=1
        )

    kinds = (cutlass.Uint8, element_of(c), Int32, cutlass.Float32, kind.element(c))
    return host, [*map(pointer, kinds), Int32(1)]
