"""CuTe DSL test kernels: a 32 x 64 tile by TMA, with the tensor map in the hardware form and in the
driver's form.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental import primitives as prims

ROWS, COLS = 32, 64  # fp16: a row is 128 bytes
SMEM = cutlass.AddressSpace.smem


@cute.jit
def wait(bar, parity):
    while not prims.mbarrier_try_wait_parity(bar, parity):
        pass


@cute.kernel
def atom_kernel(atom: cute.CopyAtom, src: cute.Tensor, out: cute.Tensor, layout: cute.ComposedLayout):
    """One warp: the tile at block_idx through a TMA atom, then each lane copies one row out of the
    swizzled tile.
    """
    smem = cutlass.utils.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float16, layout.outer, byte_alignment=1024, swizzle=layout.inner)
    bar = smem.allocate_array(cutlass.Int64, 1)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(bar, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_warp()
    bx, by, _ = cute.arch.block_idx()
    g_tile = cute.local_tile(src, (ROWS, COLS), (bx, by))
    s_part, g_part = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(g_tile, 0, 2)
    )
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(bar, ROWS * COLS * 2)
    cute.copy(atom, g_part, s_part, tma_bar_ptr=bar)
    cute.arch.mbarrier_wait(bar, 0)
    lane = cute.arch.lane_idx()
    for c in cutlass.range_constexpr(COLS):
        out[bx * ROWS + lane, by * COLS + c] = tile[lane, c]


@cute.jit
def by_atom(src: cute.Tensor, out: cute.Tensor):
    layout = cute.make_composed_layout(
        cute.make_swizzle(3, 4, 3), 0, cute.make_ordered_layout((ROWS, COLS), order=(1, 0))
    )
    atom, coords = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), src, layout, (ROWS, COLS))
    grid = (cute.size(out, mode=[0]) // ROWS, cute.size(out, mode=[1]) // COLS, 1)
    atom_kernel(atom, coords, out, layout).launch(grid=grid, block=(32, 1, 1))


@cute.kernel
def map_kernel(tma: cutlass.GridConstant[cuda.TensorMap], out: cute.Tensor):
    """One warp: the same tile through an encoded tensor map without swizzle."""
    tile = cutlass.Array(cutlass.Float16, ROWS * COLS, space=SMEM, alignment=128)
    bar = cutlass.Array(cutlass.Int64, 1, space=SMEM, alignment=8)
    if prims.elect_sync():
        prims.mbarrier_init(bar, 1)
    prims.fence_mbarrier_init()
    prims.bar_warp_sync(0xFFFFFFFF)
    bx, by, _ = cute.arch.block_idx()
    if prims.elect_sync():
        prims.mbarrier_arrive_expect_tx(bar, ROWS * COLS * 2)
        prims.cp_async_bulk_tensor_shared_cta_global(tile, tma.get_ptr(), (by * COLS, bx * ROWS), bar)
    wait(bar, Int32(0))
    lane = cute.arch.lane_idx()
    for c in cutlass.range_constexpr(COLS):
        out[bx * ROWS + lane, by * COLS + c] = (tile.data_ptr() + (lane * COLS + c)).load()


@cute.jit
def by_map(src: cute.Tensor, out: cute.Tensor, rows: Int32, cols: Int32):
    tma = cuda.create_tensor_map_tiled(
        global_address=src.iterator.toint(),
        dtype=cutlass.Float16,
        global_dims=[cols, rows],
        global_strides=[cols // 8],
        box_dims=[COLS, ROWS],
        swizzle=cuda.TensorMapSwizzle.none,
    )
    map_kernel(tma, out).launch(grid=(rows // ROWS, cols // COLS, 1), block=(32, 1, 1))
