"""Storage of activations, results and weights: offsets, strides, empty work, what packing keeps alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import swordfish as sf
from tests.products import EVERYWHERE, PLACES, device_of, layer, place

K, N = 512, 72
ORDERS = pytest.mark.parametrize("act_order", [False, True], ids=["natural", "act-order"])


def made(where: str, act_order: bool, **options: Any) -> sf.PackedWeight:
    return layer(K, N, group_size=64, act_order=act_order, device=device_of(where), **options).weight


def noise(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).half().to(device)


# --- C16: contiguous, but the address is not a multiple of 16


@ORDERS
@pytest.mark.parametrize("where", [*PLACES, "sm_90a"])
def test_c16_storage_offsets(where: str, act_order: bool) -> None:
    device = device_of(where)
    w = made(where, act_order)
    for m in (1, 65) if where in PLACES else (1, 3):
        base, results = noise(m * K + 8, device=device), torch.empty(m * N + 8).half().to(device)
        for j in (1, 2, 4):
            x, out = base[j : j + m * K].view(m, K), results[j : j + m * N].view(m, N)
            bias = noise(N + 8, device=device)[j : j + N]
            with place(where):
                expected = sf.mm(x.clone(), w, bias=bias.clone())
                assert torch.equal(sf.mm(x, w, bias=bias, out=out), expected)


def test_c16_offsets_of_what_is_packed() -> None:
    """Codes, scales and zero points that begin anywhere in their storage give the same packed weight."""
    codes = torch.randint(0, 16, (64, 73), dtype=torch.uint8)[:, 1:]
    scales, zeros = torch.rand(2, 73)[:, 1:], torch.randint(0, 16, (2, 73))[:, 1:]
    options: dict[str, Any] = {"bits": 4, "group_size": 32, "dtype": torch.float16}
    views = sf.pack(codes, scales, zeros, **options)
    copies = sf.pack(codes.clone(), scales.clone(), zeros.clone(), **options)
    assert torch.equal(views.words, copies.words)
    assert torch.equal(views.scale_rows, copies.scale_rows)
    assert views.zero_rows is not None and torch.equal(views.zero_rows, copies.zero_rows)


# --- C17: activations of any strides

VIEWS: dict[str, Callable[[int, str], torch.Tensor]] = {
    "first columns": lambda m, device: noise(m, K + 128, device=device)[:, :K],
    "later columns": lambda m, device: noise(m, K + 128, device=device)[:, 64 : 64 + K],
    "odd columns": lambda m, device: noise(m, K + 5, device=device)[:, 3 : 3 + K],
    "transposed": lambda m, device: noise(K, m, device=device).t(),
    "expanded": lambda m, device: noise(1, K, device=device).expand(m, K),
    "every other column": lambda m, device: noise(m, 2 * K, device=device)[:, ::2],
    "slice in three dimensions": lambda m, device: noise(m, 3, K + 8, device=device)[:, 1:, 8:],
    "one row of many": lambda m, device: noise(m, 7, K, device=device)[:, 2],
}


@ORDERS
@pytest.mark.parametrize("m", [1, 33])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("view", VIEWS)
def test_c17_strided_activations(view: str, where: str, m: int, act_order: bool) -> None:
    w = made(where, act_order)
    x = VIEWS[view](m, device_of(where))
    assert torch.equal(sf.mm(x, w), sf.mm(x.contiguous(), w))


@pytest.mark.parametrize(
    ("where", "m", "act_order"), [("sm_100a", 2, False), ("sm_100a", 2, True), ("sm_90a", 20, False)]
)
def test_c17_strided_activations_on_kernels(where: str, m: int, act_order: bool) -> None:
    w = made(where, act_order)
    with place(where):
        for name, view in VIEWS.items():
            x = view(m, "cpu")
            assert torch.equal(sf.mm(x, w), sf.mm(x.contiguous(), w)), name


# --- C25: zero rows


@ORDERS
@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("leading", [(0,), (2, 0), (0, 0), (0, 3)], ids=str)
def test_c25_zero_rows(leading: tuple[int, ...], where: str, act_order: bool) -> None:
    device = device_of(where)
    for bias in (None, torch.ones(N)):
        w = made(where, act_order, bias=bias)
        x = torch.empty(*leading, K).half().to(device)
        with place(where) as emulation:
            y = sf.mm(x, w)
            out = torch.empty(*leading, N).half().to(device)
            assert sf.mm(x, w, out=out) is out
            assert sf.Linear(w)(x).shape == y.shape
        assert y.shape == (*leading, N) and y.dtype == x.dtype and y.device == x.device
        assert emulation is None or not emulation.reports  # type: ignore[attr-defined]
    x.requires_grad_()
    sf.mm(x, w).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_c25_explain_says_so() -> None:
    assert str(sf.explain(layer(K, N).weight, 0)) == "empty: no rows: nothing is launched"
    with pytest.raises(sf.ArgumentError, match=r"^m=-1 is not allowed: expected 0 or more"):
        sf.explain(layer(K, N).weight, -1)


# --- C37: what packing keeps


def test_c37_sources_are_not_kept_alive() -> None:
    codes = torch.randint(0, 16, (256, 128), dtype=torch.uint8)
    scales, zeros = torch.rand(4, 128).half(), torch.randint(0, 16, (4, 128))
    g_idx, bias = (torch.randperm(256) // 64).int(), torch.rand(128).half()
    addresses = {t.untyped_storage().data_ptr() for t in (codes, scales, zeros, g_idx, bias)}
    w = sf.pack(codes, scales, zeros, g_idx, bits=4, group_size=64, dtype=torch.float16, bias=bias)
    held = {t.untyped_storage().data_ptr() for t in sf.Linear(w).buffers()}
    assert not held & addresses
    sources = [weakref.ref(t) for t in (codes, scales, zeros, g_idx, bias)]
    del codes, scales, zeros, g_idx, bias
    gc.collect()
    assert [source() for source in sources] == [None] * 5


@pytest.mark.parametrize("bits", [4, 8])
def test_c37_final_memory_is_the_packed_size(bits: int) -> None:
    """No tensor of the weight is a view of something larger."""
    w = layer(256, 128, bits=bits, group_size=64, zeros=True, act_order=True, bias=torch.zeros(128)).weight
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in sf.Linear(w).buffers()}
    assert sum(storages.values()) == w.nbytes
    assert w.words.nbytes == 256 * 128 * bits // 8
    shard = w.shard("n", 1, 2)
    assert sum(t.untyped_storage().nbytes() for t in sf.Linear(shard).buffers()) == shard.nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_c37_peak_of_packing_on_the_gpu(bits: int) -> None:
    """Beyond the source, packing needs at most twice the packed size, and keeps nothing of it."""
    k = n = 8192
    qweight = torch.randint(-(1 << 31), 1 << 31, (k * bits // 32, n), dtype=torch.int64, device="cuda").int()
    scales = torch.rand(k // 128, n, device="cuda").half()
    kept = []
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept.append(sf.from_gptq(qweight, scales, bits=bits, group_size=128, dtype=torch.float16))
        assert torch.cuda.max_memory_allocated() - before <= 2 * kept[-1].nbytes + (64 << 20)
        assert torch.cuda.memory_allocated() - before <= kept[-1].nbytes + (1 << 20)
