"""One path of Swordfish each, whatever dispatch would choose: what a sweep compares the choices with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from bench.adapters.swordfish import Swordfish, scheme_of
from bench.shapes import Problem
from swordfish.calls import Call, DecodeCall
from swordfish.decode.choose_ring import choose_ring
from swordfish.decode.choose_wide import choose_wide
from swordfish.dense import DequantConfig, dense_mm
from swordfish.prefill import choose_prefill, launch_prefill, source, unsupported
from swordfish.runtime import DeviceProps, compile_many, device_props
from swordfish.runtime.registry import Source
from swordfish.scheme import Scheme

__all__ = ["PATHS", "Path"]

PATHS = ("ring", "wide", "prefill", "dense")

RING_ROWS = 64
"""Beyond, the ring kernel reads the weight more than four times and is never near the others."""


class Path(Swordfish):
    """A path with the configuration that its own rules choose."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.name = path, f"swordfish-{path}"

    def supports(self, problem: Problem, m: int) -> str | None:
        if self.path == "ring" and m > RING_ROWS:
            return f"timed up to {RING_ROWS} rows"
        if self.path == "prefill":
            return unsupported(problem.shape.n, problem.shape.k, scheme_of(problem), _props())
        return None

    def precompile(self, problems: Sequence[tuple[Problem, int]]) -> None:
        wanted = dict.fromkeys(
            source
            for problem, m in problems
            for source in _sources(self.path, m, problem.shape.n, problem.shape.k, scheme_of(problem))
        )
        compile_many([(source, _props().arch) for source in wanted])

    def run(self, state: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        _call(self.path, x.shape[0], state.shape[1], state.packed_k, state.scheme)(x, state, None, out)
        return out

    def describe(self, problem: Problem, m: int) -> str:
        return str(_config(self.path, m, problem.shape.n, problem.shape.k, scheme_of(problem)) or self.path)


def _props() -> DeviceProps:
    return device_props(torch.cuda.current_device())


def _config(path: str, m: int, n: int, k: int, scheme: Scheme) -> Any:
    """A configuration, or ``None`` for the dense path, which has none."""
    if path == "ring":
        return choose_ring(m, n, k, scheme, _props())[0]
    if path == "wide":
        return choose_wide(m, n, k, scheme, _props())[0]
    return choose_prefill(m, n, k, scheme, _props()).config if path == "prefill" else None


def _sources(path: str, m: int, n: int, k: int, scheme: Scheme) -> list[Source]:
    config = _config(path, m, n, k, scheme)
    if path == "dense":
        return [DequantConfig.for_product(scheme).source(scheme)]
    return [source(config) if path == "prefill" else config.source(scheme, k, n, bias=False)]


@functools.cache
def _call(path: str, m: int, n: int, k: int, scheme: Scheme) -> Call:
    config = _config(path, m, n, k, scheme)
    if path == "dense":
        return dense_mm
    if path == "prefill":
        return functools.partial(launch_prefill, config)
    return DecodeCall(config, scheme, m, k, n, bias=False, arch=_props().arch)
