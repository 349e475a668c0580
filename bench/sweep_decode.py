"""What a sweep of one decode kernel works with: cold weights, tokens, a check and a time.

`swordfish tune --dry-run --top 10 --report FILE` sweeps the kernels that dispatch knows; this is for a sweep
of configurations of one's own, such as `bench.tune_decode_wide`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from swordfish.runtime.device import device_props
from swordfish.scheme import Scheme
from swordfish.tune.operands import check_product, exact_product, random_weight, weight_bytes
from swordfish.tune.timing import CudaBackend, Graph, launches_per_graph, medians, rotation_count

__all__ = ["Operands"]

ROUNDS = 5

Call = Callable[[int], torch.Tensor]
"""Launches with the weight of that index, writes ``Operands.out`` and returns it."""


class Operands:
    """Random packed weights in `words`, `scales` and `zeros`, enough copies to find each one cold, tokens `x`
    and room for a result `out`."""

    def __init__(self, scheme: Scheme, m: int, k: int, n: int) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        size = weight_bytes(scheme, k, n)
        self.count = rotation_count(size, device_props(device).l2_bytes)
        self.launches = launches_per_graph(self.count, size)
        weights = [random_weight(scheme, k, n, device, seed) for seed in range(self.count)]
        self.words = [w.words for w in weights]
        self.scales = [w.scale_rows for w in weights]
        self.zeros = [w.zero_rows for w in weights]
        self.x = torch.randn(m, k, device=device).to(scheme.torch_dtype)
        self.out = torch.empty(m, n, device=device, dtype=scheme.torch_dtype)
        self.exact = exact_product(self.x, weights[0])

    def error(self, call: Call) -> tuple[str | None, float]:
        """What is wrong with the result of the first weight, and its error over that of one rounding."""
        self.out.fill_(float("nan"))
        first = call(0).clone()
        wrong, rounding = check_product(first, self.exact)
        if not wrong and not torch.equal(first, call(0)):
            wrong = "differs between two runs"
        return wrong or None, rounding

    def time(self, call: Call) -> float:
        """Median microseconds of a launch over replays of a graph that walks over all copies."""
        backend = CudaBackend()
        calls = [functools.partial(call, i) for i in range(self.count)]
        graph = Graph(backend, calls, self.launches)
        return medians(backend, [graph], ROUNDS)[0]
