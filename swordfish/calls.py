"""A path and its configuration as something to call: launches prepared, nothing left to decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from swordfish.decode import DecodeConfig
from swordfish.decode.tokens import packed_tokens
from swordfish.packed import PackedWeight
from swordfish.runtime.registry import get_kernel
from swordfish.scheme import Scheme

__all__ = ["Call", "DecodeCall"]

Call: TypeAlias = "Callable[[torch.Tensor, PackedWeight, torch.Tensor | None, torch.Tensor], object]"
"""Queues ``out[M, N] = x[M, K] @ W (+ bias)`` on the current stream: ``call(x, w, bias, out)`` with the
shape, scheme and device that it was made for.

``x`` is 2-D with any strides and at least one row. ``out`` has unit inner stride and rows aligned to the
elements stored at a time: 4 if N is a multiple of 4, 2 if it is even.
"""


class DecodeCall:
    """A decode configuration for ``m`` rows of a ``[k, n]`` weight (``k`` in packed rows).

    With act-order and a configuration that does not gather, a launch that permutes x goes before it.
    """

    def __init__(
        self, config: DecodeConfig, scheme: Scheme, m: int, k: int, n: int, *, bias: bool, arch: str
    ) -> None:
        kernel = get_kernel(config.source(scheme, k, n, bias=bias), arch)
        self._launch = kernel.prepare(config.launch_config(scheme, m, k, n))
        self._arguments = config.arguments
        self._permutes = scheme.act_order and not config.gather
        self._k, self._arch = k, arch

    def __call__(
        self, x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        self.launch(x, w.words, w.scale_rows, w.zero_rows, w.perm, bias, out)

    def launch(
        self,
        x: torch.Tensor,
        words: torch.Tensor,
        scale_rows: torch.Tensor,
        zero_rows: torch.Tensor | None,
        perm: torch.Tensor | None,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """The call, with the weight as its tensors."""
        tokens = packed_tokens(x, perm if self._permutes else None, self._k, self._arch)
        arguments = self._arguments(words, scale_rows, zero_rows, tokens, perm, bias, out)
        self._launch.again(out.get_device(), arguments)
