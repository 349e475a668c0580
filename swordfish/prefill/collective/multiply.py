"""The MMA warp of the pair's leader: every product of the tile."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.operands import fragments, tiled_mma
from swordfish.prefill.collective.rings import advance, commit, wait


@cute.jit
def multiply(c: cutlass.Constexpr, shared: cutlass.Constexpr, schedule: cutlass.Constexpr, tmem: Int32):
    """``accumulator[rows of W, tokens] += operand @ x`` for each step of each tile.

    The whole warp walks through the stages; ``cute.gemm`` and ``commit`` elect the lane that issues.
    """
    mma = tiled_mma(c)
    w, x, d = fragments(c, mma, shared, tmem)
    x_stage, x_parity = Int32(0), Int32(0)
    w_stage, w_parity = Int32(0), Int32(0)
    d_stage, d_parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        _, _, count = schedule.slice(item)
        wait(shared.accumulators.empty.subview(d_stage), d_parity ^ 1)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        accumulator = d[None, None, None, d_stage]
        mma.set(tcgen05.Field.ACCUMULATE, False)
        for _kt in cutlass.range(count, unroll=1):
            wait(shared.tokens.full.subview(x_stage), x_parity)
            for step in cutlass.range_constexpr(2):
                wait(shared.operand.full.subview(w_stage), w_parity)
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                for k in cutlass.range_constexpr(cute.size(w, mode=[2])):
                    operands = w[None, None, k, w_stage], x[None, None, k, 2 * x_stage + step]
                    cute.gemm(mma, accumulator, *operands, accumulator)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                commit(shared.operand.empty.subview(w_stage), c.ctas)
                w_stage, w_parity = advance(w_stage, w_parity, c.operand_stages)
            commit(shared.tokens.empty.subview(x_stage), c.ctas)
            x_stage, x_parity = advance(x_stage, x_parity, c.input_stages)
        commit(shared.accumulators.full.subview(d_stage), c.ctas)
        d_stage, d_parity = advance(d_stage, d_parity, c.accumulators)
