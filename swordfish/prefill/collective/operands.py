"""The MMA's operands and accumulators as CuTe layouts, and their fragments of one tiled atom."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import tcgen05

from swordfish.prefill.config import STEP_K, TILE_ROWS

INSTRUCTION_K = 16
SWIZZLE_ATOM = 1024


def element_of(c):
    """The type of operands and results."""
    return cutlass.BFloat16 if c.scheme.dtype == "bfloat16" else cutlass.Float16


def tiled_mma(c):
    """One instruction of ``128 * ctas`` weight columns by ``tokens``, both operands K-major, fp32 sums."""
    group = tcgen05.CtaGroup.TWO if c.ctas == 2 else tcgen05.CtaGroup.ONE
    source = tcgen05.OperandSource.TMEM if c.home == "tmem" else tcgen05.OperandSource.SMEM
    k_major = tcgen05.OperandMajorMode.K
    shape = (TILE_ROWS * c.ctas, c.tokens, INSTRUCTION_K)
    return cute.make_tiled_mma(
        tcgen05.MmaF16BF16Op(element_of(c), Float32, shape, group, source, k_major, k_major)
    )


def staged_layout(c, shape, stages):
    """``stages`` 64-deep stages of a K-major operand in shared memory under the 128-byte swizzle."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, element_of(c))
    return tcgen05.tile_to_mma_shape(atom, cute.append(shape, stages), order=(1, 2, 3))


def operand_layout(c, mma):
    """Operand A of this CTA in its home, in 16-bit elements: modes ((row, k), 1, k, stage)."""
    shape = mma.partition_shape_A((TILE_ROWS * c.ctas, STEP_K))
    if c.home == "shared":
        return staged_layout(c, shape, c.operand_stages)
    return mma.make_fragment_A(cute.append(shape, c.operand_stages)).layout


def token_layout(c, mma):
    """Operand B of this CTA: modes ((token, k), 1, k, 64-deep step of any input stage)."""
    return staged_layout(c, mma.partition_shape_B((c.tokens, STEP_K)), 2 * c.input_stages)


def accumulator_layout(c, mma):
    """Accumulators of this CTA in TMEM: modes ((row, token), 1, 1, stage)."""
    shape = mma.partition_shape_C((TILE_ROWS * c.ctas, c.tokens))
    return mma.make_fragment_C(cute.append(shape, c.accumulators)).layout


def by_row(layout):
    """The layout of an operand in rows and columns: modes (row, k, stage)."""
    (rows, columns), _, count, stages = layout.shape
    (row, column), _, block, stage = layout.stride
    flat = cute.make_layout((rows, (columns, count), stages), stride=(row, (column, block), stage))
    return cute.coalesce(flat, target_profile=(1, 1, 1))


def in_shared(c, array, layout):
    """The tensor of an operand in shared memory."""
    address = array.data_ptr().toint()
    pointer = cute.make_ptr(element_of(c), address, cute.AddressSpace.smem, assumed_align=SWIZZLE_ATOM)
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer)


def in_tmem(dtype, address, layout):
    """The tensor of an operand or of accumulators in TMEM."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.tmem, assumed_align=16)
    return cute.make_tensor(pointer, layout)


def fragments(c, mma, shared, tmem):
    """Operand A, operand B and accumulators of the MMA, their last modes stages."""
    layout = operand_layout(c, mma)
    if c.home == "shared":
        w = mma.make_fragment_A(in_shared(c, shared.w, layout))
    else:
        w = in_tmem(element_of(c), tmem + c.operand_column, layout)
    x = mma.make_fragment_B(in_shared(c, shared.x, token_layout(c, mma)))
    return w, x, in_tmem(Float32, tmem, accumulator_layout(c, mma))
