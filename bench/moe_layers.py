"""Copies of an expert layer that are cold when they are used, and what Swordfish launches on them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from bench.data import check
from bench.harness import clone_state
from bench.moe_data import MoeShape, Routes, hidden_states, random_experts, reference_products, routes
from swordfish.experts import ACTIVATIONS, ExpertWeights, plan_layer
from swordfish.experts.choose import ExpertConfig
from swordfish.experts.kernels import ExpertRing
from swordfish.experts.layer import down, gate_up
from swordfish.experts.routing import Routing, sort_pairs
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.scheme import Scheme
from swordfish.tune.timing import CudaBackend, Graph

__all__ = ["ROUTES", "SILU", "ColdLayers"]

COLD_BYTES = 1 << 30
"""Packed bytes of the copies of a layer together: an expert that comes up again has left L2."""

ROUTES = 24
GRAPH_US = 1500.0
SILU = ACTIVATIONS["silu"]


@dataclass(eq=False)
class ColdLayers:
    """Copies of a layer, routings, and the calls to time."""

    model: MoeShape
    m: int
    scheme: Scheme
    w13: list[ExpertWeights]
    w2: list[ExpertWeights]
    routes: list[Routes]
    props: DeviceProps

    @classmethod
    def make(cls, model: MoeShape, scheme: Scheme) -> ColdLayers:
        h, i = model.hidden, model.intermediate
        w13 = random_experts(model.experts, h, 2 * i, scheme, gated=True)
        w2 = random_experts(model.experts, i, h, scheme, gated=False, seed=1)
        copies = max(2, -(-COLD_BYTES // (w13.nbytes + w2.nbytes)))
        copy13 = [w13, *(clone_state(w13) for _ in range(copies - 1))]
        copy2 = [w2, *(clone_state(w2) for _ in range(copies - 1))]
        return cls(model, 0, scheme, copy13, copy2, [], device_props(w13.device))

    def set_tokens(self, m: int) -> None:
        """Tokens, routings and the reference for ``m``."""
        self.m = m
        self.routes = routes(self.model, m, ROUTES)
        self.x = hidden_states(m, self.model.hidden, self.scheme.torch_dtype)
        _, self.h, self.second = reference_products(self.x, self.w13[0], self.w2[0], self.routes[0], SILU)
        self._routings: dict[int, list[Routing]] = {}

    def routings(self, block_rows: int) -> list[Routing]:
        """A sorted routing of each, or with blocks of one row the pairs as they are."""
        if block_rows not in self._routings:
            experts = self.model.experts
            self._routings[block_rows] = [
                Routing(r.ids, None, experts, 1)
                if self.m == 1
                else sort_pairs(r.ids, None, experts, block_rows, self.props.arch, begins=True)
                for r in self.routes
            ]
        return self._routings[block_rows]

    @property
    def narrow(self) -> bool:
        """What the plan says about the rows of down."""
        return plan_layer(self.w13[0], self.w2[0], self.m, self.model.top_k).narrow

    def call(self, which: str, config: ExpertConfig, index: int, h: torch.Tensor) -> torch.Tensor:
        """One launch (two if gate_up reads rows in order) with the weights and the routing of that index."""
        routing = self.routings(config.block_rows)[index % ROUTES]
        copy, arch = index % len(self.w13), self.props.arch
        if which == "gate_up":
            return gate_up(config, self.x, self.w13[copy], None, routing, SILU, arch)
        narrow = self.narrow and not isinstance(config, ExpertRing)
        weights = self.routes[index % ROUTES].weights
        return down(config, h, self.w2[copy], weights, routing, arch, narrow=narrow)

    def in_order(self, routing: Routing) -> torch.Tensor:
        """The reference's intermediate in the order of a routing."""
        return self.h if routing.order is None else self.h[routing.order.long()]

    def error(self, which: str, config: ExpertConfig) -> str:
        """What is wrong with the first result; empty if nothing is."""
        routing = self.routings(config.block_rows)[0]
        h = self.in_order(routing)
        result = self.call(which, config, 0, h)
        expected = h if which == "gate_up" else self.second
        verdict = check(result[:, : expected.shape[1]], expected.double(), self.scheme.dtype)
        if not verdict.ok:
            return verdict.message
        return "" if torch.equal(result, self.call(which, config, 0, h)) else "differs between two runs"

    def graph(self, which: str, config: ExpertConfig, guess_us: float) -> Graph:
        """A graph of about ``GRAPH_US``."""
        h = self.in_order(self.routings(config.block_rows)[0])
        period = ROUTES * len(self.w13)
        count = max(len(self.w13), min(period, round(GRAPH_US / guess_us)))
        calls = [functools.partial(self.call, which, config, i, h) for i in range(count)]
        return Graph(CudaBackend(), calls, count)
