"""Which path a call takes and what the environment changes; every path gives the product."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import swordfish as sf
from swordfish.dispatch import NO_OVERRIDES, Overrides, overrides, plan
from swordfish.prefill import PrefillConfig, unsupported
from swordfish.runtime import KNOWN_ARCHS, DeviceProps
from tests.backends import quantised
from tests.products import assert_product, layer

INT4, INT8 = sf.Scheme(4, 128, "bfloat16"), sf.Scheme(8, 128, "bfloat16")
B200, THOR, H200 = (DeviceProps.for_target(arch) for arch in ("sm_100a", "sm_110a", "sm_90a"))
SHAPES = [
    (4096, 4096),
    (4096, 6144),
    (4096, 28672),
    (14336, 4096),
    (8192, 8192),
    (8192, 57344),
    (28672, 8192),
]
ROWS = [*range(1, 300), *range(300, 9000, 97)]


def path(m: int, n: int, k: int, scheme: sf.Scheme, props: DeviceProps) -> str:
    return plan(m, n, k, scheme, props).path


@pytest.mark.parametrize("arch", KNOWN_ARCHS)
@pytest.mark.parametrize("bits", [4, 8])
def test_paths_follow_each_other_as_rows_grow(arch: str, bits: int) -> None:
    """Decode, then prefill where there is one, then dense, and never back."""
    props, order = DeviceProps.for_target(arch), ["decode", "prefill", "dense"]
    for k, n in SHAPES:
        taken = [path(m, n, k, replace(INT4, bits=bits), props) for m in ROWS]
        assert [order.index(p) for p in taken] == sorted(order.index(p) for p in taken)
        assert taken[0] == "decode" and ("prefill" in taken) == (arch != "sm_90a")


def test_thresholds_on_blackwell() -> None:
    """Those of the published kernel (B200: 148 SMs, Thor: 20)."""
    assert [path(m, 4096, 4096, INT4, B200) for m in (95, 96, 4095, 4096)] == [
        "decode",
        "prefill",
        "prefill",
        "dense",
    ]
    assert [path(m, 28672, 4096, INT4, B200) for m in (55, 56)] == ["decode", "prefill"], (
        "a tile for every SM"
    )
    assert [path(m, 4096, 14336, INT4, B200) for m in (127, 128)] == ["decode", "prefill"], "long K, narrow N"
    assert [path(m, 4096, 4096, INT8, B200) for m in (1023, 1024)] == ["prefill", "dense"]
    act_order = replace(INT4, act_order=True)
    assert [path(m, 4096, 4096, act_order, B200) for m in (511, 512)] == ["prefill", "dense"]
    assert path(1 << 20, 4096, 4096, INT4, THOR) == "prefill"
    assert [path(m, 4096, 4096, INT8, THOR) for m in (2047, 2048)] == ["prefill", "dense"]
    assert [path(m, 4096, 14336, INT8, THOR) for m in (8191, 8192)] == ["prefill", "dense"]


def test_shapes_that_prefill_refuses_go_elsewhere() -> None:
    assert unsupported(4100, 4096, INT4, B200) is not None
    assert {path(m, 4100, 4096, INT4, B200) for m in ROWS} == {"decode", "dense"}
    assert {path(m, 4096, 4096, sf.Scheme(4, 96, "float16"), B200) for m in ROWS} == {"decode", "dense"}


@pytest.mark.parametrize("props", [H200, B200, THOR], ids=lambda p: p.name)
@pytest.mark.parametrize("wanted", ["decode", "prefill", "dense"])
def test_a_path_can_be_asked_for(props: DeviceProps, wanted: str) -> None:
    for m in (1, 64, 5000):
        found = plan(m, 4096, 4096, INT4, props, wishes=Overrides(path=wanted))
        if wanted == "prefill" and props is H200:
            assert found.path == path(m, 4096, 4096, INT4, props)
            assert "not prefill: sm_90a has no tcgen05" in found.reason
        else:
            assert found.path == wanted and "asked for" in found.reason


def test_the_environment_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWORDFISH_TUNED", raising=False)
    assert overrides() is NO_OVERRIDES
    w = quantised(128, 64)
    with sf.emulate("sm_100a"):
        for value, found in (
            ("dense", "dense"),
            ("decode", "decode"),
            ("prefill", "prefill"),
            ("", "decode"),
        ):
            monkeypatch.setenv("SWORDFISH_PATH", value)
            assert sf.explain(w, 3).path == found
        monkeypatch.setenv("SWORDFISH_PATH", "quick")
        for call in (lambda: sf.explain(w, 3), lambda: sf.mm(torch.zeros(1, 128).bfloat16(), w)):
            with pytest.raises(sf.ArgumentError, match=r"SWORDFISH_PATH='quick'.*decode, prefill, dense"):
                call()
        monkeypatch.delenv("SWORDFISH_PATH")
        assert overrides() is NO_OVERRIDES and sf.explain(w, 3).path == "decode"
    monkeypatch.setenv("SWORDFISH_TUNED", "0")
    assert overrides() == Overrides(tuned=False)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("m", [1, 20])
def test_every_path_gives_the_product(arch: str, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through sf.mm, with zero points, act-order and a bias; x and out with row strides of their own."""
    bias = torch.linspace(-1, 1, 128)
    made = layer(192, 128, dtype=torch.bfloat16, group_size=64, zeros=True, act_order=True, bias=bias)
    x = torch.randn(m, 200, generator=torch.Generator().manual_seed(0)).bfloat16()[:, :192]
    results = {}
    with sf.emulate(arch) as emulation:
        for wanted in ("decode", "prefill", "dense"):
            monkeypatch.setenv("SWORDFISH_PATH", wanted)
            taken = sf.explain(made.weight, m).path
            launches = len(emulation.reports)
            results[taken] = sf.mm(x, made.weight, out=torch.empty(m, 136).bfloat16()[:, :128])
            assert len(emulation.reports) > launches and all(not r.findings for r in emulation.reports)
            # Decode alone uses the weights exactly; the others round each once.
            values = made.values if taken == "decode" else sf.dequantize(made.weight).double()
            assert_product(results[taken], x, values, bias.bfloat16())
    assert set(results) == ({"decode", "dense"} if arch == "sm_90a" else {"decode", "prefill", "dense"})


def test_calls_are_logged_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = quantised(128, 64)
    x = torch.zeros(2, 128).bfloat16()
    with caplog.at_level(logging.INFO, logger="swordfish.dispatch"):
        sf.mm(x, w)
        assert not caplog.records
        monkeypatch.setenv("SWORDFISH_LOG", "dispatch")
        sf.mm(x, w)
        with sf.emulate("sm_90a"):
            sf.mm(x, w)
        monkeypatch.delenv("SWORDFISH_LOG")
        sf.mm(x, w)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2 and all(text.startswith("M=2 PackedWeight(K=128, N=64") for text in texts)
    assert "reference" in texts[0] and "decode ring(" in texts[1]


def test_no_rows_and_the_cpu() -> None:
    assert path(0, 64, 64, INT4, H200) == "empty"
    assert plan(1, 64, 64, INT4, None).path == "reference"
    with pytest.raises(sf.ArgumentError, match="m=-1"):
        plan(-1, 64, 64, INT4, H200)


@pytest.mark.parametrize("arch", KNOWN_ARCHS)
def test_a_plan_knows_its_kernels(arch: str) -> None:
    props = DeviceProps.for_target(arch)
    for m in (1, 64, 100, 3000, 9000):
        found = plan(m, 8192, 4096, INT4, props)
        assert found.sources(INT4, 4096, 8192)
        assert (found.path == "prefill") == isinstance(found.config, PrefillConfig)
    assert plan(3, 8192, 4096, INT4, None).sources(INT4, 4096, 8192) == []
