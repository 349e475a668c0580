"""Which kernel is chosen: device limits (C15), how many kernels there are (C34), messages (C35, C36)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.decode import choose
from swordfish.dispatch import plan, sources_for
from swordfish.runtime import device
from swordfish.runtime.device import KNOWN_ARCHS, DeviceProps
from swordfish.runtime.registry import Source
from tests.products import layer

SCHEME = sf.Scheme(4, 128, "bfloat16")


@pytest.mark.parametrize("kib", [48, 64, 99, 163])
@pytest.mark.parametrize("bits", [4, 8])
def test_c15_smaller_shared_memory_gives_a_smaller_tile(kib: int, bits: int) -> None:
    props = DeviceProps.for_target("sm_90a")
    small = replace(props, smem_per_cta=kib << 10, smem_per_sm=(kib + 1) << 10)
    scheme = replace(SCHEME, bits=bits)
    for m in (1, 8, 64, 128, 256):
        for gpu in (small, props):
            launch = choose(m, 1024, 1024, scheme, gpu).config.launch_config(scheme, 1, 1024, 1024)
            assert launch.shared_bytes <= gpu.smem_per_cta


def test_c15_too_little_shared_memory_is_named() -> None:
    props = replace(DeviceProps.for_target("sm_90a"), smem_per_cta=4096, smem_per_sm=8192)
    with pytest.raises(
        sf.ArgumentError, match=r"expected at most 4096 bytes of shared memory per CTA. It needs \d+"
    ):
        choose(1, 1024, 1024, SCHEME, props)


@pytest.mark.parametrize("arch", KNOWN_ARCHS)
@pytest.mark.parametrize(
    "shape", [(4096, 4096), (4096, 512), (8192, 8192), (1024, 28672), (192, 64)], ids=str
)
@pytest.mark.parametrize(
    ("act_order", "padded"),
    [(False, False), (True, False), (True, True)],
    ids=["natural", "act-order", "padded groups"],
)
def test_c34_few_kernels_serve_every_row_count(
    arch: str, shape: tuple[int, int], act_order: bool, padded: bool
) -> None:
    """A kernel depends on M through its configuration only; ahead-of-time builds make exactly those."""
    props, (k, n) = DeviceProps.for_target(arch), shape
    scheme = replace(SCHEME, act_order=act_order)
    used: set[Source] = set()
    for m in (*range(1, 513), *range(513, 8192, 37)):
        used.update(plan(m, n, k, scheme, props, padded_rows=padded).sources(scheme, k, n))
    built = sources_for(scheme, k, n, props, padded_rows=padded)
    assert used <= set(built) and len(built) == len(set(built))
    assert len(built) <= 32


def test_c35_a_gpu_of_another_family_is_refused_by_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary layer on a Turing GPU, as far as torch tells: the message is about the GPU."""
    turing = SimpleNamespace(
        major=7,
        minor=5,
        multi_processor_count=40,
        shared_memory_per_block_optin=65536,
        shared_memory_per_multiprocessor=65536,
        L2_cache_size=1 << 22,
        regs_per_multiprocessor=65536,
        name="an older GPU",
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: turing)
    device._cuda_props.cache_clear()
    try:
        with pytest.raises(sf.UnsupportedDeviceError) as caught:
            device.device_props("cuda:0")
    finally:
        device._cuda_props.cache_clear()
    first, _, second = str(caught.value).partition(". ")
    assert first.startswith(
        "the GPU has compute capability 7.5, but Swordfish needs compute capability 9.0 (sm_90a)"
    )
    assert second.startswith("Run on one of these GPUs, or keep the tensors on the CPU")


def _codes(k: int) -> dict[str, Any]:
    return {"codes": torch.zeros(k, 8, dtype=torch.uint8), "bits": 4, "dtype": torch.float16}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sf.pack(scales=torch.ones(2, 8), group_size=48, **_codes(96)),
            "group_size=48 is not allowed: expected -1 (channelwise) or a positive multiple of 32",
        ),
        (
            lambda: sf.pack(scales=torch.ones(3, 8), group_size=32, **_codes(100)),
            "scales.shape[0]=3 is not allowed: expected 4 for K=100, group_size=32",
        ),
        (
            lambda: sf.mm(torch.zeros(1, 128), layer(128, 8).weight),
            "x.dtype=torch.float32 is not allowed: expected torch.float16, for which the weight was packed",
        ),
        (
            lambda: sf.pack(scales=torch.ones(1, 8), group_size=-1, **{**_codes(64), "dtype": torch.float32}),
            "dtype=torch.float32 is not allowed: expected torch.float16 or torch.bfloat16",
        ),
        (
            lambda: layer(128, 256).weight.shard("k", 0, 4),
            "world=4 is not allowed: expected one of [1, 2], which cut K=128 into whole blocks of 64",
        ),
        (
            lambda: layer(128, 8, act_order=True, group_size=32).weight.shard("k", 0, 2),
            "dim='k' is not allowed: expected 'n' for a weight with act-order",
        ),
        (lambda: sf.explain("w", 1), "w=str is not allowed: expected a PackedWeight"),  # type: ignore[arg-type]
    ],
)
def test_c36_the_first_sentence_names_the_cause(call: Callable[[], object], message: str) -> None:
    with pytest.raises((sf.ArgumentError, sf.ArgumentTypeError)) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_explain_says_which_kernel_and_why() -> None:
    w = layer(4096, 128).weight
    assert sf.explain(w, 1).path == "reference" and "no GPU emulated" in str(sf.explain(w, 1))
    with sf.emulate("sm_100a"):
        plan = sf.explain(w, 3)
    assert plan.path == "decode" and plan.config is not None and plan.config.rows == 4
    assert str(plan) == f"decode {plan.config}: {plan.reason}" and "148 SMs" in plan.reason
