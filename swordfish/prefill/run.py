"""Run a prefill configuration: one kernel, or partial sums and their reduction."""

from __future__ import annotations

import torch

from swordfish.packed import PackedWeight
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.launch import Grid, arguments, check_operands, source
from swordfish.runtime.device import device_props
from swordfish.runtime.registry import get_kernel

__all__ = ["prefill"]


def prefill(
    x: torch.Tensor,
    w: PackedWeight,
    config: PrefillConfig,
    *,
    out: torch.Tensor | None = None,
    pairs: int | None = None,
) -> torch.Tensor:
    """``x[M, packed_k] @ W`` with the tile of ``config``, ``[M, N]``; for act-order x is gathered before.

    Raises:
        ArgumentError, ArgumentTypeError: see :func:`~swordfish.prefill.launch.check_operands`.
    """
    if out is None:
        out = torch.empty(x.shape[0], w.shape[1], dtype=w.dtype, device=w.device)
    check_operands(x, w, out)
    if x.shape[0] == 0:
        return out
    props = device_props(w.device)
    grid = Grid.of(config, x.shape[0], w.shape[1], w.packed_k, props, pairs=pairs)
    kernel = get_kernel(source(config), props.arch)
    kernel.launch(grid.launch_config(config), arguments(config, grid, x, w, out, None))
    return out
