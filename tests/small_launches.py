"""Small launches of every kind of kernel, for the tools that watch a GPU program:

    compute-sanitizer --tool memcheck  python -m tests.small_launches
    compute-sanitizer --tool racecheck python -m tests.small_launches
    compute-sanitizer --tool initcheck python -m tests.small_launches

x lies at the very end of its allocation, so that reading past it is an error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

import swordfish as sf
from swordfish.dense.dequant import DequantConfig, fill
from tests.backends import exact, quantised
from tests.moe_layers import layer, routing

CASES: list[tuple[int, int, int, dict[str, Any]]] = [
    (1, 256, 64, {}),
    (1, 4096, 64, {}),
    (1, 512, 16384, {}),
    (2, 256, 72, {"act_order": True, "group_size": 64}),
    (3, 96, 8, {"group_size": 32}),
    (4, 512, 64, {"bits": 8}),
    (5, 256, 72, {"act_order": True, "group_size": 64}),
    (8, 2048, 128, {}),
    (8, 256, 20000, {}),
    (16, 320, 200, {"zeros": "integer", "group_size": 64}),
    (17, 192, 72, {"bias": True}),
    (33, 256, 128, {}),
    (64, 512, 256, {"bits": 8, "zeros": "integer"}),
    (100, 384, 192, {"dtype": torch.float16, "zeros": "offset", "group_size": 32}),
    (128, 256, 256, {"group_size": -1}),
    (130, 128, 66, {}),
    (300, 1024, 320, {"zeros": "integer"}),
    (2500, 192, 136, {"act_order": True, "group_size": 64}),
    (2500, 256, 100, {"bits": 8, "zeros": "offset", "bias": True}),
]

EXPERT_CASES: list[tuple[int, str, dict[str, Any]]] = [
    (1, "", {}),
    (3, "", {"zeros": "integer", "group_size": 64, "act_order": True}),
    (40, "", {"bits": 8, "bias": True}),
    (300, "", {"group_size": 32, "bias": True}),
    (300, "dense", {"zeros": "integer"}),
    (700, "dense", {"group_size": 64, "act_order": True, "bias": True}),
]
"""Tokens, the path asked for and scheme of an expert layer, one in four of whose ids is no expert at all."""

DEQUANT_CASES: list[tuple[DequantConfig, int, int, dict[str, Any]]] = [
    (DequantConfig(bulk=True), 192, 1096, {}),
    (DequantConfig(bulk=True), 96, 520, {"bits": 8, "zeros": "integer", "group_size": 32}),
    (DequantConfig(bulk=True), 256, 64, {"act_order": True, "group_size": 64}),
    (DequantConfig(width=2), 96, 70, {"group_size": 32}),
    (DequantConfig(transposed=True, width=4), 132, 72, {"zeros": "offset"}),
]
"""As ``fill`` is called for matrices of 200 MB, and in narrow stores."""

_PAGE = 2 << 20  # torch's allocator hands out blocks of this size


def launch(m: int, k: int, n: int, scheme: dict[str, Any]) -> float:
    """Relative error of one product."""
    w = quantised(k, n, device="cuda", **scheme)
    elements = -(-m * k * 2 // _PAGE) * _PAGE // 2
    x = torch.randn(elements, device="cuda").to(w.dtype)[-m * k :].view(m, k)
    y = sf.mm(x, w)
    reference = exact(x, w) + (0 if w.bias is None else w.bias.double())
    return float((y.double() - reference).norm() / reference.norm())


def launch_experts(m: int, path: str, scheme: dict[str, Any]) -> float:
    """Relative error of a layer."""
    made = layer(3, 192, 72, **scheme)
    os.environ["SWORDFISH_PATH"] = path
    there = made.to("cuda")
    weights, ids = routing(m, 2, 3)
    strange = torch.tensor([-1, 3, 1 << 20, -(1 << 31)], dtype=torch.int32)
    ids.view(-1)[::4] = strange[torch.arange(ids.view(-1)[::4].numel()) % 4]
    x = torch.randn(m, 192).to(made.w13.dtype)
    y = sf.moe(x.cuda(), there.w13, there.w2, weights.cuda(), ids.cuda()).cpu()
    os.environ["SWORDFISH_PATH"] = ""
    reference = made.exact(x, weights, ids, dense=path == "dense")
    return float((y.double() - reference).norm() / reference.norm())


def launch_dequantise(config: DequantConfig, k: int, n: int, scheme: dict[str, Any]) -> bool:
    """Whether values are right; the output ends with its allocation."""
    w = quantised(k, n, device="cuda", **scheme)
    elements = -(-k * n * 2 // _PAGE) * _PAGE // 2
    out = torch.zeros(elements, dtype=w.dtype, device="cuda")[-k * n :]
    out = out.view(n, k) if config.transposed else out.view(k, n)
    fill(w, out, config, 0, n, w.packed_k)
    return torch.equal(out.T if config.transposed else out, sf.dequantize(w.to("cpu")).cuda())


def main() -> int:
    wrong = 0
    for m, k, n, scheme in CASES:
        error = launch(m, k, n, scheme)
        wrong += not error < 3e-3
        print(f"{m:4d} x {k:5d} x {n:5d} {scheme} error {error:.1e}", flush=True)
    for m, path, scheme in EXPERT_CASES:
        error = launch_experts(m, path, scheme)
        wrong += not error < 4e-3
        print(f"{m:4d} tokens, 3 experts {path} {scheme} error {error:.1e}", flush=True)
    for config, k, n, scheme in DEQUANT_CASES:
        right = launch_dequantise(config, k, n, scheme)
        wrong += not right
        print(f"{config} {k} x {n} {scheme} {'right' if right else 'WRONG'}", flush=True)
    print(f"{len(CASES) + len(EXPERT_CASES) + len(DEQUANT_CASES)} launches, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
