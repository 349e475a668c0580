"""The epilogue warps: accumulators to y, or to a workspace of partial sums."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.operands import (
    accumulator_layout,
    by_row,
    element_of,
    in_shared,
    in_tmem,
    tiled_mma,
)
from swordfish.prefill.collective.rings import LEADER, advance, arrive_leader, wait
from swordfish.prefill.config import EPILOGUE_BUFFERS, EPILOGUE_TOKENS, EPILOGUE_WARPS, TILE_ROWS

WARP_ROWS = 32
BUFFER = WARP_ROWS * EPILOGUE_TOKENS


@cute.jit
def store_output(
    c: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    maps: cutlass.Constexpr,
    schedule: cutlass.Constexpr,
    scales: cute.Pointer,
    bias: cute.Pointer,
    n: Int32,
    tmem: Int32,
    warp: Int32,
    lane: Int32,
):
    """Each warp takes its 32 weight columns, 32 tokens at a time: scale, add the bias, round, transpose,
    store by TMA."""
    ring = shared.accumulators
    empty = prims.mapa(ring.empty.data_ptr(), LEADER)
    elected = prims.elect_sync()
    sums = accumulator_parts(c, tmem)
    load, store = output_copies(c, sums)
    thread = warp * WARP_ROWS + lane
    source = load.get_slice(thread).partition_S(sums)
    coordinates = load.get_slice(thread).partition_D(cute.make_identity_tensor((TILE_ROWS, EPILOGUE_TOKENS)))
    out = shared.y.subview(warp * (EPILOGUE_BUFFERS * BUFFER))
    target = store.get_slice(thread).partition_D(in_shared(c, shared.y, output_layout(c)))
    prims.griddepcontrol(prims.GridDepAction.WAIT)  # the previous kernel may still read y's memory
    stage, parity = Int32(0), Int32(0)
    buffer = Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        row, token, _ = schedule.tile(item)
        row += warp * WARP_ROWS
        columns = [row + (lane >> 2) + 8 * r for r in range(4)]
        terms = [(factor_of(c, scales, at, n), load_or(bias, at, n, Float32(0))) for at in columns]
        wait(ring.full.subview(stage), parity)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        for part in cutlass.range_constexpr(c.tokens // EPILOGUE_TOKENS):
            values = cute.make_rmem_tensor(coordinates.shape, Float32)
            cute.copy(load, source[None, None, None, part, stage], values)
            prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
            if cutlass.const_expr(part == c.tokens // EPILOGUE_TOKENS - 1):
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                if elected:
                    arrive_leader(empty + stage)
            rounded = cute.make_rmem_tensor(coordinates.shape, element_of(c))
            for i in cutlass.range_constexpr(EPILOGUE_TOKENS):
                factor, addend = terms[i // 16 * 2 + (i >> 1) % 2]  # 16-row half and octet of value i
                values[i] = values[i] * factor + addend
            rounded.store(values.load().to(element_of(c)))
            if elected:  # the other buffer may be in flight
                prims.cp_async_bulk_wait_group(EPILOGUE_BUFFERS - 1, read=True)
            prims.bar_warp_sync(0xFFFFFFFF)
            cute.copy(store, store.retile(rounded), target[None, None, None, buffer])
            prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
            prims.bar_warp_sync(0xFFFFFFFF)
            if elected:
                at = (row, token + part * EPILOGUE_TOKENS)
                prims.cp_async_bulk_tensor_global_shared_cta(
                    maps.y.get_ptr(), out.subview(buffer * BUFFER), at
                )
                prims.cp_async_bulk_commit_group()
            buffer ^= 1
        stage, parity = advance(stage, parity, ring.stages)
    if elected:
        prims.cp_async_bulk_wait_group(0)


def accumulator_parts(c, tmem, tokens=EPILOGUE_TOKENS):
    """The accumulators, ``tokens`` tokens at a time: modes (row, token, part, stage)."""
    rows = by_row(accumulator_layout(c, tiled_mma(c)))
    parts = cute.make_layout((tokens, c.tokens // tokens))
    whole = cute.make_layout(TILE_ROWS)
    layout = cute.composition(rows, (whole, parts, cute.make_layout(c.accumulators)))
    (row, (token, part), stage), strides = layout.shape, layout.stride
    flat = cute.make_layout((row, token, part, stage), stride=(strides[0], *strides[1], strides[2]))
    return in_tmem(Float32, tmem, flat)


def load_copy(sums, instruction):
    """A tiled copy of one part from TMEM to registers, 32 rows to a warp."""
    return tcgen05.make_tmem_copy(cute.make_copy_atom(instruction, Float32), sums[None, None, 0, 0])


def output_copies(c, sums):
    """One part to registers, in fragments of 8 rows by 8 tokens, and those, transposed, to shared memory."""
    load = load_copy(sums, tcgen05.Ld16x256bOp(tcgen05.Repetition(EPILOGUE_TOKENS // 8)))
    transpose = cute.nvgpu.warp.StMatrix8x8x16bOp(transpose=True, num_matrices=4)
    return load, cute.make_tiled_copy_D(cute.make_copy_atom(transpose, element_of(c)), load)


def output_layout(c):
    """The staging buffers, modes (column, token, buffer): rows of 32 columns under the 64-byte swizzle, the
    two buffers of a warp together."""
    columns = cute.make_layout((WARP_ROWS, EPILOGUE_WARPS), stride=(1, EPILOGUE_BUFFERS * BUFFER))
    shape = (columns.shape, EPILOGUE_TOKENS, EPILOGUE_BUFFERS)
    rows = cute.make_layout(shape, stride=(columns.stride, WARP_ROWS, BUFFER))
    return cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, rows)


def factor_of(c, scales, column, n):
    """What a column's sums are multiplied by: ``2**fold``, times the scale of a channelwise weight."""
    fold = Float32(2.0**c.fold)
    return fold * load_or(scales, column, n, Float32(0)) if c.scales_results else fold


@cute.jit
def load_or(row: cute.Pointer, column: Int32, n: Int32, otherwise: Float32):
    """``row[column]`` in fp32; ``otherwise`` beyond the last column or if there is no row."""
    value = otherwise
    if (column < n) & (row.toint() != 0):
        value = (row + column).load().to(Float32)
    return value


@cute.jit
def store_partial(
    c: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    schedule: cutlass.Constexpr,
    workspace: cute.Pointer,
    tmem: Int32,
    warp: Int32,
    lane: Int32,
):
    """fp32 sums of a slice of K to ``workspace[slice, token, column]``, padded to whole tiles; lane =
    weight column."""
    ring = shared.accumulators
    empty = prims.mapa(ring.empty.data_ptr(), LEADER)
    elected = prims.elect_sync()
    sums = accumulator_parts(c, tmem)
    load = load_copy(sums, tcgen05.Ld32x32bOp(tcgen05.Repetition(EPILOGUE_TOKENS)))
    source = load.get_slice(warp * WARP_ROWS + lane).partition_S(sums)
    columns = schedule.row_tiles * (TILE_ROWS * c.ctas)
    tokens = schedule.token_tiles * c.tokens
    prims.griddepcontrol(prims.GridDepAction.WAIT)
    stage, parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        row, token, _ = schedule.tile(item)
        index, _, _ = schedule.slice(item)
        line = workspace + (Int64(index * tokens + token) * columns + (row + warp * WARP_ROWS + lane))
        wait(ring.full.subview(stage), parity)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        for part in cutlass.range_constexpr(c.tokens // EPILOGUE_TOKENS):
            values = cute.make_rmem_tensor(((EPILOGUE_TOKENS, 1), 1, 1), Float32)
            cute.copy(load, source[None, None, None, part, stage], values)
            prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
            if cutlass.const_expr(part == c.tokens // EPILOGUE_TOKENS - 1):
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                prims.bar_warp_sync(0xFFFFFFFF)
                if elected:
                    arrive_leader(empty + stage)
            for i in cutlass.range_constexpr(EPILOGUE_TOKENS):
                (line + Int64(part * EPILOGUE_TOKENS + i) * columns).store(values[i])
        stage, parity = advance(stage, parity, ring.stages)
