"""Bias, dtypes, autocast and inference mode (C42, C43), and that equal inputs give equal bits (C23)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import swordfish as sf
from tests.products import EVERYWHERE, PLACES, assert_product, device_of, layer, place

K = 128


def bias_only(n: int, bias: torch.Tensor | None, *, act_order: bool = False) -> sf.PackedWeight:
    """All weights are zero, so that a result is the bias."""
    g_idx = (torch.randperm(K, generator=torch.Generator().manual_seed(1)) // 64).int() if act_order else None
    codes = torch.full((K, n), 8, dtype=torch.uint8)
    return sf.pack(
        codes, torch.ones(2, n), g_idx=g_idx, bits=4, group_size=64, dtype=torch.float16, bias=bias
    )


# --- C42


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize(("n", "act_order"), [(256, False), (200, True)])
def test_c42_each_row_is_the_bias_once(where: str, n: int, act_order: bool) -> None:
    bias = torch.arange(n).float()
    w = bias_only(n, bias, act_order=act_order).to(device_of(where))
    for m in (1, 16, 65) if where in PLACES else (1, 17):
        x = torch.randn(m, K).half().to(device_of(where))
        with place(where):
            y = sf.mm(x, w)
        assert torch.equal(y.cpu(), bias.half().expand(m, n))


@pytest.mark.parametrize("where", EVERYWHERE)
def test_c42_bias_of_any_dtype_and_stride_is_added_before_rounding(where: str) -> None:
    """1 + 2^-11 + 2^-11 is 1 + 2^-10 when rounded once, but 1 when the product is rounded first."""
    device = device_of(where)
    codes = torch.full((64, 8), 9, dtype=torch.uint8)
    w = sf.pack(codes, torch.ones(1, 8), bits=4, group_size=-1, dtype=torch.float16).to(device)
    x = torch.zeros(1, 64)
    x[0, :2] = torch.tensor([1.0, 2.0**-11])
    wide = torch.full((16,), torch.nan)
    wide[::2] = 2.0**-11
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        with place(where):
            y = sf.mm(x.half().to(device), w, bias=wide.to(dtype).to(device)[::2])
        assert y.tolist() == [[1 + 2.0**-10] * 8]


def test_c42_row_parallel_shards_add_the_bias_once() -> None:
    bias = torch.arange(64.0)
    whole = bias_only(64, bias)
    shards = [whole.shard("k", rank, 2) for rank in range(2)]
    assert shards[0].bias is not None and shards[1].bias is None
    x = torch.randn(3, K).half()
    y = sf.mm(x[:, :64], shards[0]) + sf.mm(x[:, 64:], shards[1])
    assert torch.equal(y, bias.half().expand(3, 64))
    parts = [sf.mm(x, whole.shard("n", 0, 1)), sf.mm(x, sf.PackedWeight.cat([whole, bias_only(8, None)]))]
    assert torch.equal(parts[1][:, :64], parts[0]) and not parts[1][:, 64:].any()


def test_c42_no_bias_from_nowhere() -> None:
    w = bias_only(64, None)
    assert w.bias is None and sf.Linear(w).bias is None
    assert not sf.mm(torch.randn(3, K).half(), w).any()


# --- C43


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.bfloat16])
def test_c43_another_dtype_is_refused_naming_both(dtype: torch.dtype) -> None:
    x = torch.ones(2, K).to(dtype)
    for call in (sf.Linear(bias_only(64, None)), lambda x: sf.mm(x, bias_only(64, None))):
        with pytest.raises(
            sf.ArgumentTypeError, match=rf"^x.dtype={dtype} is not .* expected torch.float16, for"
        ):
            call(x)


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_c43_scales_of_another_dtype_are_rounded_once(scales: torch.dtype, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (K, 64), dtype=torch.uint8, generator=g)
    table = (torch.rand(1, 64, generator=g) * 0.015 + 0.005).to(scales)
    w = sf.pack(codes, table, bits=4, group_size=-1, dtype=dtype)
    x = torch.randn(4, K, generator=g).to(dtype)
    assert_product(sf.mm(x, w), x, (codes.double() - 8) * table.to(dtype).double())


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_c43_autocast_casts_to_the_dtype_of_the_weight(
    where: str, dtype: torch.dtype, autocast: torch.dtype
) -> None:
    """Whichever dtype autocast prefers: the weight was packed for one."""
    device = device_of(where)
    made = layer(K, 64, dtype=dtype, device=device)
    x = torch.randn(3, K, device=device)
    with torch.autocast(device, dtype=autocast):
        results = [
            sf.mm(x.to(given), made.weight) for given in (torch.float32, torch.float16, torch.bfloat16)
        ]
        with pytest.raises(sf.ArgumentTypeError, match=r"^x.dtype=torch.int32 is not allowed"):
            sf.mm(x.int(), made.weight)
        with torch.autocast(device, enabled=False), pytest.raises(sf.ArgumentTypeError, match=r"^x.dtype="):
            sf.mm(x, made.weight)
    assert {y.dtype for y in results} == {dtype}
    assert_product(results[0], x.to(dtype), made.values)


def test_c43_gradients_cross_the_cast_of_autocast() -> None:
    made = layer(K, 64, dtype=torch.bfloat16)
    x = torch.randn(3, K, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sf.mm(x, made.weight).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad[0].double(), made.values.sum(1), rtol=2e-2, atol=2e-2)


def test_c43_inference_mode() -> None:
    """Weights made outside serve inside, and the reverse."""
    outside = layer(K, 64)
    x = torch.randn(3, K).half()
    with torch.inference_mode():
        inside = layer(K, 64)
        assert_product(sf.mm(x.clone(), outside.weight), x, outside.values)
    y = sf.mm(x.clone().requires_grad_(), inside.weight)
    y.sum().backward()
    assert_product(y.detach(), x, inside.values)


# --- C23


@pytest.mark.parametrize("where", EVERYWHERE)
def test_c23_equal_inputs_give_equal_bits(where: str) -> None:
    """Whatever ran in between, and in whatever order the warps are scheduled."""
    device = device_of(where)
    made = layer(2048, 64, dtype=torch.bfloat16, device=device)
    a, b = (torch.randn(2, 2048).bfloat16().to(device) for _ in range(2))
    results: list[Any] = []
    for seed in range(50 if where == "cuda" else 3):
        with sf.emulate(where, seed=seed) if where.startswith("sm_") else place(where):
            results.append(sf.mm(a, made.weight))
            sf.mm(b, made.weight)
    assert all(torch.equal(results[0], y) for y in results)
    assert_product(results[0], a, made.values)
