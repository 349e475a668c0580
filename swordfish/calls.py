"""A path and its configuration as something to call: launches prepared, nothing left to decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from swordfish.decode import DecodeConfig
from swordfish.decode.bound import BoundLaunch
from swordfish.decode.tokens import packed_tokens
from swordfish.layouts.packing import BLOCK
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
        self._config = config
        self._permutes = scheme.act_order and not config.gather
        self._m, self._k, self._n, self._arch = m, k, n, arch

    def __call__(
        self, x: torch.Tensor, w: PackedWeight, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        tokens = packed_tokens(x, w.perm if self._permutes else None, self._k, self._arch)
        self._launch(self._config.arguments(w.words, w.scale_rows, w.zero_rows, tokens, w.perm, bias, out))

    def bind(self, w: PackedWeight, bias: torch.Tensor | None) -> BoundLaunch:
        """The call with this weight on its CUDA device, everything about them looked up; x may be in the
        checkpoint's order. Valid while the tensors keep their memory."""
        k, arch, perm = self._k, self._arch, w.perm if self._permutes else None
        pitch = -(-k // BLOCK) * BLOCK
        launch = self._launch.raw(w.words.get_device())
        tensors, shape = (w.words, w.scale_rows, w.zero_rows, w.perm, bias), (self._m, pitch, self._n)
        bound = self._config.bind(launch, tensors, shape)
        if perm is None and k == pitch:
            return bound

        def packed(x: torch.Tensor, x_address: int, out: torch.Tensor, stream: int) -> None:
            tokens = packed_tokens(x, perm, k, arch)
            bound(tokens, tokens.data_ptr(), out, stream)

        return packed
