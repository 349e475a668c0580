"""Run a prefill configuration: one kernel, or partial sums of slices of K and their reduction."""

from __future__ import annotations

import numpy as np
import torch

from swordfish.errors import ArgumentError
from swordfish.packed import PackedWeight
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.launch import Grid, arguments, check_operands, source
from swordfish.runtime.device import device_props
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.registry import get_kernel
from swordfish.runtime.source import KernelSource, assemble

__all__ = ["prefill", "reduce_source"]

_REDUCE_THREADS = 128
_REDUCE_COLUMNS = 8


def prefill(
    x: torch.Tensor,
    w: PackedWeight,
    config: PrefillConfig,
    *,
    out: torch.Tensor | None = None,
    slices: int = 1,
    pairs: int | None = None,
) -> torch.Tensor:
    """``x[M, packed_k] @ W`` with the tile of ``config``, ``[M, N]``; for act-order x is gathered before.

    A configuration with ``partial`` runs up to ``slices`` slices of K into an fp32 workspace, which a second
    kernel adds up in order. ``pairs`` bounds the clusters, see :meth:`~swordfish.prefill.launch.Grid.of`.

    Raises:
        ArgumentError, ArgumentTypeError: a configuration for another scheme, or what
            :func:`~swordfish.prefill.launch.check_operands` and :meth:`Grid.of` refuse.
    """
    if out is None:
        out = torch.empty(x.shape[0], w.shape[1], dtype=w.dtype, device=w.device)
    if config.flat() != config.for_scheme(w.scheme).flat():
        raise ArgumentError("config.scheme", config.scheme, f"the weight's, {w.scheme}")
    if config.bias and w.bias is None:
        raise ArgumentError("config.bias", True, "False: the weight has no bias")
    check_operands(x, w, out)
    m, n = out.shape
    if config.partial and n % _REDUCE_COLUMNS:
        raise ArgumentError("N", n, f"a multiple of {_REDUCE_COLUMNS} for partial sums")
    if m == 0:
        return out
    props = device_props(w.device)
    grid = Grid.of(config, m, n, w.packed_k, props, slices=slices, pairs=pairs)
    workspace = None
    if config.partial:
        workspace = torch.empty(grid.workspace_shape(config), dtype=torch.float32, device=w.device)
    kernel = get_kernel(source(config), props.arch)
    target = None if config.partial else out
    kernel.launch(grid.launch_config(config), arguments(config, grid, x, w, target, workspace))
    if workspace is not None:
        threads = m * (n // _REDUCE_COLUMNS)
        launch = LaunchConfig((-(-threads // _REDUCE_THREADS), 1, 1), (_REDUCE_THREADS, 1, 1))
        slices, tokens, columns = workspace.shape
        sizes = map(np.int32, (m, n, tokens, columns, slices))
        reduction = get_kernel(reduce_source(config), props.arch)
        reduction.launch(launch, [workspace, w.bias, out, *sizes, np.int64(out.stride(0))])
    return out


def reduce_source(config: PrefillConfig) -> KernelSource:
    """The kernel that adds up the partial sums of a configuration, adds the bias and rounds."""
    defines: dict[str, int | str] = {
        "SF_BF16": int(config.scheme.dtype == "bfloat16"),
        "SF_FACTOR": f"{2.0**config.fold!r}f",
    }
    return assemble("swordfish/prefill/device/reduce.cu", "prefill_reduce", defines)
