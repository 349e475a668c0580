"""The two loading warps: packed weights with their scales, and tokens. One lane of each runs.

Bulk copies are primitives: a CuTe copy atom carries a tensor map that the DSL's own host code makes, and
these kernels are launched without it, with maps of ``swordfish/prefill/launch.py``.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.rings import advance, wait
from swordfish.prefill.config import STAGE_K, STEP_K


@cute.jit
def load_weights(
    c: cutlass.Constexpr, shared: cutlass.Constexpr, maps: cutlass.Constexpr, schedule: cutlass.Constexpr
):
    """Packed blocks, scales and zero points of this CTA's 128 weight columns, a 128-deep stage at a time."""
    ring = shared.weights
    stage, parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        row, _, weight = schedule.tile(item)
        _, start, count = schedule.slice(item)
        for kt in cutlass.range(start, start + count, unroll=1):
            wait(ring.empty.subview(stage), parity ^ 1)
            full = ring.full.subview(stage)
            prims.mbarrier_arrive_expect_tx(full, c.weight_stage_bytes + c.rows_stage_bytes)
            prims.cp_async_bulk_tensor_shared_cta_global(
                shared.words.subview(stage * (c.weight_stage_bytes // 4)),
                maps.words.get_ptr(),
                (0, 0, kt * 2, row >> 6, *weight),
                full,
            )
            # The row of a group that spans several stages is read at each of them: 256 bytes that stay in L2.
            group = kt * c.groups_per_stage
            if cutlass.const_expr(c.groups_per_stage == 1):
                group = kt // schedule.group_stages
            for i, kind in enumerate(c.rows):
                target = shared.rows.subview((stage * len(c.rows) + i) * (c.row_stage_bytes // 2))
                source = getattr(maps, kind).get_ptr()
                prims.cp_async_bulk_tensor_shared_cta_global(target, source, (row, group, *weight), full)
            stage, parity = advance(stage, parity, ring.stages)


@cute.jit
def load_tokens(
    c: cutlass.Constexpr, shared: cutlass.Constexpr, maps: cutlass.Constexpr, schedule: cutlass.Constexpr
):
    """This CTA's half of the tokens, under the 128-byte swizzle. Both halves arrive on the leader's barrier.

    A pair needs the paired load: a load of one CTA signals its own barrier, and the leader waits for ever
    for the bytes of its peer, or multiplies by what has not yet arrived.
    """
    ring = shared.tokens
    prims.griddepcontrol(prims.GridDepAction.WAIT)  # the tokens may come from the previous kernel
    stage, parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        _, token, _ = schedule.tile(item)
        _, start, count = schedule.slice(item)
        token += schedule.rank * c.cta_tokens
        for kt in cutlass.range(start, start + count, unroll=1):
            wait(ring.empty.subview(stage), parity ^ 1)
            full = ring.full.subview(stage)
            if schedule.rank == 0:
                prims.mbarrier_arrive_expect_tx(full, c.ctas * 2 * c.token_step_bytes)
            for step in cutlass.range_constexpr(2):
                target = shared.x.subview((stage * 2 + step) * (c.token_step_bytes // 2))
                at = (kt * STAGE_K + step * STEP_K, token)
                if cutlass.const_expr(c.ctas == 2):
                    prims.cp_async_bulk_tensor_shared_cluster_global(
                        target, maps.x.get_ptr(), at, full, [], group=prims.CTAGroup.CTA_2
                    )
                else:
                    prims.cp_async_bulk_tensor_shared_cta_global(target, maps.x.get_ptr(), at, full)
            stage, parity = advance(stage, parity, ring.stages)
