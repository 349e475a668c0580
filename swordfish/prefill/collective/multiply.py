"""The MMA warp: one lane of the pair's leader issues every MMA."""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.rings import advance, commit, wait
from swordfish.prefill.config import STEP_K, TILE_ROWS

INSTRUCTION_K = 16
K_MAJOR_ATOM_BYTES = 1024
"""Eight rows of 128 bytes: the stride between swizzle atoms of a K-major operand."""


def k_major(array):
    """Descriptor of a K-major operand in shared memory under the 128-byte swizzle."""
    return prims.Tcgen05SmemDesc.build(
        array,
        leading_byte_offset=16,
        stride_byte_offset=K_MAJOR_ATOM_BYTES,
        layout=prims.Tcgen05SmemSwizzle.SWIZZLE_128B,
    )


@cute.jit
def multiply(c: cutlass.Constexpr, shared: cutlass.Constexpr, schedule: cutlass.Constexpr, tmem: Int32):
    """``accumulator[rows of W, tokens] += operand @ x`` for each step of each tile."""
    group = prims.CTAGroup.CTA_2 if cutlass.const_expr(c.ctas == 2) else prims.CTAGroup.CTA_1
    dtype = cutlass.BFloat16 if cutlass.const_expr(c.scheme.dtype == "bfloat16") else cutlass.Float16
    instruction = prims.Tcgen05InstrDesc.build(
        c_dtype=cutlass.Float32, a_dtype=dtype, b_dtype=dtype, n_dim=c.tokens, m_dim=TILE_ROWS * c.ctas
    )
    x = k_major(shared.x)
    w = k_major(shared.w) if cutlass.const_expr(c.home == "shared") else None
    x_stage, x_parity = Int32(0), Int32(0)
    w_stage, w_parity = Int32(0), Int32(0)
    d_stage, d_parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        _, _, count = schedule.slice(item)
        wait(shared.accumulators.empty.subview(d_stage), d_parity ^ 1)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        d = prims.make_tmem_ptr(tmem + d_stage * c.tokens, cutlass.Float32)
        accumulate = Boolean(False)
        for _kt in cutlass.range(count, unroll=1):
            wait(shared.tokens.full.subview(x_stage), x_parity)
            for step in cutlass.range_constexpr(2):
                wait(shared.operand.full.subview(w_stage), w_parity)
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                b = x.advance_start_address((x_stage * 2 + step) * c.token_step_bytes)
                for j in cutlass.range_constexpr(STEP_K // INSTRUCTION_K):
                    if cutlass.const_expr(c.home == "tmem"):
                        column = tmem + c.operand_column + w_stage * (STEP_K // 2) + j * (INSTRUCTION_K // 2)
                        a = prims.make_tmem_ptr(column, Int32)
                    else:
                        a = w.advance_start_address(w_stage * c.operand_stage_bytes + j * (INSTRUCTION_K * 2))
                    prims.tcgen05_mma(
                        prims.Tcgen05MMAKind.F16,
                        group,
                        d,
                        a,
                        b.advance_start_address(j * (INSTRUCTION_K * 2)),
                        instruction,
                        accumulate,
                    )
                    accumulate = Boolean(True)
                commit(shared.operand.empty.subview(w_stage), c.ctas)
                w_stage, w_parity = advance(w_stage, w_parity, c.operand_stages)
            commit(shared.tokens.empty.subview(x_stage), c.ctas)
            x_stage, x_parity = advance(x_stage, x_parity, c.input_stages)
        commit(shared.accumulators.full.subview(d_stage), c.ctas)
        d_stage, d_parity = advance(d_stage, d_parity, c.accumulators)
