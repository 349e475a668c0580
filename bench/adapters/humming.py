"""Humming (``pip install humming-kernels``, Apache-2.0): JIT-compiled kernels, used with its own heuristics.

Weights go through Humming's own schema and transform, with our codes and scales; a launch uses the kernel
that its heuristics choose for this M, as ``HummingLayer`` would, without the Python around it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.adapters.base import Adapter, pack_rows
from bench.data import Weight
from bench.shapes import Problem

__all__ = ["Humming"]

LOCKS = 2048
COMPILE_THREADS = 16


class Humming(Adapter):
    """Humming's default for the device; ``pdl`` adds programmatic dependent launch, which its defaults leave
    off for dense layers on Hopper."""

    def __init__(self, pdl: bool = False) -> None:
        self.name = "humming-pdl" if pdl else "humming"
        self._pdl = pdl
        self._configs: dict[str, Any] = {}
        self._kernels: dict[tuple[str, int], torch.Tensor] = {}

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA device"
        try:
            importlib.import_module("humming.transform")
        except Exception as error:  # a broken dependency of an optional package must not stop the others
            return f"not importable: {error}"
        return None

    def supports(self, problem: Problem, m: int) -> str | None:
        return "act-order is not supported" if problem.act_order else None

    def precompile(self, problems: Sequence[tuple[Problem, int]]) -> None:
        # One job per distinct kernel. Its compiler is a subprocess, so threads are enough to use every core.
        jobs: dict[tuple[str, str], int] = {}
        for problem, m in problems:
            config = self._register(self._layer_config(problem))
            jobs.setdefault((config, str(self._tuning(self._configs[config], m))), m)
        with ThreadPoolExecutor(COMPILE_THREADS) as pool:
            for job in [pool.submit(self._kernel, config, m) for (config, _), m in jobs.items()]:
                job.result()

    def prepare(self, weight: Weight) -> dict[str, Any]:
        transform = importlib.import_module("humming.transform")
        problem = weight.problem
        tensors = {
            "weight": pack_rows(weight.codes, problem.bits).T.contiguous(),
            "weight_scale": weight.scales.T.contiguous(),
        }
        if weight.zeros is not None:
            tensors["zero_point"] = pack_rows(weight.zeros.T, problem.bits).contiguous()
        schema, tensors = self._schema(problem).convert_symmetric_integer_weight(tensors)
        config = self._layer_config(problem, schema)
        state: dict[str, Any] = dict(transform.transform_humming_tensors(config, tensors))
        state["locks"] = torch.zeros(LOCKS, dtype=torch.int32, device=weight.codes.device)
        state["config"] = self._register(config)
        return state

    def run(self, state: dict[str, Any], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        launcher = importlib.import_module("humming.ops.launcher")
        launcher.launch_kernel(
            configs=self._kernel(state["config"], x.shape[0]),
            inputs=x,
            weight=state["weight"],
            weight_scale=state["weight_scale"],
            weight_scale_2=state.get("weight_scale_2"),
            zero_point=state.get("zero_point"),
            outputs=out,
            locks=state["locks"],
        )
        return out

    def describe(self, problem: Problem, m: int) -> str:
        return str(self._tuning(self._layer_config(problem), m))

    @staticmethod
    def _schema(problem: Problem) -> Any:
        schemas = importlib.import_module("humming.schema")
        return schemas.HummingWeightSchema(
            b_dtype=f"uint{problem.bits}",
            weight_scale_group_size=max(problem.group_size, 0),
            has_zero_point=problem.zeros,
        )

    def _layer_config(self, problem: Problem, schema: Any = None) -> Any:
        transform = importlib.import_module("humming.transform")
        return transform.prepare_layer_config(
            shape_n=problem.shape.n,
            shape_k=problem.shape.k,
            weight_schema=self._schema(problem) if schema is None else schema,
            torch_dtype=problem.torch_dtype,
            device=torch.cuda.current_device(),
        )

    def _tuning(self, config: Any, m: int) -> dict[str, Any]:
        tune = importlib.import_module("humming.tune")
        device = torch.cuda.current_device()
        sampled = tune.get_heuristics_class(device).get_shape_m_sample(config, m)
        tuning = dict(tune.get_heuristics_config(config, shape_m=sampled, device=device))
        return tuning | {"use_pdl": True} if self._pdl else tuning

    def _register(self, config: Any) -> str:
        # A state holds the text: states are cloned, and Humming's config objects are not ours to copy.
        text = str(config.to_str())
        self._configs.setdefault(text, config)
        return text

    def _kernel(self, config: str, m: int) -> torch.Tensor:
        if (config, m) not in self._kernels:
            kernel = importlib.import_module("humming.kernel.humming").HummingKernel
            tuning = self._tuning(self._configs[config], m)
            self._kernels[config, m] = kernel.prepare_kernels(
                config, None, tuning, torch.cuda.current_device()
            )
        return self._kernels[config, m]
