"""Problems set up on a GPU: what :mod:`swordfish.tune.measure` runs in its children."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from swordfish.calls import DecodeCall
from swordfish.packed import PackedWeight
from swordfish.runtime.device import device_props
from swordfish.tune.measure import Problem
from swordfish.tune.operands import check_product, exact_product, random_weight, weight_bytes
from swordfish.tune.timing import (
    Backend,
    CudaBackend,
    Graph,
    launches_per_graph,
    medians,
    rotation_count,
    warm_up,
)

__all__ = ["CudaTrial", "CudaTrials"]

ROUNDS = 7
FINAL_ROUNDS = 21
"""Replays of a graph: of one configuration by itself, and of the best against the default."""


class CudaTrials:
    """Makes the trials of one weight shape; its weights are made once. Picklable before its first use."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._made_for: tuple[Any, ...] = ()
        self._weights: list[PackedWeight] = []
        self._backend: Backend | None = None

    def __call__(self, problem: Problem) -> CudaTrial:
        torch.cuda.set_device(self.device)
        if self._backend is None:
            self._backend = CudaBackend()
        wanted = (problem.scheme, problem.k, problem.n)
        if wanted != self._made_for:
            self._weights = []
            place = torch.device("cuda", self.device)
            size = weight_bytes(*wanted)
            copies = rotation_count(size, device_props(place).l2_bytes)
            self._weights = [random_weight(*wanted, place, seed) for seed in range(copies)]
            self._made_for = wanted
        return CudaTrial(problem, self._weights, self._backend, device_props(self.device).arch)


class CudaTrial:
    """A problem on a GPU: random tokens, the exact product with the first weight, and room for a result."""

    def __init__(
        self, problem: Problem, weights: Sequence[PackedWeight], backend: Backend, arch: str
    ) -> None:
        self.weights, self.backend, self.arch = weights, backend, arch
        device, dtype = weights[0].device, problem.scheme.torch_dtype
        generator = torch.Generator(device=device).manual_seed(1)
        self.x = torch.randn(problem.m, problem.k, device=device, generator=generator).to(dtype)
        self.out = torch.empty(problem.m, problem.n, device=device, dtype=dtype)
        self.exact = exact_product(self.x, weights[0])
        self.launches = launches_per_graph(len(weights), weight_bytes(problem.scheme, problem.k, problem.n))
        self._warm = False
        self._calls: dict[Any, DecodeCall] = {}

    def _launch(self, config: Any, weight: PackedWeight) -> None:
        call = self._calls.get(config)
        if call is None:
            m, k, n = self.x.shape[0], weight.packed_k, weight.shape[1]
            call = DecodeCall(config, weight.scheme, m, k, n, bias=False, arch=self.arch)
            self._calls[config] = call
        call(self.x, weight, None, self.out)

    def check(self, config: Any) -> tuple[str, float]:
        results = []
        for _ in range(2):
            self.out.fill_(float("nan"))
            self._launch(config, self.weights[0])
            results.append(self.out.clone())
        wrong, rounding = check_product(results[0], self.exact)
        # Compared as integers: bits, not values.
        if not wrong and not torch.equal(results[0].view(torch.int16), results[1].view(torch.int16)):
            return "two runs gave different bits", rounding
        return wrong, rounding

    def time(self, configs: Sequence[Any]) -> list[float]:
        graphs = [
            Graph(self.backend, [partial(self._launch, c, w) for w in self.weights], self.launches)
            for c in configs
        ]
        if not self._warm:
            warm_up(self.backend, graphs[0])
            self._warm = True
        return medians(self.backend, graphs, ROUNDS if len(graphs) == 1 else FINAL_ROUNDS)

    def alive(self) -> bool:
        try:
            self.backend.synchronize()
        except RuntimeError:
            return False
        return True
