"""Every boundary along M on a GPU, for every kind of scheme, against the exact product per column."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.dispatch import plan, props_of
from swordfish.runtime import compile_many
from tests.backends import exact, quantised

pytestmark = pytest.mark.gpu

ROWS = (
    1,
    2,
    3,
    4,
    5,
    8,
    9,
    15,
    16,
    17,
    24,
    25,
    32,
    33,
    48,
    49,
    64,
    65,
    80,
    96,
    97,
    112,
    113,
    128,
    129,
    144,
    145,
    200,
    288,
    300,
    561,
)

SCHEMES: list[dict[str, Any]] = [
    {},
    {"bits": 8},
    {"zeros": "integer", "group_size": 64},
    {"zeros": "offset", "group_size": 32},
    {"dtype": torch.float16},
    {"act_order": True, "group_size": 64},
    {"group_size": -1, "bias": True},
]


@pytest.mark.parametrize(("k", "n"), [(320, 200), (4096, 1024), (1088, 4160)])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_rows(k: int, n: int, scheme: dict[str, Any]) -> None:
    w = quantised(k, n, device="cuda", **scheme)
    props = props_of(w.device)
    assert props is not None
    configs = {plan(m, n, w.packed_k, w.scheme, props).config for m in ROWS}
    sources = [c.source(w.scheme, w.packed_k, n, bias=w.bias is not None) for c in configs if c is not None]
    compile_many([(source, props.arch) for source in sources])
    x = torch.randn(max(ROWS), k, device="cuda").to(w.dtype)
    reference = exact(x, w) + (0 if w.bias is None else w.bias.double())
    # One rounding of the output; fp32 sums leave 2^-19 of the size of the terms, here about 1 in all.
    bound = reference.abs() * (2.0**-8 if w.dtype == torch.bfloat16 else 2.0**-11) + 2e-3
    for m in ROWS:
        y = sf.mm(x[:m], w)
        worst = ((y.double() - reference[:m]).abs() / bound[:m]).max(0).values
        assert worst.max() <= 1, f"M={m}, column {int(worst.argmax())}: {float(worst.max()):.2f} of the bound"
        assert torch.equal(y, sf.mm(x[:m], w)), f"M={m}: another run gives other bits"
