"""Devices told apart by their properties, and tensor maps within the limits of the hardware."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from swordfish.errors import ArgumentError, UnsupportedDeviceError
from swordfish.runtime import DeviceProps, TensorMap, arch_for_capability, device_props

# --- tensor maps


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dtype": "float8"}, "dtype"),
        ({"dims": ()}, "dims"),
        ({"dims": (0, 64)}, "dims"),
        ({"strides": (250,)}, "strides"),
        ({"strides": ()}, "strides"),
        ({"box": (257, 4)}, "box"),
        ({"box": (3, 4)}, "box"),
        ({"box": (64, 4), "swizzle": "128"}, "box"),
        ({"swizzle": "96"}, "swizzle"),
        ({"element_strides": (9, 1)}, "element_strides"),
        ({"tensor": torch.zeros(65)[1:]}, "tensor"),
    ],
)
def test_tensor_maps_outside_the_limits_are_refused(fields: dict[str, Any], name: str) -> None:
    good = {
        "tensor": torch.zeros(64, 64),
        "dtype": "float32",
        "dims": (64, 64),
        "strides": (256,),
        "box": (16, 4),
    }
    TensorMap(**good)
    with pytest.raises(ArgumentError, match=f"^{name}="):
        TensorMap(**{**good, **fields})


# --- devices


def test_families_are_told_apart_not_compared() -> None:
    known = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (11, 0): "sm_110a"}
    assert {capability: arch_for_capability(capability) for capability in known} == known


@pytest.mark.parametrize(
    "capability", [(7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 1), (10, 1), (12, 0), (12, 1), (13, 0)]
)
def test_the_first_sentence_names_what_was_found_and_what_is_needed(capability: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedDeviceError) as caught:
        arch_for_capability(capability)
    first = str(caught.value).split(". ")[0]
    assert f"compute capability {capability[0]}.{capability[1]}" in first
    assert "9.0 (sm_90a)" in first and "11.0 (sm_110a)" in first
    assert "reference path" in str(caught.value)


def test_properties_of_a_device_come_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.SimpleNamespace(
        major=9,
        minor=0,
        multi_processor_count=114,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 << 20,
        regs_per_multiprocessor=65536,
        name="a card",
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    from swordfish.runtime.device import _cuda_props

    _cuda_props.cache_clear()
    props = device_props("cuda:5")
    _cuda_props.cache_clear()
    assert props.arch == "sm_90a" and props.sm_count == 114 and props.l2_bytes == 50 << 20
    assert props.smem_per_cta == 227 * 1024


def test_targets_without_a_gpu() -> None:
    assert DeviceProps.for_target("sm_90a").sm_count == 132
    assert DeviceProps.for_target("sm_110a").sm_count == 20
    with pytest.raises(UnsupportedDeviceError, match="sm_120a"):
        DeviceProps.for_target("sm_120a")
