"""The wide decode kernel on the emulator: schemes, both back ends, tails, splits, configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import swordfish as sf
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime import DeviceProps, emulate, get_kernel
from swordfish.scheme import Scheme
from tests.backends import exact, quantised

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
HOPPER = DeviceProps.for_target("sm_90a")


def run(
    config: WideConfig,
    w: sf.PackedWeight,
    x: torch.Tensor,
    *,
    seed: int = 0,
    arch: str = "",
    **options: object,
) -> tuple[torch.Tensor, object]:
    """Output and report of one launch; whatever the emulator's checkers find fails the test."""
    arch = arch or ("sm_90a" if config.wgmma else "sm_100a")
    k, n = w.packed_k, w.shape[1]
    padded = torch.zeros(x.shape[0], -(-k // 64) * 64, dtype=x.dtype)
    padded[:, :k] = x
    out = torch.full((x.shape[0], n), float("nan"), dtype=x.dtype)
    kernel = get_kernel(config.source(w.scheme, k, n, bias=w.bias is not None), arch)
    with emulate(arch, seed=seed, **options) as emulation:
        kernel.launch(
            config.launch_config(w.scheme, x.shape[0], k, n),
            config.arguments(w.words, w.scales, w.zeros, padded, None, w.bias, out),
        )
    report = emulation.reports[-1]
    assert not report.findings, "\n".join(map(str, report.findings))
    return out, report


def tokens(m: int, w: sf.PackedWeight) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(m, w.packed_k, generator=generator).to(w.dtype)


def assert_exact(out: torch.Tensor, w: sf.PackedWeight, x: torch.Tensor) -> None:
    """At most 1.02 times the error of rounding the exact result once, and no column far off on its own."""
    reference = exact(x, w)
    if w.bias is not None:
        reference = reference + w.bias.double()
    once = (reference.to(out.dtype).double() - reference).norm()
    error = out.double() - reference
    assert error.norm() <= 1.02 * once
    assert (error.norm(dim=0) <= ROUNDING[out.dtype] * reference.norm(dim=0)).all()


CASES = {
    # m, k, n, scheme, configuration
    "narrow": (5, 128, 64, {}, {"tokens": 16, "tiles": 1}),
    "split of an odd number of blocks": (9, 960, 200, {}, {"tokens": 16, "split": 2, "slots": 3}),
    "zero points, bias": (
        16,
        1024,
        256,
        {"zeros": "integer", "bias": True},
        {"tokens": 16, "tiles": 1, "warpgroups": 2, "split": 2, "slots": 3},
    ),
    "odd N": (33, 640, 333, {"bias": True, "dtype": torch.float16}, {"tokens": 48, "in_place": True}),
    "int8 g32, missing blocks": (
        24,
        640,
        192,
        {"bits": 8, "group_size": 32},
        {"tokens": 24, "split": 3, "scale_rows": 4},
    ),
    "int8 channelwise": (
        24,
        640,
        192,
        {"bits": 8, "group_size": -1, "zeros": "integer"},
        {"tokens": 32, "tiles": 4, "split": 2, "stage_k": 64},
    ),
    "offsets g32": (
        24,
        640,
        192,
        {"group_size": 32, "zeros": "offset", "dtype": torch.float16},
        {"tokens": 32, "split": 2},
    ),
    "offsets channelwise": (
        24,
        640,
        192,
        {"group_size": -1, "zeros": "offset"},
        {"tokens": 32, "tiles": 1, "split": 2, "overlay": True},
    ),
    "g64 in place": (
        64,
        1024,
        320,
        {"group_size": 64},
        {
            "tokens": 64,
            "tiles": 1,
            "warpgroups": 4,
            "split": 2,
            "overlay": True,
            "in_place": True,
            "scale_rows": 2,
        },
    ),
    "g96 in place, four ranks": (
        128,
        1024,
        256,
        {"group_size": 96},
        {"tokens": 128, "warpgroups": 2, "split": 4, "overlay": True, "in_place": True},
    ),
    "stream, pieces of tiles": (24, 640, 320, {"zeros": "integer", "bias": True}, {"tokens": 24, "ctas": 4}),
    "stream, whole tiles": (16, 256, 320, {"bias": True}, {"tokens": 16, "tiles": 1, "ctas": 5}),
    "stream, a tile over many": (
        9,
        1536,
        64,
        {"group_size": 96, "dtype": torch.float16},
        {"tokens": 16, "tiles": 1, "slots": 3, "ctas": 9},
    ),
    "stream, more CTAs than units": (16, 320, 72, {"group_size": 32}, {"tokens": 16, "tiles": 1, "ctas": 50}),
    "stream, int8 channelwise": (
        24,
        640,
        192,
        {"bits": 8, "group_size": -1, "zeros": "integer"},
        {"tokens": 32, "tiles": 1, "ctas": 4},
    ),
    "stream, offsets channelwise": (
        24,
        640,
        192,
        {"group_size": -1, "zeros": "offset"},
        {"tokens": 32, "tiles": 1, "ctas": 2},
    ),
    "stream, in place": (
        72,
        1088,
        333,
        {"group_size": 64, "bias": True},
        {"tokens": 80, "tiles": 2, "warpgroups": 2, "slots": 3, "in_place": True, "scale_rows": 2, "ctas": 5},
    ),
    "tiles of rows": (41, 320, 200, {"bias": True}, {"tokens": 16, "tiles": 1}),
    "tiles of rows, split": (
        40,
        1024,
        320,
        {"zeros": "integer"},
        {"tokens": 24, "tiles": 1, "warpgroups": 2, "split": 3, "slots": 3},
    ),
    "stream, tiles of rows": (
        53,
        640,
        200,
        {"group_size": 64, "bias": True},
        {"tokens": 24, "tiles": 1, "ctas": 7, "scale_rows": 2},
    ),
    "stream, waves of whole tiles": (
        200,
        640,
        200,
        {"zeros": "integer", "bias": True},
        {"tokens": 72, "tiles": 1, "warpgroups": 2, "ctas": 2},
    ),
    "stream, waves longer than rows": (90, 320, 500, {}, {"tokens": 80, "tiles": 1, "slots": 3, "ctas": 5}),
    "stream, waves and nothing left over": (72, 192, 700, {"bits": 8}, {"tokens": 72, "tiles": 1, "ctas": 4}),
    "stream, waves and a rest alone": (
        80,
        3072,
        192,
        {},
        {"tokens": 72, "tiles": 1, "stage_k": 256, "ctas": 4},
    ),
    "stream, waves in place": (
        150,
        448,
        400,
        {"bits": 8, "group_size": 64},
        {"tokens": 80, "tiles": 2, "slots": 3, "in_place": True, "scale_rows": 2, "ctas": 3},
    ),
    "k256 stages, four CTAs on an SM": (
        13,
        1536,
        200,
        {"zeros": "integer", "bias": True},
        {"tokens": 16, "tiles": 1, "stage_k": 256, "slots": 2, "split": 3, "min_ctas": 4, "scale_rows": 2},
    ),
    "k256 stages": (
        30,
        1088,
        128,
        {"zeros": "integer"},
        {"tokens": 32, "stage_k": 256, "slots": 3, "in_place": True, "scale_rows": 2},
    ),
}


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("name", CASES)
def test_against_exact_product(name: str, wgmma: bool) -> None:
    m, k, n, scheme, fields = CASES[name]
    w = quantised(k, n, **scheme)  # type: ignore[arg-type]
    x = tokens(m, w)
    out, _ = run(WideConfig(**fields, wgmma=wgmma), w, x)  # type: ignore[arg-type]
    assert_exact(out, w, x)


SPANS = {
    # m, scheme, configuration; K is no whole number of spans, groups or stages
    "in place": (
        150,
        {"bits": 8},
        {"tokens": 80, "tiles": 2, "warpgroups": 2, "slots": 3, "in_place": True, "ctas": 3, "span": 3},
    ),
    "in place, g64": (
        80,
        {"group_size": 64, "zeros": "integer"},
        {"tokens": 80, "stage_k": 256, "slots": 2, "in_place": True, "scale_rows": 4, "span": 2},
    ),
    "two parts": (150, {"zeros": "integer"}, {"tokens": 80, "tiles": 1, "slots": 3, "ctas": 5, "span": 4}),
    "two parts, g64": (72, {"bits": 8, "group_size": 64}, {"tokens": 72, "tiles": 1, "slots": 3, "span": 2}),
    "two parts, g32": (
        24,
        {"group_size": 32, "dtype": torch.float16},
        {"tokens": 24, "tiles": 1, "warpgroups": 2, "split": 2, "slots": 3, "span": 3},
    ),
    "one tile in place": (24, {}, {"tokens": 24, "tiles": 1, "in_place": True, "span": 2}),
    "two halves": (128, {"bits": 8}, {"tokens": 128, "tiles": 1, "slots": 3, "split": 2, "span": 3}),
    "two halves of 144": (150, {}, {"tokens": 144, "tiles": 1, "slots": 3, "span": 3}),
    "144 in place": (
        150,
        {"zeros": "integer"},
        {"tokens": 144, "tiles": 2, "warpgroups": 2, "slots": 3, "in_place": True, "ctas": 2, "span": 4},
    ),
    "two halves, g64": (
        112,
        {"group_size": 64, "zeros": "integer", "bias": True},
        {"tokens": 112, "tiles": 1, "slots": 3, "ctas": 3, "scale_rows": 2, "span": 2},
    ),
    "two halves, g32": (
        112,
        {"group_size": 32, "dtype": torch.float16},
        {"tokens": 112, "tiles": 1, "slots": 3, "span": 2},
    ),
    "no room for either": (104, {}, {"tokens": 104, "tiles": 1, "slots": 3, "span": 2}),
    "short stages": (24, {"bits": 8}, {"tokens": 24, "stage_k": 64, "slots": 5, "span": 5}),
    "offsets": (24, {"zeros": "offset"}, {"tokens": 24, "ctas": 3, "span": 2}),
    "channelwise": (24, {"group_size": -1, "zeros": "integer"}, {"tokens": 24, "tiles": 1, "span": 4}),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans_change_no_bit(name: str) -> None:
    m, scheme, fields = SPANS[name]
    w = quantised(640 if scheme.get("group_size") == -1 else 1090, 200, **scheme)  # type: ignore[arg-type]
    x, config = tokens(m, w), WideConfig(**fields)  # type: ignore[arg-type]
    out, _ = run(config, w, x, policy="mixed")
    assert_exact(out, w, x)
    assert torch.equal(out, run(replace(config, span=1), w, x)[0])


@pytest.mark.parametrize("cut", [{"split": 3}, {"ctas": 5}, {"ctas": 5, "span": 3}], ids=str)
def test_same_bits_whatever_the_order_of_events(cut: dict[str, int]) -> None:
    w = quantised(1024, 128)
    x = tokens(32, w)
    config = WideConfig(tokens=32, tiles=1, warpgroups=2, slots=3, **cut)
    first, _ = run(config, w, x, policy="late")
    for seed, policy in ((1, "eager"), (2, "mixed"), (3, "heavy")):
        assert torch.equal(first, run(config, w, x, seed=seed, policy=policy)[0])


def test_stream_leaves_its_counters_zero() -> None:
    w = quantised(640, 320)
    x = tokens(9, w)
    config = WideConfig(tokens=16, tiles=1, ctas=7)
    out = torch.empty(9, 320, dtype=x.dtype)
    arguments = config.arguments(w.words, w.scales, w.zeros, x, None, None, out)
    counts = next(
        a for a in arguments if isinstance(a, torch.Tensor) and a.dtype == torch.int32 and a.ndim == 1
    )
    kernel = get_kernel(config.source(w.scheme, 640, 320, bias=False), "sm_90a")
    results = []
    with emulate("sm_90a"):
        for _ in range(2):  # with the same counters
            out.fill_(float("nan"))
            kernel.launch(config.launch_config(w.scheme, 9, 640, 320), arguments)
            results.append(out.clone())
            assert not counts.any()
    assert torch.equal(*results)
    assert_exact(results[0], w, x)


@pytest.mark.parametrize("m", [1, 7, 8, 15])
def test_fewer_rows_than_tokens(m: int) -> None:
    w = quantised(512, 128)
    x = tokens(m, w)
    assert_exact(run(WideConfig(tokens=16, split=2), w, x)[0], w, x)


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_int4_words_meet_no_bank_conflict(tiles: int) -> None:
    w = quantised(256, 256)
    _, report = run(WideConfig(tokens=16, tiles=tiles), w, tokens(16, w))
    words = [line for line in report.shared if line.accesses and line.ideal >= line.accesses]  # type: ignore[attr-defined]
    assert sum(line.wavefronts for line in words) > 0
    assert sum(line.conflicts for line in words) == 0


def test_in_place_survives_zero_and_tiny_scales() -> None:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (512, 64), dtype=torch.uint8, generator=generator)
    scales = torch.rand(4, 64, generator=generator) + 0.5
    scales[0] = 0
    scales[2, ::2] = 0
    scales[3, 1::2] *= 2.0**-40
    w = sf.pack(codes, scales, bits=4, group_size=128, dtype=torch.bfloat16)
    x = tokens(16, w)
    out, _ = run(WideConfig(tokens=16, in_place=True), w, x)
    assert_exact(out, w, x)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", 20),
        ("tokens", 264),
        ("tiles", 3),
        ("warpgroups", 0),
        ("stage_k", 96),
        ("slots", 1),
        ("split", 17),
        ("min_ctas", 17),
        ("ctas", -1),
        ("span", 17),
    ],
)
def test_configuration_names_the_field(field: str, value: int) -> None:
    with pytest.raises(ArgumentError, match=field):
        WideConfig(**{"tokens": 16, field: value})


def test_one_tile_needs_two_batches_a_stage() -> None:
    with pytest.raises(ArgumentError, match="stage_k=64"):
        WideConfig(tokens=16, tiles=1, stage_k=64)
    assert WideConfig(tokens=16, tiles=1, stage_k=64, wgmma=False).columns == 64


def test_without_wgmma_nothing_is_in_flight() -> None:
    with pytest.raises(ArgumentError, match="span=2"):
        WideConfig(tokens=16, wgmma=False, span=2)


def test_offsets_cannot_be_folded_in_place() -> None:
    config = WideConfig(tokens=16, in_place=True)
    with pytest.raises(ArgumentError, match="in_place"):
        config.check(Scheme(4, 32, "bfloat16", "offset"), 512, HOPPER)


def test_check_refuses_what_cannot_run() -> None:
    scheme = Scheme(4, 128, "bfloat16")
    with pytest.raises(ArgumentError, match="shared memory"):
        WideConfig(tokens=256, slots=16).check(scheme, 4096, HOPPER)
    with pytest.raises(ArgumentError, match="scale_rows"):
        WideConfig(tokens=16, scale_rows=4).check(scheme, 512, HOPPER)
    with pytest.raises(ArgumentError, match="split"):
        WideConfig(tokens=16, split=5).check(scheme, 512, HOPPER)
    WideConfig(tokens=16, split=4).check(scheme, 512, HOPPER)
    with pytest.raises(ArgumentError, match="ctas"):
        WideConfig(tokens=16, ctas=1025).check(scheme, 512, HOPPER)
    WideConfig(tokens=16, ctas=1024).check(scheme, 512, HOPPER)
    with pytest.raises(ArgumentError, match="ctas"):
        WideConfig(tokens=16, ctas=132, split=2)


def test_launch_config() -> None:
    scheme = Scheme(4, 128, "bfloat16")
    config = WideConfig(tokens=16, tiles=2, warpgroups=2, split=3)
    launch = config.launch_config(scheme, 9, 4096, 1000)
    assert (launch.grid, launch.block, launch.cluster) == ((3, 4, 1), (384, 1, 1), (3, 1, 1))
    assert launch.programmatic and launch.shared_bytes == config.shared_bytes(scheme)
    stream = WideConfig(tokens=16, tiles=2, warpgroups=2, ctas=20).launch_config(scheme, 9, 4096, 1000)
    assert (stream.grid, stream.cluster) == ((20, 1, 1), (1, 1, 1))
    assert config.launch_config(scheme, 17, 4096, 1000).grid == (3, 8, 1)
