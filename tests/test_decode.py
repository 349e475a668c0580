"""The decode kernels against the exact product: all cases on a GPU if there is one, a sample on the emulator.

An emulated launch costs half a second and more, mostly to compile, so emulated tests take architectures and
dtypes in turn; together they cover every scheme on both architectures and in both dtypes, every row bucket
and its edges, tails in K and N, both ways of act-order, and the split over a cluster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.calls import DecodeCall
from swordfish.decode import RingConfig, choose
from swordfish.runtime import DeviceProps
from swordfish.runtime.device import device_props
from swordfish.runtime.registry import get_artifact
from tests.backends import BACKENDS, EMULATED, Backend, exact, quantised

BITS_OF_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def assert_close(y: torch.Tensor, reference: torch.Tensor, size: torch.Tensor) -> None:
    """Error model: one rounding of the result, plus fp32 accumulation (K/16 truncations of 2^-23) of terms as
    large as ``size`` ``[M, N]``, the sum of absolute values of the terms."""
    assert y.shape == reference.shape and torch.isfinite(y).all()
    rounding = BITS_OF_ROUNDING[y.dtype] * 2
    bound = rounding * reference.abs() + 2.0**-19 * size + torch.finfo(y.dtype).smallest_normal
    excess = (y.double() - reference).abs() - bound
    assert (excess <= 0).all(), (
        f"column {int(excess.max(0).values.argmax())}: {float(excess.max())} beyond the bound"
    )
    norm = (y.double() - reference).norm() / reference.norm()
    assert norm <= rounding, f"relative error {norm}"


def check(backend: Backend, m: int, k: int, n: int, **scheme: object) -> None:
    w = quantised(k, n, device=backend.device, **scheme)  # type: ignore[arg-type]
    x = tokens(m, w)
    with backend.active(seed=m):
        y = sf.mm(x, w)
        again = sf.mm(x, w)
    assert torch.equal(y, again)
    assert_product(y, x, w)


def tokens(m: int, w: sf.PackedWeight) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(m, w.shape[0], generator=generator).to(w.dtype).to(w.device)


def assert_product(y: torch.Tensor, x: torch.Tensor, w: sf.PackedWeight) -> None:
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
    packed = sf.pack(
        codes,
        scales,
        torch.zeros_like(scales, dtype=torch.int32),
        bits=w.scheme.bits,
        group_size=w.scheme.group_size,
        dtype=w.dtype,
    )
    permuted = packed.to(w.device)
    return permuted if w.perm is None else _with_perm(permuted, w)


def _with_perm(packed: sf.PackedWeight, w: sf.PackedWeight) -> sf.PackedWeight:
    return replace(packed, perm=w.perm, scheme=replace(packed.scheme, act_order=True), shape=w.shape)


DTYPES = [torch.bfloat16, torch.float16]
GPU = [backend for backend in BACKENDS if backend.name == "cuda"]


def on(full: Iterable[Sequence[Any]], sample: Iterable[Sequence[Any]], first: int = 0) -> list[Any]:
    """Parameters ``(backend, *arguments)``: all of ``full`` on the GPU, each of ``sample`` on one of the
    emulated architectures in turn, beginning with number ``first``."""
    chosen = [(backend, *arguments) for backend, arguments in itertools.product(GPU, full)]
    chosen += [(EMULATED[(first + i) % len(EMULATED)], *arguments) for i, arguments in enumerate(sample)]
    return [pytest.param(*values, id="-".join(map(_name, values))) for values in chosen]


def _name(value: object) -> str:
    if isinstance(value, dict):
        return "-".join(map(str, value.values()))
    return str(value).removeprefix("torch.")


SCHEMES = [
    *(
        {"bits": bits, "group_size": group, "zeros": zeros}
        for bits, group, zeros in itertools.product((4, 8), (32, 64, 128, -1), ("none", "integer"))
    ),
    {"bits": 4, "group_size": 32, "zeros": "offset"},
    {"bits": 4, "group_size": -1, "zeros": "offset"},
    {"bits": 4, "group_size": 96},
]
# Every scheme once, neighbours with different dtypes. The two tests of schemes begin with different
# architectures and dtypes, so that each scheme meets both.
ALTERNATING = [(DTYPES[i // 2 % 2], scheme) for i, scheme in enumerate(SCHEMES)]
OPPOSITE = [(DTYPES[1 - i // 2 % 2], scheme) for i, scheme in enumerate(SCHEMES)]


@pytest.mark.parametrize(("backend", "dtype", "scheme"), on(itertools.product(DTYPES, SCHEMES), ALTERNATING))
def test_schemes(backend: Backend, dtype: torch.dtype, scheme: dict[str, object]) -> None:
    check(backend, 3, 384, 72, dtype=dtype, **scheme)


ROWS = [1, 2, 3, 4, 5, 8, 9, 16, 17]


@pytest.mark.parametrize(
    ("backend", "m", "dtype"),
    on(itertools.product(range(1, 18), DTYPES), [(m, DTYPES[i // 2 % 2]) for i, m in enumerate(ROWS)]),
)
def test_every_row_count(backend: Backend, m: int, dtype: torch.dtype) -> None:
    check(backend, m, 256, 64, dtype=dtype)


@pytest.mark.parametrize(
    ("backend", "k"),
    on([(k,) for k in (32, 64, 96, 128, 192, 320, 576, 1088)], [(k,) for k in (32, 96, 320, 1088)]),
)
def test_k(backend: Backend, k: int) -> None:
    check(backend, 2, k, 64, group_size=32)


@pytest.mark.parametrize(
    ("backend", "n"),
    on([(n,) for n in (1, 7, 8, 24, 72, 96, 129, 200)], [(n,) for n in (1, 7, 129, 200)]),
)
def test_n(backend: Backend, n: int) -> None:
    check(backend, 2, 128, n, bias=True)


@pytest.mark.parametrize(
    ("backend", "bits", "m"), on(itertools.product((4, 8), (1, 9)), [(4, 1), (8, 1), (8, 9), (4, 9)])
)
def test_act_order(backend: Backend, bits: int, m: int) -> None:
    check(backend, m, 256, 72, bits=bits, group_size=64, act_order=True, bias=True)


GATHERING = [
    (1, RingConfig(1, warps=2, slots=1, split=4)),  # all of K in flight
    (1, RingConfig(1, warps=2, slots=2, split=3)),  # parts of unequal length
    (2, RingConfig(2, unit=4, warps=1, slots=2, split=2)),
    (3, RingConfig(2, warps=2, slots=2, split=2)),  # a row tile with one row
    (3, RingConfig(2, warps=2, slots=2, ctas=2)),  # several column tiles for a CTA
]


@pytest.mark.parametrize(("backend", "m", "config"), on(GATHERING, GATHERING))
def test_act_order_inside_the_kernel(backend: Backend, m: int, config: RingConfig) -> None:
    """Every CTA of a cluster sends its part of x to all."""
    w = quantised(1024, 200, act_order=True, device=backend.device)
    x, out = tokens(m, w), torch.empty(m, 200, dtype=w.dtype, device=w.device)
    arch = backend.name if backend.device == "cpu" else device_props(0).arch
    call = DecodeCall(replace(config, gather=True), w.scheme, m, 1024, 200, bias=False, arch=arch)
    with backend.active(seed=m):
        call(x, w, None, out)
    assert_product(out, x, w)


@pytest.mark.parametrize(
    ("backend", "dtype", "scheme"), on(itertools.product(DTYPES, SCHEMES), OPPOSITE, first=1)
)
def test_one_hot_rows_return_the_weight(
    backend: Backend, dtype: torch.dtype, scheme: dict[str, object]
) -> None:
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


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_110a"])
@pytest.mark.parametrize(
    ("m", "bits", "group_size"),
    [*((m, 4, 128) for m in (1, 8, 16, 48, 128, 512, 1024)), (64, 4, 64), (512, 8, 128), (1024, 8, 128)],
)
def test_kernels_of_a_large_layer_do_not_spill(arch: str, m: int, bits: int, group_size: int) -> None:
    scheme, props = sf.Scheme(bits, group_size, "bfloat16"), DeviceProps.for_target(arch)
    config = choose(m, 28672, 4096, scheme, props).config
    made = get_artifact(config.source(scheme, 4096, 28672, bias=True), arch).metadata
    assert made.spill_bytes == 0 == made.local_bytes, config
