"""Expert layers to time: shapes of published models, random weights and routings, the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

import swordfish as sf
from bench.data import CODE_SIGMA
from swordfish.experts import Activation, ExpertWeights
from swordfish.experts.reference import places_of
from swordfish.layouts.packing import packed_shape
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["MODELS", "MoeShape", "Routes", "hidden_states", "random_experts", "reference_products", "routes"]


@dataclass(frozen=True)
class MoeShape:
    """E experts, ``top_k`` a token, with ``[hidden, 2 intermediate]`` and ``[intermediate, hidden]``."""

    name: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int

    def active_bytes(self, experts: float, group_size: int = 128, bits: int = 4) -> float:
        """Packed bytes of this many experts."""
        per_weight = bits / 8 + 2 / group_size
        return experts * 3 * self.hidden * self.intermediate * per_weight


MODELS = {
    model.name: model
    for model in (
        MoeShape("qwen1.5-a2.7b", 60, 4, 2048, 1408),
        MoeShape("qwen3-30b-a3b", 128, 8, 2048, 768),
        MoeShape("mixtral-8x7b", 8, 2, 4096, 14336),
    )
}


@dataclass(frozen=True, eq=False)
class Routes:
    """``ids`` int32 and ``weights`` fp32, ``[M, top_k]``; the experts of a token differ."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def active(self) -> int:
        """Experts with at least one token."""
        return len(set(self.ids.flatten().tolist()))


def routes(model: MoeShape, m: int, count: int, device: str = "cuda") -> list[Routes]:
    """Uniform random routings."""
    g = torch.Generator(device=device).manual_seed(0)
    result = []
    for _ in range(count):
        scores = torch.randn(m, model.experts, device=device, generator=g)
        top = scores.topk(model.top_k, dim=1)
        result.append(Routes(top.indices.int(), top.values.softmax(dim=1)))
    return result


def random_experts(
    experts: int, k: int, n: int, scheme: Scheme, *, gated: bool, device: str = "cuda", seed: int = 0
) -> ExpertWeights:
    """Normal codes and uniform scales, values of standard deviation ``1 / sqrt(K)``; N a multiple of 64
    (128 if gated). Positions of codes are as random as they are, so they are drawn in packed order."""
    g = torch.Generator(device=device).manual_seed(seed)
    levels = 1 << scheme.bits
    shape = packed_shape(k, n, scheme.bits)
    words = torch.empty((experts, *shape), dtype=torch.int32, device=device)
    for expert in words:
        codes = torch.randn(expert.numel() * 32 // scheme.bits, device=device, generator=g)
        codes = (codes * (CODE_SIGMA * levels) + levels / 2).round_().clamp_(0, levels - 1).to(torch.uint8)
        if scheme.bits == 4:
            codes = codes[0::2] | codes[1::2] << 4
        expert.copy_(codes.view(torch.int32).view(shape))
    spread = torch.rand(experts, scheme.groups(k), n, device=device, generator=g)
    scales = (0.75 + 0.5 * spread) / (CODE_SIGMA * levels * k**0.5)
    tensors = {"words": words, "scale_rows": scales.to(scheme.torch_dtype)}
    return ExpertWeights.from_tensors(tensors, scheme, (k, n), gated=gated)


def hidden_states(m: int, width: int, dtype: torch.dtype, device: str = "cuda") -> torch.Tensor:
    """Standard normal ``[M, width]``."""
    g = torch.Generator(device=device).manual_seed(1)
    return torch.randn(m, width, device=device, generator=g).to(dtype)


def _exact(w: sf.PackedWeight) -> torch.Tensor:
    """fp32 ``[K, N]`` of a symmetric weight, not rounded: a code times a 16-bit scale is exact."""
    from swordfish.layouts.packing import unpack_words

    k, n = w.shape
    size = k if w.scheme.group_size == CHANNELWISE else w.scheme.group_size
    codes = unpack_words(w.words, w.scheme.bits, (k, n)).float() - w.scheme.symmetric_zero
    return codes * w.scales.float().repeat_interleave(size, dim=0)[:k]


def _experts_of(weights: ExpertWeights, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of each expert (as indices) and its weight."""
    places = places_of(ids.flatten(), None, weights.experts)
    for expert in range(weights.experts):
        pairs = (places == expert).nonzero().squeeze(1)
        if pairs.numel():
            yield pairs, _exact(weights.expert(expert))


def reference_products(
    x: torch.Tensor, w13: ExpertWeights, w2: ExpertWeights, route: Routes, activation: Activation
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp32, by pair: gate_up ``[pairs, 2 I]``, the activation rounded as kernels do ``[pairs, I]``, and
    down times the router weight ``[pairs, N]``."""
    pairs = route.ids.numel()
    first = torch.empty(pairs, w13.shape[1], device=x.device)
    for rows, weight in _experts_of(w13, route.ids):
        first[rows] = x[rows // route.ids.shape[1]].float() @ weight
    h = activation(*first.chunk(2, dim=1)).to(x.dtype)
    second = torch.empty(pairs, w2.shape[1], device=x.device)
    for rows, weight in _experts_of(w2, route.ids):
        second[rows] = h[rows].float() @ weight * route.weights.flatten()[rows, None]
    return first, h, second
