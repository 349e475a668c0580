"""Small launches of every kind of kernel, for the tools that watch a GPU program:

    compute-sanitizer --tool memcheck  python -m tests.small_launches
    compute-sanitizer --tool racecheck python -m tests.small_launches

x lies at the very end of its allocation, so that reading past it is an error.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import swordfish as sf
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

EXPERT_CASES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (3, {"zeros": "integer", "group_size": 64, "act_order": True}),
    (40, {"bits": 8, "bias": True}),
    (300, {"group_size": 32, "bias": True}),
]
"""Tokens and scheme of an expert layer, one in four of whose ids is no expert at all."""

_PAGE = 2 << 20  # torch's allocator hands out blocks of this size


def launch(m: int, k: int, n: int, scheme: dict[str, Any]) -> float:
    """Relative error of one product."""
    w = quantised(k, n, device="cuda", **scheme)
    elements = -(-m * k * 2 // _PAGE) * _PAGE // 2
    x = torch.randn(elements, device="cuda").to(w.dtype)[-m * k :].view(m, k)
    y = sf.mm(x, w)
    reference = exact(x, w) + (0 if w.bias is None else w.bias.double())
    return float((y.double() - reference).norm() / reference.norm())


def launch_experts(m: int, scheme: dict[str, Any]) -> float:
    """Relative error of a layer."""
    made = layer(3, 192, 72, **scheme)
    there = made.to("cuda")
    weights, ids = routing(m, 2, 3)
    strange = torch.tensor([-1, 3, 1 << 20, -(1 << 31)], dtype=torch.int32)
    ids.view(-1)[::4] = strange[torch.arange(ids.view(-1)[::4].numel()) % 4]
    x = torch.randn(m, 192).to(made.w13.dtype)
    y = sf.moe(x.cuda(), there.w13, there.w2, weights.cuda(), ids.cuda()).cpu()
    reference = made.exact(x, weights, ids)
    return float((y.double() - reference).norm() / reference.norm())


def main() -> int:
    wrong = 0
    for m, k, n, scheme in CASES:
        error = launch(m, k, n, scheme)
        wrong += not error < 3e-3
        print(f"{m:4d} x {k:5d} x {n:5d} {scheme} error {error:.1e}", flush=True)
    for m, scheme in EXPERT_CASES:
        error = launch_experts(m, scheme)
        wrong += not error < 4e-3
        print(f"{m:4d} tokens, 3 experts {scheme} error {error:.1e}", flush=True)
    print(f"{len(CASES) + len(EXPERT_CASES)} launches, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
