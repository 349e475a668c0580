"""The prefill kernels on the emulator, against the fp64 product and, with one-hot rows, bit for bit.

Checkers are on; a finding fails the test. The kernels also run on a GPU through the same calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import swordfish as sf
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.packed import PackedWeight
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.run import launch_prefill
from swordfish.reference import exact_columns
from swordfish.runtime.cute import keep_workers
from tests.backends import quantised

UNIT = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}  # half a unit in the last place of a number just above 1


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """One compiler process for the module."""
    with keep_workers():
        yield


def config_of(w: PackedWeight, **tile: object) -> PrefillConfig:
    """A tile for a weight."""
    return PrefillConfig(replace(w.scheme, act_order=False), **tile)  # type: ignore[arg-type]


def run(
    x: torch.Tensor, w: PackedWeight, config: PrefillConfig, seed: int = 0, pairs: int = 2
) -> torch.Tensor:
    """One run, on few CTAs so that each computes several tiles; raises on any finding."""
    policy = ("mixed", "late", "eager", "heavy")[seed % 4]
    out = torch.full((x.shape[0], w.shape[1]), float("nan"), dtype=w.dtype)
    checkers = {"tcgen05_fences": True, "cluster_start": True}
    with sf.emulate("sm_100a", seed=seed, policy=policy, **checkers) as emulation:
        launch_prefill(config, x, w, w.bias, out, pairs=pairs)
    for report in emulation.reports:
        report.raise_on_findings()
    return out


def assert_close(y: torch.Tensor, x: torch.Tensor, w: PackedWeight) -> None:
    """Error model: one rounding of the result, and K fp32 truncations of terms as large as their absolute
    sum. Weights are rounded before the product, unless their scales are factors of the result."""
    scaled_after = config_of(w).scales_results
    values = exact_columns(w, 0, w.shape[1]) if scaled_after else sf.dequantize(w).double()
    if w.perm is not None:
        x = w.gather(x) if scaled_after else x
    reference, size = x.double() @ values, x.double().abs() @ values.abs()
    if w.bias is not None:
        reference, size = reference + w.bias.double(), size + w.bias.double().abs()
    bound = UNIT[y.dtype] * 1.001 * reference.abs() + 2.0**-20 * size
    excess = (y.double() - reference).abs() - bound
    assert (excess <= 0).all(), f"[{int(excess.argmax())}]: {float(excess.max())} beyond the bound"


def activations(m: int, w: PackedWeight) -> torch.Tensor:
    return torch.randn(m, w.shape[0], generator=torch.Generator().manual_seed(m)).to(w.dtype)


@pytest.mark.parametrize("home", ["tmem", "shared"])
def test_shapes_and_schedules(home: str) -> None:
    """Tails in M, N and K; each ring wraps more than twice; every schedule gives the same bits."""
    w = quantised(2112, 320)
    config = config_of(w, tokens=32, home=home)
    assert 2 * config.input_stages < 17 and 2 * config.operand_stages < 33
    for m in (1, 63, 64, 129):
        x = activations(m, w)
        results = [run(x, w, config, seed) for seed in range(5 if m == 63 else 1)]
        assert_close(results[0], x, w)
        assert all(torch.equal(results[0], other) for other in results[1:])


TILES = [
    (192, 2, "tmem"),
    (128, 2, "tmem"),
    (224, 2, "tmem"),
    (256, 2, "tmem"),
    (256, 2, "shared"),
    (160, 2, "tmem"),
    (64, 1, "tmem"),
    (96, 1, "shared"),
]


@pytest.mark.parametrize(("tokens", "ctas", "home"), TILES)
def test_tiles(tokens: int, ctas: int, home: str) -> None:
    """Every kind of tile, several of each, N an odd multiple of 128 and of 64, K % 128 = 64."""
    for m, n, k in ((300, 384, 320), (2 * tokens + 1, 192, 1088)):
        w = quantised(k, n)
        x = activations(m, w)
        results = [
            run(x, w, config_of(w, tokens=tokens, ctas=ctas, home=home), seed, pairs=1 + seed)
            for seed in range(2)
        ]
        assert_close(results[0], x, w)
        assert torch.equal(*results)


SCHEMES = [
    {"group_size": 32},
    {"group_size": 64, "zeros": "offset"},
    {"group_size": 32, "zeros": "integer"},
    {"group_size": -1, "zeros": "integer"},
    {"group_size": 128, "dtype": torch.float16},
    {"group_size": 32, "dtype": torch.float16, "zeros": "integer"},
    {"group_size": 64, "dtype": torch.float16, "zeros": "offset"},
    {"bits": 8, "group_size": 128},
    {"bits": 8, "group_size": -1, "dtype": torch.float16},
    {"bits": 8, "group_size": 64, "zeros": "integer"},
]
EVERY_SCHEME = [
    {"bits": bits, "group_size": group, "zeros": zeros, "dtype": dtype}
    for bits, group, zeros, dtype in itertools.product(
        (4, 8), (32, 64, 128, -1), ("none", "integer", "offset"), (torch.bfloat16, torch.float16)
    )
]


def check_scheme(scheme: dict[str, object], home: str) -> None:
    """One-hot rows select weights, which must be those of ``dequantize`` bit for bit; then a product."""
    k, n = 320, 192
    w = quantised(k, n, **scheme)  # type: ignore[arg-type]
    config = config_of(w, tokens=64, home=home)
    eye = torch.eye(k, dtype=w.dtype)
    rows = eye[torch.arange(7, k, 3)]
    assert torch.equal(run(rows, w, config), sf.dequantize(w)[7::3])
    x = activations(65, w)
    assert_close(run(x, w, config, seed=3), x, w)


@pytest.mark.parametrize(
    "scheme", SCHEMES, ids=lambda s: "-".join(str(v).removeprefix("torch.") for v in s.values())
)
def test_schemes(scheme: dict[str, object]) -> None:
    check_scheme(scheme, "tmem")


def test_scheme_with_operand_in_shared_memory() -> None:
    check_scheme({"bits": 8, "group_size": 32, "zeros": "offset", "dtype": torch.float16}, "shared")


@pytest.mark.slow
@pytest.mark.parametrize("home", ["tmem", "shared"])
@pytest.mark.parametrize(
    "scheme", EVERY_SCHEME, ids=lambda s: "-".join(str(v).removeprefix("torch.") for v in s.values())
)
def test_every_scheme(scheme: dict[str, object], home: str) -> None:
    check_scheme(scheme, home)


def test_scales_of_every_size_are_exact() -> None:
    """Zero, tiny, and far above 2**-5, where the plain subnormal idiom overflows; negative ones too."""
    sizes = torch.tensor([0.0, 1e-27, -(2.0**-5), 0.75, -300.0, 65280.0, 1e7, -1e-10])
    codes = torch.randint(0, 16, (128, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    w = sf.pack(codes, sizes.repeat(8)[None], bits=4, group_size=128, dtype=torch.bfloat16)
    y = run(torch.eye(128, dtype=w.dtype), w, config_of(w, tokens=64))
    assert torch.equal(y, sf.dequantize(w)) and (y[:, ::8] == 0).all()


def test_bias_and_act_order() -> None:
    """The gather that permutes x is a launch of its own, before the kernel."""
    w = quantised(320, 192, group_size=64, act_order=True, bias=True)
    x = activations(100, w)
    assert_close(run(x, w, config_of(w, tokens=64)), x, w)


def test_split_over_k_is_added_in_order() -> None:
    """Slices of unequal length, the last one short; the reduction rounds once and adds the bias."""
    w = quantised(1344, 200, bias=True)
    x = activations(70, w)
    results = [
        run(x, w, config_of(w, tokens=64, slices=slices), seed) for seed, slices in ((0, 4), (1, 4), (2, 2))
    ]
    for y in results:
        assert_close(y, x, w)
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("slices", [1, 2])
def test_operands_of_any_strides(slices: int) -> None:
    """What bulk copies cannot read or write goes through a copy: offsets, transposes, odd rows."""
    w = quantised(324, 72)
    config = config_of(w, tokens=32, slices=slices)
    x, expected = activations(40, w), None
    outs = [
        torch.empty(40, 72),
        torch.empty(72, 40).T,
        torch.empty(40, 80)[:, 3:75],
        torch.empty(40, 80)[:, :72],
    ]
    views = [x, x.T.contiguous().T, torch.cat([x, x], 1)[:, :324], x.clone()]
    for view, out in zip(views, outs, strict=True):
        out = (
            out.to(w.dtype)
            if out.is_contiguous()
            else torch.empty_strided(out.shape, out.stride(), dtype=w.dtype)
        )
        with sf.emulate("sm_100a") as emulation:
            launch_prefill(config, view, w, None, out, pairs=1)
        for report in emulation.reports:
            report.raise_on_findings()
        expected = out.clone() if expected is None else expected
        assert torch.equal(out, expected)
    assert_close(expected, x, w)


def test_one_row_that_is_expanded() -> None:
    w = quantised(192, 64)
    x = torch.ones(1, dtype=w.dtype).expand(1, 192)
    assert_close(run(x, w, config_of(w, tokens=32)), x, w)


def test_no_rows_and_wrong_operands() -> None:
    w = quantised(128, 64)
    config = config_of(w, tokens=32)
    x, y = torch.zeros(4, 128, dtype=w.dtype), torch.zeros(4, 64, dtype=w.dtype)
    with sf.emulate("sm_100a") as emulation:
        launch_prefill(config, x[:0], w, None, y[:0])
        assert not emulation.reports, "nothing is launched"
    for bad, kind, message in [
        ((x.half(), w, None, y), ArgumentTypeError, "x.dtype=torch.float16"),
        ((x[:, :64], w, None, y), ArgumentError, r"x.shape=\(4, 64\)"),
        ((x.to("meta"), w, None, y), ArgumentError, "x.device=meta"),
        ((x, w, y[0, :8], y), ArgumentError, r"bias.shape=\(8,\)"),
        ((x, w, None, y[:3]), ArgumentError, r"out.shape=\(3, 64\)"),
        ((x, quantised(128, 64, group_size=64), None, y), ArgumentError, r"config\.scheme"),
    ]:
        with pytest.raises(kind, match=message):
            launch_prefill(config, *bad)
