"""Shapes, shards and groups that have broken software like this; docs/cases.md explains the numbers."""

from __future__ import annotations

import pytest
import torch

import swordfish as sf
from swordfish.decode import RingConfig
from tests.products import EVERYWHERE, PLACES, assert_product, device_of, layer, place

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])


def rows(m: int, k: int, dtype: torch.dtype = torch.float16, device: str = "cpu") -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(dtype).to(device)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("m", [1, 16, 200])
def test_c01_k_is_no_multiple_of_128(where: str, m: int) -> None:
    made = layer(10944, 64, group_size=64, zeros=True, device=device_of(where))
    x = rows(m, 10944, device=device_of(where))
    assert_product(sf.mm(x, made.weight), x, made.values)


@pytest.mark.parametrize(("k", "world"), [(384, 2), (29568, 2), (13696, 2), (11008, 4), (18944, 8)])
def test_c02_shards_that_cut_a_group_add_up(k: int, world: int) -> None:
    """Shards copied out of the packed weight; shards packed on their own are in test_formats_checks."""
    made = layer(k, 64)
    x = rows(3, k)
    shards = [made.weight.shard("k", rank, world) for rank in range(world)]
    assert {shard.shape for shard in shards} == {(k // world, 64)}
    assert torch.equal(torch.cat([sf.dequantize(shard) for shard in shards]), made.values.half())
    parts = x.view(3, world, -1).unbind(1)
    for part, shard, values in zip(parts, shards, made.values.chunk(world), strict=True):
        assert_product(sf.mm(part, shard), part, values)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("n", [1, 8, 24, 32, 48, 72, 96])
def test_c03_tiny_or_odd_n(where: str, n: int) -> None:
    made = layer(2048, n, zeros=n % 8 == 0, device=device_of(where))
    for m in (1, 7, 33):
        x = rows(m, 2048, device=device_of(where))
        y = sf.mm(x, made.weight)
        assert y.shape == (m, n)
        assert_product(y, x, made.values)


@pytest.mark.parametrize(("where", "n", "m"), [("sm_90a", 1, 7), ("sm_100a", 24, 1)])
def test_c03_tiny_n_on_kernels(where: str, n: int, m: int) -> None:
    made, x = layer(256, n), rows(m, 256)
    with place(where):
        assert_product(sf.mm(x, made.weight), x, made.values)


@pytest.mark.parametrize(("k", "group_size"), [(2048, 32), (18944, 128)])
@pytest.mark.parametrize("where", [*PLACES, "sm_90a"])
def test_c04_more_groups_than_the_group_size(where: str, k: int, group_size: int) -> None:
    made = layer(k, 64, group_size=group_size, device=device_of(where))
    assert made.weight.scales.shape[0] > group_size
    x = rows(2, k, device=device_of(where))
    x[1, :-64] = 0  # only the last groups carry signal
    with place(where):
        y = sf.mm(x, made.weight)
    assert y[1].abs().min() > 0
    assert_product(y, x, made.values)


def test_c05_row_shards_with_act_order_and_the_full_scale_table() -> None:
    """Rows 256 r to 256 r + 255 of 1024 in random groups of 32, each shard with all 32 scale rows."""
    k, n, size = 1024, 64, 256
    g = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (k, n), dtype=torch.uint8, generator=g)
    scales = (torch.rand(k // 32, n, generator=g) * 0.015 + 0.005).half()
    g_idx = (torch.randperm(k, generator=g) // 32).int()
    values = (codes.double() - 8) * scales.double()[g_idx.long()]
    for start in range(0, k, size):
        part = slice(start, start + size)
        w = sf.pack(codes[part], scales, g_idx=g_idx[part], bits=4, group_size=32, dtype=torch.float16)
        for m in (1, 17, 64):
            x = rows(m, size)
            assert_product(sf.mm(x, w), x, values[part])
    # The last shard has rows of padding (-1 in the permutation); kernels read 0 there, whatever x holds.
    assert w.packed_k > size
    for where, m in (("sm_90a", 1), ("sm_100a", 5)):
        x = rows(m, size)
        with place(where):
            assert_product(sf.mm(x, w), x, values[part])


@HALVES
@pytest.mark.parametrize("bits", [4, 8])
def test_c08_channelwise_in_every_spelling(bits: int, dtype: torch.dtype) -> None:
    made = [layer(4096, 64, bits=bits, group_size=size, dtype=dtype) for size in (-1, None, 4096)]
    assert {m.weight.scheme.group_size for m in made} == {-1}
    for m in (1, 16, 256):
        x = rows(m, 4096, dtype)
        results = [sf.mm(x, one.weight) for one in made]
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
        assert_product(results[0], x, made[0].values)


@pytest.mark.parametrize("group_size", [0, -2, 16, 48])
def test_c08_other_group_sizes_raise(group_size: int) -> None:
    codes, scales = torch.zeros(96, 8, dtype=torch.uint8), torch.ones(2, 8)
    with pytest.raises(sf.ArgumentError, match=rf"^group_size={group_size} is not allowed: expected -1"):
        sf.pack(codes, scales, bits=4, group_size=group_size, dtype=torch.float16)


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("m", [1, 16])
def test_c13_partial_sums_overflow_but_the_result_does_not(where: str, m: int) -> None:
    """Weights of 1, x of +40 then -40: prefix sums reach 327680, far beyond fp16."""
    k, n = 16384, 64
    codes = torch.full((k, n), 9, dtype=torch.uint8)
    w = sf.pack(codes, torch.ones(k // 128, n), bits=4, group_size=128, dtype=torch.float16)
    x = torch.full((m, k), 40.0)
    x[:, k // 2 :] = -40.0
    x = (x + torch.randn(m, k, generator=torch.Generator().manual_seed(1)) * 0.5).half().to(device_of(where))
    with place(where):
        y = sf.mm(x, w.to(device_of(where)))
    exact = x.double().cpu().sum(1, keepdim=True)
    assert y.isfinite().all() and exact.abs().max() < 400
    # fp32 sums of terms up to 40 whose prefixes reach 2^18.3: K/16 roundings of up to 2^-6 each.
    assert (y.double().cpu() - exact).abs().max() <= k / 16 * 2.0**-6


@pytest.mark.parametrize("where", [*PLACES, "sm_100a"])
def test_c13_results_beyond_fp16_are_infinite(where: str) -> None:
    codes = torch.full((512, 8), 9, dtype=torch.uint8)
    w = sf.pack(codes, torch.ones(1, 8), bits=4, group_size=-1, dtype=torch.float16).to(device_of(where))
    x = torch.full((2, 512), 200.0).half().to(device_of(where))
    x[1] *= -1
    with place(where):
        y = sf.mm(x, w)
    assert torch.equal(y.cpu(), torch.tensor([[torch.inf], [-torch.inf]]).expand(2, 8).half())


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("k", "n"), [(256, 128), (256, 384), (512, 256)])
def test_c14_row_counts_around_every_tile_edge(where: str, k: int, n: int) -> None:
    made = layer(k, n, zeros=True, device=device_of(where))
    edges = (16, 32, 48, 64, 128, 256)
    for m in sorted({1, 2, 3, 7, 8, 9, 96, *(edge + d for edge in edges for d in (-1, 0, 1))}):
        x = rows(m, k, device=device_of(where))
        assert_product(sf.mm(x, made.weight), x, made.values)


def test_c18_grid_axes_hold_a_million_rows() -> None:
    """16 * 65537 rows: the row tiles of the ring kernel are on the axis that takes 2^31 CTAs. The wide kernel
    is launched for 128 rows at a time."""
    scheme, m = sf.Scheme(4, 128, "bfloat16"), 1_048_592
    assert RingConfig(16).launch_config(scheme, m, 128, 128).grid == (65537, 2, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["decode", "dense"])
def test_c18_a_million_rows_on_the_gpu(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWORDFISH_PATH", path)
    m = 1_048_592
    made = layer(128, 128, device="cuda")
    x = torch.randn(m, 128, device="cuda").half()
    y = sf.mm(x, made.weight)
    torch.cuda.synchronize()
    values = made.values if path == "decode" else sf.dequantize(made.weight).double().cpu()
    for part in (slice(0, 64), slice(m - 64, m)):
        assert_product(y[part], x[part], values)
    assert y.isfinite().all()
