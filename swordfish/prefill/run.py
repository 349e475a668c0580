"""Launch a prefill configuration: one kernel, or partial sums of slices of K and their reduction."""

from __future__ import annotations

import functools

import numpy as np
import torch

from swordfish.decode.tokens import packed_tokens
from swordfish.errors import ArgumentError
from swordfish.packed import PackedWeight
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.launch import Grid, arguments, check_operands, source
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.runtime.launch import LaunchConfig, PreparedLaunch
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble
from swordfish.scheme import Scheme

__all__ = ["launch_prefill", "reduce_source"]

_REDUCE_THREADS = 128
_REDUCE_COLUMNS = 8


def launch_prefill(
    config: PrefillConfig,
    x: torch.Tensor,
    w: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    pairs: int | None = None,
) -> None:
    """Queue ``out[M, N] = x[M, K] @ W (+ bias)`` with the tile of ``config``, on the GPU or the emulator.

    ``x`` in checkpoint row order, any strides; a launch that gathers goes before with act-order, or where x
    is not as bulk copies read it (rows of whole 16 bytes). ``out`` any strides; it is written through a copy
    unless bulk stores can write it. Both, and ``bias`` ``[N]``, in the weight's dtype and on its device.
    ``pairs`` bounds the clusters, see :meth:`~swordfish.prefill.launch.Grid.of`.

    Raises:
        ArgumentError: a configuration for another scheme, or what :meth:`Grid.of` refuses.
        ArgumentError, ArgumentTypeError: operands of another shape, dtype or device.
    """
    if not _serves(config, w.scheme):
        raise ArgumentError("config.scheme", config.scheme, f"the weight's, {w.scheme}")
    check_operands(x, w, bias, out)
    m, n = out.shape
    if m == 0:
        return
    k = w.packed_k
    props = device_props(w.device)
    grid, launch = _prepared(config, m, n, k, props, pairs)
    tokens = packed_tokens(x, w.perm, k, props.arch)[:, :k]
    target = out if _bulk_storable(out) else torch.empty((m, n), dtype=out.dtype, device=out.device)
    if config.partial:
        workspace = torch.empty(grid.workspace_shape(config), dtype=torch.float32, device=w.device)
        launch(arguments(config, grid, tokens, w, None, None, workspace))
        factors = w.scale_rows if config.scales_results else None
        _reduce(config, workspace, factors, bias, target, props.arch)
    else:
        launch(arguments(config, grid, tokens, w, bias, target, None))
    if target is not out:
        out.copy_(target)


@functools.lru_cache(maxsize=1024)
def _serves(config: PrefillConfig, scheme: Scheme) -> bool:
    """Whether a scheme has the kernel of the configuration."""
    return config.flat() == config.for_scheme(scheme).flat()


@functools.lru_cache(maxsize=4096)
def _prepared(
    config: PrefillConfig, m: int, n: int, k: int, props: DeviceProps, pairs: int | None
) -> tuple[Grid, PreparedLaunch]:
    """What does not depend on the operands' memory; the kernel is compiled or read from the cache."""
    grid = Grid.of(config, m, n, k, props, pairs=pairs)
    return grid, get_kernel(source(config), props.arch).prepare(grid.launch_config(config))


def _bulk_storable(out: torch.Tensor) -> bool:
    """Unit inner stride, rows aligned to 16 bytes."""
    unit = out.stride(1) == 1 or out.shape[1] == 1
    return unit and out.data_ptr() % 16 == 0 and (out.shape[0] == 1 or out.stride(0) % 8 == 0)


def _reduce(
    config: PrefillConfig,
    workspace: torch.Tensor,
    factors: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    arch: str,
) -> None:
    """``out = round(sum of the slices * factors + bias)``."""
    m, n = out.shape
    slices, tokens, columns = workspace.shape
    threads = m * (n // _REDUCE_COLUMNS)
    ctas = -(-threads // _REDUCE_THREADS)
    launch = LaunchConfig((ctas, 1, 1), (_REDUCE_THREADS, 1, 1), programmatic=True)
    sizes = map(np.int32, (m, n, tokens, columns, slices))
    reduction = get_kernel(reduce_source(config), arch)
    reduction.launch(launch, [workspace, factors, bias, out, *sizes, np.int64(out.stride(0))])


def reduce_source(config: PrefillConfig) -> KernelSource:
    """The kernel that adds up the partial sums of a configuration, scales, adds the bias and rounds."""
    defines: dict[str, int | str] = {
        "SF_BF16": int(config.scheme.dtype == "bfloat16"),
        "SF_FACTOR": f"{2.0**config.fold!r}f",
    }
    return assemble("swordfish/prefill/device/reduce.cu", "prefill_reduce", defines)
