"""The benchmark of expert layers, as far as it works without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.moe_data import MODELS, MoeShape, hidden_states, random_experts, reference_products, routes
from bench.moe_paths import crossing, table
from bench.moe_report import markdown
from swordfish.experts import ACTIVATIONS, moe
from swordfish.scheme import Scheme
from tests.moe_layers import assert_layer


def rows(m: int, times: dict[str, tuple[float, float, float]]) -> list[dict[str, Any]]:
    common = {"model": "a", "m": m, "active": 4.0, "bytes": 2e7, "workspace_bytes": 1 << 20, "error": ""}
    return [
        {**common, "impl": impl, "what": what, "us": us}
        for impl, parts in times.items()
        for what, us in zip(("gate_up", "down", "both"), parts, strict=True)
    ]


def test_ratios_are_to_the_best_peer() -> None:
    document = {
        "rows": [
            *rows(1, {"swordfish": (6.0, 4.0, 9.0), "x": (9.0, 9.0, 20.0), "y": (10.0, 5.0, 14.0)}),
            *rows(16, {"swordfish": (20.0, 10.0, 30.0), "x": (30.0, 9.0, 33.0), "y": (40.0, 5.0, 46.0)}),
        ]
    }
    published = [{"model": "a", "m": 1, "impl": "z", "gate_up_us": 7.0, "down_us": 5.0}]
    text = markdown(document, published)
    first, second = (line for line in text.splitlines() if line.startswith(("| 1 |", "| 16 |")))
    assert "| 6.0 + 4.0 | 10.0 | 9.0 | 2.22 |" in first and first.endswith("| 18.0 | 15.0 | 1.50 | 12.0 |")
    assert second.endswith("| 39.0 | 45.0 | 1.30 |  |")
    assert "`sum`, at 1, 4, 16, 64 tokens: geometric mean 1.40, least 1.30" in text
    assert "`both`, at 1, 4, 16, 64 tokens: geometric mean 1.31, least 1.10" in text


def test_a_contender_that_failed_has_no_time() -> None:
    broken = rows(1, {"swordfish": (6.0, 4.0, 9.0), "x": (9.0, 9.0, 20.0)})
    broken[3]["us"] = None
    assert "| 1.0 |  |  |" in markdown({"rows": broken})


@pytest.mark.parametrize("bits", [4, 8])
def test_reference_and_layer_agree(bits: int) -> None:
    """Packed directly as random words; what the kernels are checked against is what the layer computes."""
    model, scheme = MoeShape("small", 5, 2, 128, 64), Scheme(bits, 64, "bfloat16")
    w13 = random_experts(5, 128, 128, scheme, gated=True, device="cpu")
    w2 = random_experts(5, 64, 128, scheme, gated=False, device="cpu", seed=1)
    route = routes(model, 9, 1, device="cpu")[0]
    x = hidden_states(9, 128, torch.bfloat16, device="cpu")
    _, _, second = reference_products(x, w13, w2, route, ACTIVATIONS["silu"])
    y = moe(x, w13, w2, route.weights, route.ids)
    assert_layer(y, second.view(9, 2, 128).sum(1).double())
    assert 0.05 < float(y.float().std()) < 5


def test_active_bytes_count_codes_and_scales() -> None:
    model = MODELS["mixtral-8x7b"]
    scheme = Scheme(4, 128, "bfloat16")
    small = MoeShape("small", 1, 1, 256, 128)
    made = [random_experts(1, 256, 256, scheme, gated=True, device="cpu")]
    made.append(random_experts(1, 128, 256, scheme, gated=False, device="cpu"))
    assert sum(w.nbytes for w in made) == small.active_bytes(1)
    assert model.active_bytes(2) == 2 * model.active_bytes(1)


def test_where_paths_cross() -> None:
    """Between the last point that is slower and the next one; a later one that is slower counts."""
    ascending = [(512.0, 1.0, 1.2), (1024.0, 1.0, 0.9), (2048.0, 1.0, 0.8)]
    assert crossing(ascending) == pytest.approx(512 + 512 * 0.2 / 0.3)
    assert crossing([*ascending, (4096.0, 1.0, 1.0)]) is None
    assert crossing([(100.0, 1.0, 0.5), *ascending]) == crossing(ascending)
    assert crossing(ascending[1:]) == 1024.0 and crossing([]) is None


def test_table_of_paths() -> None:
    """A line per model and tokens with both widths, and where dense becomes the faster one."""
    rows = [
        {"model": "small", "bits": bits, "m": m, "rows": m / 2, "us": {"decode": decode, "dense": 100.0}}
        for bits in (4, 8)
        for m, decode in ((100, 50.0 * bits / 4), (200, 150.0))
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| small | 50 | 100 | 50 | 100 | 0.50 | 100 | 100 | 1.00 |"
    assert lines[3] == "|  | 100 | 200 | 150 | 100 | 1.50 | 150 | 100 | 1.50 |"
    assert lines[-1].startswith("Rows of an expert where they cross: small int4 ")
    assert len({line.count("|") for line in lines[:4]}) == 1
