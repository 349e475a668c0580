"""From a configuration and tensors to a launch: kernel source, tensor maps, grid and scalar arguments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.packed import PackedWeight
from swordfish.prefill.config import EPILOGUE_TOKENS, STAGE_K, STEP_K, TILE_ROWS, PrefillConfig
from swordfish.runtime.arguments import Argument
from swordfish.runtime.cute import CuteSource
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.tensor_map import TensorMap

__all__ = [
    "COLLECTIVE",
    "Grid",
    "arguments",
    "check_operands",
    "rows_map",
    "source",
    "tokens_map",
    "words_map",
]

COLLECTIVE = ("swordfish.prefill.collective", "swordfish.prefill.config")
"""What the text of a kernel is made of."""

BLOCK = 64
MAP_ROW_BYTES = 256
"""A tensor-map box has at most 256 elements a dimension, so a block travels as rows of 256 bytes."""
_WARP_COLUMNS = 32


def source(config: PrefillConfig) -> CuteSource:
    """The kernel of a configuration. M, N and K are arguments of the kernel: one serves every shape."""
    return CuteSource.of("swordfish.prefill.collective.kernel", "build", config.flat(), packages=COLLECTIVE)


@dataclass(frozen=True)
class Grid:
    """How ``[m, k] @ [k, n]`` is cut into tiles: counts, and the order in which a persistent CTA takes them.

    ``band`` token tiles share the L2 while the weights stream past; ``slices`` of ``slice_stages`` 128-deep
    stages each cut K (split-K); ``pairs`` clusters are launched.
    """

    row_tiles: int
    token_tiles: int
    band: int
    k_stages: int
    slice_stages: int
    slices: int
    pairs: int

    @classmethod
    def of(
        cls,
        config: PrefillConfig,
        m: int,
        n: int,
        k: int,
        props: DeviceProps,
        *,
        pairs: int | None = None,
    ) -> Grid:
        """The grid for a device: one CTA per SM, tokens of a band in half of L2.

        None of the slices is empty, so there may be fewer than the configuration asks for. ``pairs``
        (default: as many as there are SMs for, or tiles) bounds the clusters.

        Raises:
            ArgumentError: a size below 1, N not a multiple of 8, or a device that cannot run the kernel.
        """
        for name, value in (("m", m), ("n", n), ("k", k)):
            if value < 1:
                raise ArgumentError(name, value, "1 or more")
        if n % 8:
            raise ArgumentError("n", n, "a multiple of 8, so that rows of y are whole 16 bytes")
        reason = config.refused_by(props)
        if reason is not None:
            raise ArgumentError("device", props.name or props.arch, "one that can run the tile", reason)
        k_stages = -(-k // STAGE_K)
        slice_stages = -(-k_stages // config.slices)
        token_tiles = -(-m // config.tokens)
        row_tiles = -(-n // (TILE_ROWS * config.ctas))
        used = -(-k_stages // slice_stages)
        band = max(1, min(token_tiles, props.l2_bytes // 2 // (config.tokens * k * 2)))
        items = row_tiles * token_tiles * used
        most = props.sm_count // config.ctas if pairs is None else pairs
        return cls(row_tiles, token_tiles, band, k_stages, slice_stages, used, max(1, min(most, items)))

    def launch_config(self, config: PrefillConfig) -> LaunchConfig:
        """The launch shape; ``programmatic``, since weights may be fetched before the previous kernel
        ends."""
        return LaunchConfig(
            grid=(self.pairs * config.ctas, 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.ctas, 1, 1),
            shared_bytes=config.shared_bytes,
            programmatic=True,
        )

    def workspace_shape(self, config: PrefillConfig) -> tuple[int, int, int]:
        """``[slices, tokens, columns]`` of the fp32 workspace of a kernel of partial sums, whole tiles."""
        return self.slices, self.token_tiles * config.tokens, self.row_tiles * TILE_ROWS * config.ctas


def check_operands(x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """Check shapes, dtypes and devices: ``x[M, K]``, ``bias[N]`` if there is one, ``out[M, N]``.

    Raises:
        ArgumentError, ArgumentTypeError: naming the tensor and what is wrong with it.
    """
    k, n = w.shape
    for name, tensor, shape in (
        ("x", x, (x.shape[0], k)),
        ("bias", bias, (n,)),
        ("out", out, (x.shape[0], n)),
    ):
        if tensor is None:
            continue
        if tensor.dtype != w.dtype:
            raise ArgumentTypeError(f"{name}.dtype", tensor.dtype, str(w.dtype))
        if tensor.device != w.device:
            raise ArgumentError(f"{name}.device", tensor.device, f"{w.device}, where the weight is")
        if tuple(tensor.shape) != shape:
            raise ArgumentError(f"{name}.shape", tuple(tensor.shape), str(shape))


def arguments(
    config: PrefillConfig,
    grid: Grid,
    x: torch.Tensor,
    w: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    workspace: torch.Tensor | None,
) -> list[Argument]:
    """Kernel arguments in order: five tensor maps, factors of the result, bias, workspace, eight int32.

    ``x`` is ``[M, packed_k]`` in packed row order. ``out`` is needed unless the kernel is one of partial
    sums; then ``workspace`` is, fp32 of :meth:`Grid.workspace_shape`. Rows of ``x`` and ``out`` are
    contiguous and aligned to 16 bytes.
    """
    k, n = w.packed_k, w.shape[1]
    tokens = tokens_map(config, x, k)
    # A kernel of partial sums has no use for the map of y; any map fills the place.
    result = tokens if out is None else _output_map(w, out)
    tiles = (grid.row_tiles, grid.token_tiles, grid.band)
    stages = (grid.k_stages, grid.slice_stages, grid.slices, config.group_stages(grid.k_stages))
    scales = rows_map(config, w.scale_rows)
    return [
        words_map(config, w.words),
        scales,
        scales if w.zero_rows is None else rows_map(config, w.zero_rows),
        tokens,
        result,
        w.scale_rows if config.scales_results else None,
        bias,
        workspace,
        *map(np.int32, (n, *tiles, *stages)),
    ]


def words_map(config: PrefillConfig, words: torch.Tensor) -> TensorMap:
    """Dense bytes: 2 x 2 blocks, in shared memory ordered column block, row block, byte; of one weight, or of
    one of several behind each other."""
    *weights, columns, rows, _ = words.shape
    size = config.block_bytes
    lines = size // MAP_ROW_BYTES
    return TensorMap(
        words,
        "uint8",
        (MAP_ROW_BYTES, lines, rows, columns, *weights),
        (MAP_ROW_BYTES, size, size * rows, *(size * rows * columns for _ in weights)),
        (MAP_ROW_BYTES, lines, 2, 2, *(1 for _ in weights)),
        l2_promotion="256",
    )


def rows_map(config: PrefillConfig, rows: torch.Tensor) -> TensorMap:
    """Scales or zero points: 128 columns of the groups of one stage; of one weight, or of one of several
    behind each other."""
    *weights, groups, columns = rows.shape
    return TensorMap(
        rows,
        config.scheme.dtype,
        (columns, groups, *weights),
        (columns * 2, *(columns * 2 * groups for _ in weights)),
        (TILE_ROWS, config.groups_per_stage, *(1 for _ in weights)),
    )


def tokens_map(config: PrefillConfig, x: torch.Tensor, k: int) -> TensorMap:
    """One CTA's tokens of a step, of ``k`` values; those out of range are zeros."""
    return TensorMap(
        x,
        config.scheme.dtype,
        (k, x.shape[0]),
        (_pitch(x),),
        (STEP_K, config.cta_tokens),
        swizzle="128",
        l2_promotion="128",
    )


def _output_map(w: PackedWeight, out: torch.Tensor) -> TensorMap:
    """What one epilogue warp stores at a time; rows and columns out of range are not written."""
    m, n = out.shape
    return TensorMap(
        out, w.scheme.dtype, (n, m), (_pitch(out),), (_WARP_COLUMNS, EPILOGUE_TOKENS), swizzle="64"
    )


def _pitch(rows: torch.Tensor) -> int:
    """Bytes from row to row; of a single row, which may have any stride, its size in whole 16 bytes."""
    return int(rows.stride(0)) * 2 if rows.shape[0] > 1 else -(-rows.shape[1] // 8) * 16
