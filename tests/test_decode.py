"""The decode kernels against the exact product, on the GPU if there is one and on the emulator for Hopper and Blackwell."""

from __future__ import annotations

import itertools

import pytest
import torch

import swordfish as sf
from tests.backends import BACKENDS, Backend, exact, quantised

BITS_OF_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def assert_close(y: torch.Tensor, reference: torch.Tensor, size: torch.Tensor) -> None:
    """Error model: one rounding of the result, plus fp32 accumulation (K/16 truncations of 2^-23) of terms as large as `size`.

    ``size`` [M, N] is the sum of absolute values of the terms.
    """
    assert y.shape == reference.shape and torch.isfinite(y).all()
    rounding = BITS_OF_ROUNDING[y.dtype] * 2
    bound = rounding * reference.abs() + 2.0**-19 * size + torch.finfo(y.dtype).smallest_normal
    excess = (y.double() - reference).abs() - bound
    assert (excess <= 0).all(), f"column {int(excess.max(0).values.argmax())}: {float(excess.max())} beyond the bound"
    norm = (y.double() - reference).norm() / reference.norm()
    assert norm <= rounding, f"relative error {norm}"


def check(backend: Backend, m: int, k: int, n: int, **scheme: object) -> None:
    w = quantised(k, n, device=backend.device, **scheme)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(m, k, generator=generator).to(w.dtype).to(backend.device)
    with backend.active(seed=m):
        y = sf.mm(x, w)
        again = sf.mm(x, w)
    assert torch.equal(y, again)
    reference, size = exact(x, w), exact(x.abs(), _absolute(w))
    if w.bias is not None:
        reference = reference + w.bias.double()
        size = size + w.bias.double().abs()
    assert_close(y, reference, size)


def _absolute(w: sf.PackedWeight) -> sf.PackedWeight:
    """A weight whose values bound the absolute values of all terms that the kernel adds up."""
    top = (1 << w.scheme.bits) + (0 if w.scheme.zeros == "none" else 1)
    codes = torch.full((w.packed_k, w.shape[1]), (1 << w.scheme.bits) - 1, dtype=torch.uint8)
    scales = w.scales.float().abs().cpu() * (top / ((1 << w.scheme.bits) - 1))
    if w.zeros is not None and w.scheme.zeros == "offset":
        scales = scales + w.zeros.float().abs().cpu()
    packed = sf.pack(codes, scales, torch.zeros_like(scales, dtype=torch.int32), bits=w.scheme.bits, group_size=w.scheme.group_size, dtype=w.dtype)
    permuted = packed.to(w.device)
    return permuted if w.perm is None else _with_perm(permuted, w)


def _with_perm(packed: sf.PackedWeight, w: sf.PackedWeight) -> sf.PackedWeight:
    from dataclasses import replace

    return replace(packed, perm=w.perm, scheme=replace(packed.scheme, act_order=True), shape=w.shape)


SCHEMES = [
    {"bits": bits, "group_size": group, "zeros": zeros}
    for bits, group, zeros in itertools.product((4, 8), (32, 64, 128, -1), ("none", "integer"))
] + [{"bits": 4, "group_size": 32, "zeros": "offset"}, {"bits": 4, "group_size": -1, "zeros": "offset"}, {"bits": 4, "group_size": 96}]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: "-".join(map(str, s.values())))
def test_schemes(backend: Backend, dtype: torch.dtype, scheme: dict[str, object]) -> None:
    check(backend, 3, 384, 72, dtype=dtype, **scheme)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("m", range(1, 18))
def test_every_row_count(backend: Backend, m: int, dtype: torch.dtype) -> None:
    check(backend, m, 256, 64, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("k", [32, 64, 96, 128, 192, 320, 576, 1088])
def test_k(backend: Backend, k: int) -> None:
    check(backend, 2, k, 64, group_size=32)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 8, 24, 72, 96, 129, 200])
def test_n(backend: Backend, n: int) -> None:
    check(backend, 2, 128, n, bias=True)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 9])
def test_act_order(backend: Backend, bits: int, m: int) -> None:
    check(backend, m, 256, 72, bits=bits, group_size=64, act_order=True, bias=True)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: "-".join(map(str, s.values())))
def test_one_hot_rows_return_the_weight(backend: Backend, dtype: torch.dtype, scheme: dict[str, object]) -> None:
    """A one-hot x selects one weight per output: the result must be the dequantised weight, bit for bit."""
    k, n = 96, 64
    w = quantised(k, n, dtype=dtype, device=backend.device, **scheme)  # type: ignore[arg-type]
    eye = torch.eye(k, dtype=dtype, device=backend.device)
    with backend.active():
        y = sf.mm(eye, w)
    assert torch.equal(y, sf.dequantize(w))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_split_over_a_cluster(backend: Backend) -> None:
    """K long and N narrow: the tile is split over CTAs that meet through distributed shared memory."""
    w = quantised(4096, 64, device=backend.device)
    with backend.active():
        plan = sf.explain(w, 1)
        assert plan.config is not None and plan.config.split > 1, plan
    check(backend, 1, 4096, 64)
    check(backend, 11, 4096, 64)
