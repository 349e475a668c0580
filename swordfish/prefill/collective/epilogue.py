"""The epilogue warps: accumulators to y, or to a workspace of partial sums."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.rings import LEADER, advance, arrive_leader, wait
from swordfish.prefill.config import EPILOGUE_BUFFERS, EPILOGUE_TOKENS, TILE_ROWS

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
    dtype = cutlass.BFloat16 if cutlass.const_expr(c.scheme.dtype == "bfloat16") else cutlass.Float16
    ring = shared.accumulators
    empty = prims.mapa(ring.empty.data_ptr(), LEADER)
    elected = prims.elect_sync()
    out = shared.y.subview(warp * (EPILOGUE_BUFFERS * BUFFER))
    # SWIZZLE_64B: 16-byte chunk `lane >> 3` of token row `lane & 7`, rows of 64 bytes.
    target = out.data_ptr() + (lane & 7) * WARP_ROWS + (((lane >> 3) ^ ((lane >> 1) & 3)) << 3)
    prims.griddepcontrol(prims.GridDepAction.WAIT)  # the previous kernel may still read y's memory
    stage, parity = Int32(0), Int32(0)
    buffer = Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        row, token = schedule.tile(item)
        row += warp * WARP_ROWS
        columns = [row + (lane >> 2) + 8 * r for r in range(4)]
        terms = [(factor_of(c, scales, at, n), load_or(bias, at, n, Float32(0))) for at in columns]
        wait(ring.full.subview(stage), parity)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        for part in cutlass.range_constexpr(c.tokens // EPILOGUE_TOKENS):
            column = tmem + (warp << 21) + stage * c.tokens + part * EPILOGUE_TOKENS
            halves = [
                prims.tcgen05_ld(
                    "16x256b", prims.make_tmem_ptr(column + (half << 20), Float32), num=EPILOGUE_TOKENS // 8
                )
                for half in range(2)
            ]
            prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
            if cutlass.const_expr(part == c.tokens // EPILOGUE_TOKENS - 1):
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                if elected:
                    arrive_leader(empty + stage)
            rounded = [
                finish(values, terms[2 * half : 2 * half + 2]).to(dtype).bitcast(Int32)
                for half, values in enumerate(halves)
            ]
            if elected:
                prims.cp_async_bulk_wait_group(
                    EPILOGUE_BUFFERS - 1, read=True
                )  # the other buffer may be in flight
            prims.bar_warp_sync(0xFFFFFFFF)
            for octet in cutlass.range_constexpr(EPILOGUE_TOKENS // 8):
                fragment = [rounded[half][2 * octet + b] for half in range(2) for b in range(2)]
                prims.stmatrix(target + (buffer + octet * 8 * WARP_ROWS), fragment, prims.MMALayout.COL)
            prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
            prims.bar_warp_sync(0xFFFFFFFF)
            if elected:
                at = (row, token + part * EPILOGUE_TOKENS)
                prims.cp_async_bulk_tensor_global_shared_cta(maps.y.get_ptr(), out.subview(buffer), at)
                prims.cp_async_bulk_commit_group()
            buffer ^= BUFFER
        stage, parity = advance(stage, parity, ring.stages)
    if elected:
        prims.cp_async_bulk_wait_group(0)


def finish(values, terms):
    """``value * factor + addend``; register ``4 i + 2 b + o`` is of row octet b and takes ``terms[b]``."""
    results = []
    for i in range(EPILOGUE_TOKENS // 2):
        factor, addend = terms[(i >> 1) % 2]
        results.append(values[i] * factor + addend)
    return cutlass.Vector.from_elements(tuple(results), Float32)


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
    columns = schedule.row_tiles * (TILE_ROWS * c.ctas)
    tokens = schedule.token_tiles * c.tokens
    prims.griddepcontrol(prims.GridDepAction.WAIT)
    stage, parity = Int32(0), Int32(0)
    for item in cutlass.range(schedule.first, schedule.items, schedule.step, unroll=1):
        row, token = schedule.tile(item)
        index, _, _ = schedule.slice(item)
        line = workspace + (Int64(index * tokens + token) * columns + (row + warp * WARP_ROWS + lane))
        wait(ring.full.subview(stage), parity)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        for part in cutlass.range_constexpr(c.tokens // EPILOGUE_TOKENS):
            column = tmem + (warp << 21) + stage * c.tokens + part * EPILOGUE_TOKENS
            values = prims.tcgen05_ld("32x32b", prims.make_tmem_ptr(column, Float32), num=EPILOGUE_TOKENS)
            prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
            if cutlass.const_expr(part == c.tokens // EPILOGUE_TOKENS - 1):
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                prims.bar_warp_sync(0xFFFFFFFF)
                if elected:
                    arrive_leader(empty + stage)
            for i in cutlass.range_constexpr(EPILOGUE_TOKENS):
                (line + Int64(part * EPILOGUE_TOKENS + i) * columns).store(values[i])
        stage, parity = advance(stage, parity, ring.stages)
