"""The MMA warp: one lane of the pair's leader issues every product of the tile.

Operands and accumulators are fragments of the tiled MMA. The instruction itself is a primitive: ``cute.gemm``
elects a lane and moves its descriptors anew for each instruction, 24 SASS instructions instead of 12, more
than the 64 cycles of a product of 128 tokens leave room for.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.operands import element_of, fragments, tiled_mma
from swordfish.prefill.collective.rings import advance, commit, wait


@cute.jit
def multiply(c: cutlass.Constexpr, shared: cutlass.Constexpr, schedule: cutlass.Constexpr, tmem: Int32):
    """``accumulator[rows of W, tokens] += operand @ x`` for each step of each tile."""
    mma = tiled_mma(c)
    w, x, d = fragments(c, mma, shared, tmem)
    x_stage, x_parity = Int32(0), Int32(0)
    w_stage, w_parity = Int32(0), Int32(0)
    d_stage, d_parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        _, _, count = schedule.slice(item)
        wait(shared.accumulators.empty.subview(d_stage), d_parity ^ 1)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        accumulate = Boolean(False)
        for _kt in cutlass.range(count, unroll=1):
            wait(shared.tokens.full.subview(x_stage), x_parity)
            for step in cutlass.range_constexpr(2):
                wait(shared.operand.full.subview(w_stage), w_parity)
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                for k in cutlass.range_constexpr(cute.size(w, mode=[2])):
                    operands = w[None, None, k, w_stage], x[None, None, k, 2 * x_stage + step]
                    issue(c, d[None, None, None, d_stage], *operands, accumulate)
                    accumulate = Boolean(True)
                commit(shared.operand.empty.subview(w_stage), c.ctas)
                w_stage, w_parity = advance(w_stage, w_parity, c.operand_stages)
            commit(shared.tokens.empty.subview(x_stage), c.ctas)
            x_stage, x_parity = advance(x_stage, x_parity, c.input_stages)
        commit(shared.accumulators.full.subview(d_stage), c.ctas)
        d_stage, d_parity = advance(d_stage, d_parity, c.accumulators)


def issue(c, d, w, x, accumulate):
    """One instruction on fragments: ``d = w @ x``, or ``d += w @ x``."""
    group = prims.CTAGroup.CTA_2 if c.ctas == 2 else prims.CTAGroup.CTA_1
    rows, tokens, _ = tiled_mma(c).shape_mnk
    dtype = element_of(c)
    instruction = prims.Tcgen05InstrDesc.build(
        c_dtype=d.element_type, a_dtype=dtype, b_dtype=dtype, m_dim=rows, n_dim=tokens
    )
    a = tmem_address(w) if c.home == "tmem" else tcgen05.smem_descriptor_to_int(w.iterator)
    b = tcgen05.smem_descriptor_to_int(x.iterator)
    prims.tcgen05_mma(prims.Tcgen05MMAKind.F16, group, tmem_address(d), a, b, instruction, accumulate)


def tmem_address(tensor):
    return prims.make_tmem_ptr(tensor.iterator.toint(), Int32)
