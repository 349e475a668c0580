"""The kernel: shared memory, start-up, and which warp plays which role. ``build`` is the entry of the
compiler."""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import Int32, Uint32
from cutlass.experimental import primitives as prims

from swordfish.prefill.collective.epilogue import store_output, store_partial
from swordfish.prefill.collective.loads import load_tokens, load_weights
from swordfish.prefill.collective.multiply import multiply
from swordfish.prefill.collective.operand import prove_store_layout
from swordfish.prefill.collective.operands import SWIZZLE_ATOM, element_of
from swordfish.prefill.collective.rings import Ring
from swordfish.prefill.collective.schedule import Schedule
from swordfish.prefill.collective.transform import transform
from swordfish.prefill.config import TMEM_COLUMNS, PrefillConfig

SMEM = cutlass.AddressSpace.smem
TMA_ALIGNMENT = 128

Map = cutlass.GridConstant[cuda.TensorMap]


@dataclass(frozen=True)
class Maps:
    """The tensor maps, see ``swordfish/prefill/launch.py``."""

    words: Any
    scales: Any
    zeros: Any
    x: Any
    y: Any


@dataclass(frozen=True)
class Shared:
    """Shared memory of a CTA: the stages of each ring and their barriers.

    ================ ============ ==================== ============================ ========================
    ring             stages       carries              filled by                    emptied by
    ================ ============ ==================== ============================ ========================
    ``weights``      input        words, scales, zeros TMA of this CTA              4 warps of a group
    ``tokens``       input        x                    paired TMA of both CTAs      MMA commit
    ``operand``      operand      dequantised weights  4 Transform warps per CTA    MMA commit
    ``accumulators`` 1 or 2       TMEM columns         MMA commit                   4 epilogue warps per CTA
    ================ ============ ==================== ============================ ========================
    """

    x: Any
    w: Any
    y: Any
    words: Any
    rows: Any
    tmem: Any
    weights: Ring
    tokens: Ring
    operand: Ring
    accumulators: Ring

    @classmethod
    def allocate(cls, c):
        """The arrays of a configuration; what it does not need is ``None``."""
        inputs = c.input_stages
        dtype = element_of(c)

        def array(of, size, alignment):
            return cutlass.Array(of, size, space=SMEM, alignment=alignment) if size else None

        x = array(dtype, inputs * c.token_step_bytes, SWIZZLE_ATOM)
        w = array(dtype, c.operand_stages * c.operand_stage_bytes // 2, SWIZZLE_ATOM)
        y = array(dtype, c.output_bytes // 2, SWIZZLE_ATOM)
        words = array(Uint32, inputs * c.weight_stage_bytes // 4, TMA_ALIGNMENT)
        rows = array(cutlass.Uint16, inputs * c.rows_stage_bytes // 2, TMA_ALIGNMENT)
        barriers = array(cutlass.Int64, c.barriers, 8)
        warps = 4 * c.ctas
        return cls(
            x,
            w,
            y,
            words,
            rows,
            array(Int32, 1, 4),
            Ring.at(barriers, 0, inputs, 1, 4),
            Ring.at(barriers, inputs, inputs, 1, 1),
            Ring.at(barriers, 2 * inputs, c.operand_stages, warps, 1),
            Ring.at(barriers, 2 * inputs + c.operand_stages, c.accumulators, 1, warps),
        )


def cta_group(c):
    """Whether tcgen05 instructions are those of a pair."""
    return prims.CTAGroup.CTA_2 if c.ctas == 2 else prims.CTAGroup.CTA_1


@cute.jit
def start(c: cutlass.Constexpr, shared: cutlass.Constexpr, warp: Int32):
    """Barriers and TMEM, seen by every thread of the pair. Returns the TMEM address."""
    group = cta_group(c)
    if warp == 0:
        if prims.elect_sync():
            shared.weights.initialise()
            shared.tokens.initialise()
            shared.operand.initialise()
            shared.accumulators.initialise()
        prims.fence_mbarrier_init()
        prims.tcgen05_alloc(shared.tmem, TMEM_COLUMNS, group=group)
        prims.tcgen05_relinquish_alloc_permit(group=group)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    if cutlass.const_expr(c.ctas == 2):
        prims.barrier_cluster_arrive_relaxed()  # fence_mbarrier_init above is the release
        prims.barrier_cluster_wait()
    prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
    return cute.arch.make_warp_uniform(shared.tmem.load())


@cute.jit
def fill_accumulators(
    c: cutlass.Constexpr,
    shared: cutlass.Constexpr,
    maps: cutlass.Constexpr,
    schedule: cutlass.Constexpr,
    tmem: Int32,
    warp: Int32,
    lane: Int32,
):
    """Every role but the epilogue."""
    if warp == c.weight_warp:  # noqa: SIM102 (only this warp may elect)
        if prims.elect_sync():
            load_weights(c, shared, maps, schedule)
    if warp == c.token_warp:  # noqa: SIM102 (only this warp may elect)
        if prims.elect_sync():
            load_tokens(c, shared, maps, schedule)
    if (warp == c.mma_warp) & (schedule.rank == 0):  # noqa: SIM102
        if prims.elect_sync():
            multiply(c, shared, schedule, tmem)
    if (warp >= c.first_transform_warp) & (warp < c.weight_warp):
        transform(c, shared, schedule, tmem, warp, lane)


@cute.jit
def finish(c: cutlass.Constexpr, warp: Int32, tmem: Int32):
    """Both CTAs are done with each other's barriers and with TMEM before either leaves."""
    group = cta_group(c)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    if cutlass.const_expr(c.ctas == 2):
        prims.barrier_cluster_arrive()
        prims.barrier_cluster_wait()
    if warp == 0:
        prims.tcgen05_dealloc(prims.make_tmem_ptr(tmem, Int32), TMEM_COLUMNS, group=group)


def parameter_maps(memory, count):
    """For a host function: the launcher passes maps of its own, these only give the parameters their type."""
    return [
        cuda.create_tensor_map_tiled(
            global_address=memory.toint(),
            dtype=cutlass.Uint8,
            global_dims=[256, 8],
            global_strides=[16],
            box_dims=[16, 1],
        )
        for _ in range(count)
    ]


def pointer(of):
    """The argument of a host function for memory of this type."""
    return cute.runtime.make_ptr(of, 16, cute.AddressSpace.gmem, assumed_align=16)


def build(values: dict[str, Any], arch: str) -> tuple[Any, list[Any]]:
    """The jitted host function of a configuration and its arguments, for ``cute.compile``."""
    c = PrefillConfig.from_flat(values)

    @cute.kernel
    def prefill(
        words: Map,
        scales: Map,
        zeros: Map,
        x: Map,
        y: Map,
        factors: cute.Pointer,
        bias: cute.Pointer,
        workspace: cute.Pointer,
        n: Int32,
        row_tiles: Int32,
        token_tiles: Int32,
        band: Int32,
        k_stages: Int32,
        slice_stages: Int32,
        slices: Int32,
        group_stages: Int32,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.thread_idx()[0] & 31
        block, grid = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        maps = Maps(words, scales, zeros, x, y)
        shared = Shared.allocate(c)
        tiles = row_tiles * token_tiles
        items = tiles * slices if cutlass.const_expr(c.partial) else tiles
        pair, pairs = (block >> 1, grid >> 1) if cutlass.const_expr(c.ctas == 2) else (block, grid)
        shape = (row_tiles, token_tiles, band, k_stages, slice_stages, group_stages, tiles, items)
        schedule = Schedule(c, *shape, block & (c.ctas - 1), pair, pairs)
        if warp == 0:  # the next kernel may fill SMs that this one leaves
            prims.griddepcontrol(prims.GridDepAction.LAUNCH_DEPENDENTS)
        tmem = start(c, shared, warp)

        fill_accumulators(c, shared, maps, schedule, tmem, warp, lane)
        if warp < c.first_transform_warp:
            if cutlass.const_expr(c.partial):
                store_partial(c, shared, schedule, workspace, tmem, warp, lane)
            else:
                store_output(c, shared, maps, schedule, factors, bias, n, tmem, warp, lane)

        finish(c, warp, tmem)

    @cute.jit
    def host(memory: cute.Pointer, bias: cute.Pointer, workspace: cute.Pointer, sizes: Int32):
        prove_store_layout(c)
        maps = parameter_maps(memory, 5)
        prefill(*maps, bias, bias, workspace, *[sizes] * 8).launch(
            grid=(c.ctas, 1, 1), block=(c.threads, 1, 1), cluster=(c.ctas, 1, 1), min_blocks_per_mp=1
        )

    return host, [pointer(cutlass.Uint8), pointer(element_of(c)), pointer(cutlass.Float32), Int32(1)]
