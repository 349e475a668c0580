"""Humming's indexed expert GEMMs, with its own heuristics; see ``bench.adapters.humming``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.adapters.base import pack_rows
from bench.adapters.humming import COMPILE_THREADS, LOCKS
from bench.moe_data import MoeShape, Routes
from swordfish.experts import ExpertWeights
from swordfish.layouts.packing import unpack_words
from swordfish.scheme import Scheme

__all__ = ["HummingExperts"]

WHICH = ("gate_up", "down")


class HummingExperts:
    """gate_up and down of one model: outputs by pair, ``[M * top_k, N]``, no activation and router weights.

    ``pdl`` adds programmatic dependent launch.
    """

    def __init__(self, model: MoeShape, scheme: Scheme, *, pdl: bool = False) -> None:
        self.model, self.scheme, self.pdl = model, scheme, pdl
        h, i = model.hidden, model.intermediate
        self._shapes = {"gate_up": (2 * i, h), "down": (h, i)}
        self._schema = importlib.import_module("humming.schema").HummingWeightSchema(
            b_dtype=f"uint{scheme.bits}",
            weight_scale_group_size=max(scheme.group_size, 0),
            has_zero_point=False,
        )
        self._configs: dict[str, Any] = {}
        self._kernels: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        self._locks = torch.zeros(LOCKS, dtype=torch.int32, device="cuda")

    def prepare(self, which: str, weights: ExpertWeights) -> dict[str, torch.Tensor]:
        """Humming's tensors of the same codes and scales."""
        transform = importlib.import_module("humming.transform")
        n, k = self._shapes[which]
        words = torch.empty(weights.experts, n, k * self.scheme.bits // 32, dtype=torch.int32, device="cuda")
        scales = torch.empty(weights.experts, n, self.scheme.groups(k), dtype=weights.dtype, device="cuda")
        for expert in range(weights.experts):
            w = weights.expert(expert)
            words[expert] = pack_rows(unpack_words(w.words, self.scheme.bits, (k, n)), self.scheme.bits).T
            scales[expert] = w.scales.T
        schema, tensors = self._schema.convert_symmetric_integer_weight(
            {"weight": words, "weight_scale": scales}
        )
        self._configs[which] = transform.prepare_layer_config(
            shape_n=n,
            shape_k=k,
            weight_schema=schema,
            num_experts=weights.experts,
            torch_dtype=weights.dtype,
            device=torch.cuda.current_device(),
        )
        return dict(transform.transform_humming_tensors(self._configs[which], tensors))

    def tuning(self, which: str, m: int) -> dict[str, Any]:
        """What its heuristics choose for this many tokens."""
        tune = importlib.import_module("humming.tune")
        config, device = self._configs[which], torch.cuda.current_device()
        pairs = m * self.model.top_k
        sampled = tune.get_heuristics_class(device).get_shape_m_sample(config, pairs)
        chosen = tune.get_heuristics_config(config, shape_m=sampled, gemm_type="indexed", device=device)
        return dict(chosen) | ({"use_pdl": True} if self.pdl else {})

    def compile(self, ms: Sequence[int]) -> None:
        """Compile for these numbers of tokens, side by side."""
        with ThreadPoolExecutor(COMPILE_THREADS) as pool:
            list(pool.map(lambda job: self.kernel(*job), [(which, m) for which in WHICH for m in ms]))

    def kernel(self, which: str, m: int) -> tuple[torch.Tensor, int]:
        """The kernel for this many tokens and the rows of its blocks."""
        if (which, m) not in self._kernels:
            kernel = importlib.import_module("humming.kernel.humming").HummingKernel
            config = importlib.import_module("humming.config")
            tuning = self.tuning(which, m)
            compute = config.ComputeConfig(gemm_type="indexed").to_str()
            prepared = kernel.prepare_kernels(
                self._configs[which].to_str(), compute, tuning, torch.cuda.current_device()
            )
            self._kernels[which, m] = prepared, int(tuning["block_shape"][0])
        return self._kernels[which, m]

    def route(self, which: str, m: int, route: Routes) -> dict[str, torch.Tensor]:
        """Its sorted ids, padded to whole blocks with the number of pairs, and the experts of the blocks."""
        rows, ids = self.kernel(which, m)[1], route.ids.flatten()
        order = ids.argsort(stable=True)
        counts = ids.long().bincount(minlength=self.model.experts)
        blocks = -(-counts // rows)
        first = (blocks.cumsum(0) - blocks) * rows
        place = torch.arange(len(ids), device=ids.device) - (counts.cumsum(0) - counts)[ids[order].long()]
        sorted_ids = torch.full((int(blocks.sum()) * rows,), len(ids), dtype=torch.int32, device=ids.device)
        sorted_ids[first[ids[order].long()] + place] = order.int()
        experts = torch.arange(self.model.experts, device=ids.device, dtype=torch.int32)
        return {
            "sorted_ids": sorted_ids,
            "expert_ids": experts.repeat_interleave(blocks),
            "num_tokens_padded": torch.tensor(len(sorted_ids), dtype=torch.int32, device=ids.device),
        }

    def run(
        self,
        which: str,
        m: int,
        state: dict[str, torch.Tensor],
        route: dict[str, torch.Tensor],
        x: torch.Tensor,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """One launch; ``x`` by token for gate_up, by pair for down."""
        importlib.import_module("humming.ops.launcher").launch_kernel(
            configs=self.kernel(which, m)[0],
            inputs=x,
            weight=state["weight"],
            weight_scale=state["weight_scale"],
            weight_scale_2=state.get("weight_scale_2"),
            outputs=out,
            locks=self._locks,
            top_k=self.model.top_k if which == "gate_up" else 1,
            **route,
        )
        return out
