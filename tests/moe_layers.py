"""Expert layers whose exact result is known from the unpacked tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import swordfish as sf
from swordfish.emulator import Report
from swordfish.emulator import run as emulate
from swordfish.experts import ACTIVATIONS, Activation, ExpertPlan, ExpertWeights, plan_layer
from swordfish.experts.choose import ExpertConfig
from swordfish.experts.grouped import ExpertGrouped
from swordfish.experts.kernels import Product
from swordfish.experts.layer import launch_layer, layer_sources
from swordfish.experts.routing import sort_pairs
from swordfish.runtime.device import device_props
from swordfish.runtime.launch import _for_emulator
from swordfish.runtime.registry import compile_many, get_artifact
from tests.backends import exact, quantised
from tests.prefill_cases import config_of

__all__ = [
    "SCHEMES",
    "GroupedProblem",
    "MoeLayer",
    "assert_layer",
    "compile_ahead",
    "launch_products",
    "layer",
    "permuted_copies",
    "routing",
    "tokens",
]

SCHEMES: dict[str, dict[str, Any]] = {
    "int4-128": {},
    "int4-64-zeros": {"zeros": "integer", "group_size": 64},
    "int4-32-act-order": {"group_size": 32, "act_order": True, "dtype": torch.float16},
    "int4-channelwise-bias": {"group_size": -1, "bias": True},
    "int4-zeros-act-order-bias": {"zeros": "integer", "group_size": 64, "act_order": True, "bias": True},
    "int8-128-bias": {"bits": 8, "bias": True, "dtype": torch.float16},
    "int8-32-zeros": {"bits": 8, "zeros": "integer", "group_size": 32},
    "int4-32-offset": {"zeros": "offset", "group_size": 32},
}
"""Of expert layers, by name."""

_TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Relative error of a layer: rounded after the activation (1.6e-3 in bf16) and at the end (the same
again)."""


@dataclass(frozen=True)
class MoeLayer:
    """Experts as single packed weights, and packed together."""

    gate_up: list[sf.PackedWeight]
    down: list[sf.PackedWeight]
    w13: ExpertWeights
    w2: ExpertWeights

    @property
    def hidden(self) -> int:
        return self.w13.shape[0]

    def to(self, device: str) -> MoeLayer:
        """Packed together on another device; the single weights stay."""
        return MoeLayer(self.gate_up, self.down, self.w13.to(device), self.w2.to(device))

    def exact(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        activation: str | Activation = "silu",
        expert_map: torch.Tensor | None = None,
        weight_on_input: bool = False,
        rounded: bool = False,
        dense: bool = False,
    ) -> torch.Tensor:
        """fp64, expert by expert; nothing is rounded but, with ``rounded`` or ``dense``, the weights: dense
        kernels multiply what :func:`swordfish.dequantize` gives, so does the prefill collective unless scales
        are factors of the result."""
        product = _dense_product if dense else _rounded_product if rounded else exact
        act = activation if isinstance(activation, Activation) else ACTIVATIONS[activation]
        total = torch.zeros(x.shape[0], self.w2.shape[1], dtype=torch.float64)
        names = range(len(self.gate_up)) if expert_map is None else expert_map.tolist()
        for name, place in enumerate(names):
            token, slot = (ids == name).nonzero(as_tuple=True)
            if place < 0 or not len(token):
                continue
            weight = weights[token, slot].double()[:, None]
            gate_up, down = self.gate_up[place], self.down[place]
            first = product(x[token], gate_up) * (weight if weight_on_input else 1.0)
            second = _biased(product(act(*_biased(first, gate_up).chunk(2, dim=1)), down), down)
            total.index_add_(0, token, second * (1.0 if weight_on_input else weight))
        return total


def _rounded_product(x: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    return exact(x, w) if config_of(w).scales_results else _dense_product(x, w)


def _dense_product(x: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    return x.double() @ sf.dequantize(w).double()


def _biased(y: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    return y if w.bias is None else y + w.bias.double()


def launch_products(
    made: MoeLayer,
    config: ExpertConfig,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    *,
    arch: str,
    device: str = "cpu",
    activation: str | Activation = "silu",
    expert_map: torch.Tensor | None = None,
    weight_on_input: bool = False,
    narrow: bool = False,
) -> torch.Tensor:
    """A layer with both products in one configuration; operands and result on the CPU."""
    act = activation if isinstance(activation, Activation) else ACTIVATIONS[activation]
    there = made.to(device)
    out = torch.full((x.shape[0], made.w2.shape[1]), math.nan, dtype=x.dtype, device=device)
    plan = ExpertPlan("experts", config, config, False, "", narrow)
    map_there = None if expert_map is None else expert_map.to(device)
    launch_layer(
        plan, x.to(device), there.w13, there.w2, weights.to(device), ids.to(device), map_there, act, out,
        arch, weight_on_input=weight_on_input,
    )  # fmt: skip
    return out.cpu()


def layer(experts: int, hidden: int, intermediate: int, *, seed: int = 0, **scheme: Any) -> MoeLayer:
    """Random experts; see :func:`tests.backends.quantised` for the scheme."""
    gate_up = [quantised(hidden, 2 * intermediate, seed=seed + i, **scheme) for i in range(experts)]
    down = [quantised(intermediate, hidden, seed=seed + 1000 + i, **scheme) for i in range(experts)]
    return MoeLayer(gate_up, down, ExpertWeights.stack_gated(gate_up), ExpertWeights.stack(down))


def permuted_copies(experts: int) -> tuple[MoeLayer, Callable[[torch.Tensor], torch.Tensor]]:
    """Experts that are one MLP with its hidden channels in another order each, and that MLP; nearly fp64."""
    hidden, inner = 128, 96
    g = torch.Generator().manual_seed(4)
    codes13 = torch.randint(0, 16, (hidden, 2 * inner), dtype=torch.uint8, generator=g)
    codes2 = torch.randint(0, 16, (inner, hidden), dtype=torch.uint8, generator=g)
    scales13 = torch.rand(hidden // 32, 2 * inner, generator=g) * 0.015 + 0.005
    scales2 = (torch.rand(1, hidden, generator=g) * 0.015 + 0.005).expand(inner // 32, -1).contiguous()
    bias = torch.randn(2 * inner, generator=g)
    kw: dict[str, Any] = {"bits": 4, "group_size": 32, "dtype": torch.bfloat16}
    gate_up, down = [], []
    for _ in range(experts):
        order = torch.randperm(inner, generator=g)
        both = torch.cat([order, inner + order])
        gate_up.append(sf.pack(codes13[:, both], scales13[:, both], bias=bias[both], **kw))
        down.append(sf.pack(codes2[order], scales2, **kw))
    first, second = sf.pack(codes13, scales13, bias=bias, **kw), sf.pack(codes2, scales2, **kw)

    def dense(x: torch.Tensor) -> torch.Tensor:
        gate, up = sf.mm(x, first).double().chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up @ sf.dequantize(second).double()

    return MoeLayer(gate_up, down, ExpertWeights.stack_gated(gate_up), ExpertWeights.stack(down)), dense


def tokens(m: int, made: MoeLayer, seed: int = 9) -> torch.Tensor:
    """Random rows ``[m, hidden]`` in the layer's dtype."""
    return torch.randn(m, made.hidden, generator=torch.Generator().manual_seed(seed)).to(made.w13.dtype)


def routing(
    tokens: int, top_k: int, experts: int, *, skew: float = 0.0, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 weights and int32 ids ``[tokens, top_k]``, the experts of a token differ; with ``skew`` expert
    e is
    ``(e + 1) ** -skew`` times as likely as the first."""
    g = torch.Generator().manual_seed(seed)
    chances = torch.arange(1, experts + 1).double() ** -skew
    ids = torch.multinomial(chances.expand(tokens, -1), top_k, generator=g).int()
    return torch.rand(tokens, top_k, generator=g), ids


class GroupedProblem:
    """One product of a layer's experts on the grouped kernel, to be run with changed PTX.

    ``x`` and the rows of ``out`` behind the pairs hold ``marker`` where there is nothing to read or write.
    """

    def __init__(
        self, config: ExpertGrouped, w: ExpertWeights, weights: torch.Tensor, ids: torch.Tensor
    ) -> None:
        self.marker, spare = -77.0, 2 * config.block_rows
        activation = ACTIVATIONS["silu"] if w.gated else None
        product = Product.of(w, False, False, activation, router=True, in_order=True, early=True)
        with sf.emulate("sm_100a"):
            routing = sort_pairs(ids, None, w.experts, config.block_rows, "sm_100a")
        assert routing.schedule is not None and routing.order is not None
        here = int(routing.schedule[1])
        self.order = routing.order[:here].long()
        x = torch.full((routing.pairs, -(-w.packed_k // 64) * 64), self.marker, dtype=w.dtype)
        x[:here] = torch.randn(here, x.shape[1], generator=torch.Generator().manual_seed(1)).to(w.dtype)
        columns, dtype = (w.padded_n // 2, w.dtype) if w.gated else (w.padded_n, torch.float32)
        self.out = torch.full((routing.pairs + spare, columns), self.marker, dtype=dtype)
        self.artifact = get_artifact(config.source(product), "sm_100a")
        self.launch = config.launch_config(product, routing.blocks)
        self.args = [_for_emulator(a) for a in config.arguments(w, x, weights, routing, self.out)]

    @property
    def written(self) -> torch.Tensor:
        """Numbers of the rows that a run has written, as a whole."""
        touched = self.out != self.marker
        assert torch.equal(touched.any(dim=1), touched.all(dim=1))
        return touched.all(dim=1).nonzero().flatten()

    def run(self, ptx: str, seed: int = 0, **options: Any) -> Report:
        self.out.fill_(self.marker)
        entry = self.artifact.metadata.entry
        return emulate(ptx, entry, self.args, self.launch, arch="sm_100a", seed=seed, **options)


def compile_ahead(made: list[MoeLayer], tokens: list[int], top_k: int) -> None:
    """Kernels of these layers on the GPU, side by side: one after the other takes minutes."""
    requests = {}
    for one in made:
        there = one.to("cuda")
        for m in tokens:
            plan = plan_layer(there.w13, there.w2, m, min(top_k, there.w13.experts))
            for source in layer_sources(plan, there.w13, there.w2, ACTIVATIONS["silu"]):
                requests[source, device_props(there.w13.device).arch] = None
    compile_many(list(requests))


def assert_layer(y: torch.Tensor, expected: torch.Tensor) -> None:
    """As a whole, and in every row to five times that."""
    assert y.shape == expected.shape
    error, limit = y.cpu().double() - expected, _TOLERANCE[y.dtype]
    assert error.norm() <= limit * expected.norm()
    typical = expected.norm() / max(1, expected.shape[0]) ** 0.5
    assert bool((error.norm(dim=1) <= 5 * limit * torch.maximum(expected.norm(dim=1), typical)).all())
