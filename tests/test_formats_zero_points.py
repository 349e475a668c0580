"""Zero-point conventions: GPTQ version marks and symmetry flags against the tensors, AWQ order, packing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats import from_awq, from_compressed_tensors, from_gptq
from swordfish.weights import PackedWeight, dequantize
from tests.fixtures.oracles import pack_awq, pack_columns, pack_rows, random_layer, values

K, N, GROUP = 256, 64, 64


def layer(bits: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes, scales, _, g_idx = random_layer(np.random.default_rng(3), K, N, bits, GROUP)
    return codes, scales, g_idx


def gptq(stored: np.ndarray | int, bits: int = 4, *, sym: bool, version: str) -> PackedWeight:
    codes, scales, _ = layer(bits)
    if isinstance(stored, int):
        stored = np.full((K // GROUP, N), stored, np.uint8)
    return from_gptq(
        pack_rows(codes, bits),
        torch.from_numpy(scales),
        pack_columns(stored, bits),
        bits=bits,
        group_size=GROUP,
        sym=sym,
        checkpoint_format=version,
        dtype=torch.float16,
    )


def assert_values(w: PackedWeight, zeros: np.ndarray | int, bits: int = 4) -> None:
    codes, scales, g_idx = layer(bits)
    assert np.array_equal(dequantize(w).numpy(), values(codes, scales, zeros, g_idx).astype(np.float16))


@pytest.mark.parametrize(
    ("bits", "stored", "version"), [(4, 7, "gptq"), (4, 8, "gptq_v2"), (8, 127, "gptq"), (8, 128, "gptq_v2")]
)
def test_symmetric_as_declared(bits: int, stored: int, version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = gptq(stored, bits, sym=True, version=version)
    assert w.zeros is None
    assert_values(w, 1 << (bits - 1), bits)


@pytest.mark.parametrize(
    ("bits", "stored", "version"), [(4, 8, "gptq"), (4, 7, "gptq_v2"), (8, 128, "gptq"), (8, 127, "gptq_v2")]
)
def test_symmetric_with_the_other_versions_mark(bits: int, stored: int, version: str) -> None:
    expected = stored - 1 if version == "gptq" else stored + 1
    with pytest.warns(UserWarning, match=rf"qzeros holds {stored}, .* stores {expected}: taken as symmetric"):
        w = gptq(stored, bits, sym=True, version=version)
    assert w.zeros is None
    assert_values(w, 1 << (bits - 1), bits)


@pytest.mark.parametrize(("version", "offset"), [("gptq", 1), ("gptq_v2", 0)])
def test_symmetric_flag_over_zero_points_that_vary(version: str, offset: int) -> None:
    zeros = np.random.default_rng(5).integers(4, 12, (K // GROUP, N)).astype(np.uint8)
    with pytest.warns(UserWarning, match=r"qzeros holds \d+ to \d+, .*: the stored zero points are used"):
        w = gptq(zeros - offset, sym=True, version=version)
    assert_values(w, zeros)


@pytest.mark.parametrize(("version", "offset"), [("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("bits", [4, 8])
def test_asymmetric(bits: int, version: str, offset: int) -> None:
    zeros = np.random.default_rng(5).integers(4, 12, (K // GROUP, N)).astype(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = gptq(zeros - offset, bits, sym=False, version=version)
    assert w.scheme.zeros == "integer"
    assert_values(w, zeros, bits)


@pytest.mark.parametrize("bits", [4, 8])
def test_version_1_zero_point_0_is_stored_as_all_ones_and_warns(bits: int) -> None:
    zeros = np.zeros((K // GROUP, N), np.uint8)
    with pytest.warns(UserWarning, match=r"read as zero point 0"):
        w = gptq((1 << bits) - 1, bits, sym=False, version="gptq")
    assert_values(w, zeros, bits)


def test_unknown_version_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"checkpoint_format=marlin .*'gptq' or 'gptq_v2'"):
        gptq(7, sym=True, version="marlin")


def awq(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> np.ndarray:
    w = from_awq(
        pack_awq(codes),
        torch.from_numpy(scales.astype(np.float16)),
        pack_awq(zeros),
        group_size=64,
        dtype=torch.float16,
    )
    return dequantize(w).numpy()


def test_awq_interleave_of_weights_zeros_and_scales() -> None:
    k, n = np.arange(128)[:, None], np.arange(64)[None, :]
    ones = np.ones((2, 64))
    nines, eights = np.full((128, 64), 9, np.uint8), np.full((2, 64), 8, np.uint8)
    by_column = np.broadcast_to(4 + n % 8, (2, 64)).astype(np.uint8)
    diagonal = ((n + k) % 16).astype(np.uint8)
    halving = np.broadcast_to(2.0 ** -(n % 8), (2, 64))
    assert np.array_equal(awq(nines, by_column, ones), np.broadcast_to(5.0 - n % 8, (128, 64)))
    assert np.array_equal(awq(diagonal, eights, ones), (n + k) % 16 - 8.0)
    assert np.array_equal(awq(nines, eights, halving), np.broadcast_to(2.0 ** -(n % 8), (128, 64)))


def compressed_tensors(zero_point: torch.Tensor) -> PackedWeight:
    codes, scales, _ = layer()
    return from_compressed_tensors(
        pack_columns(codes.T.copy(), 4),
        torch.from_numpy(scales.T.copy()),
        zero_point,
        shape=(N, K),
        bits=4,
        group_size=GROUP,
        dtype=torch.float16,
    )


def test_zero_points_packed_along_n() -> None:
    zeros = np.random.default_rng(5).integers(0, 16, (K // GROUP, N)).astype(np.uint8)
    assert_values(compressed_tensors(pack_rows(zeros.T.copy(), 4)), zeros)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.uint8])
@pytest.mark.parametrize("shape", [(K // GROUP, N), (N, K // GROUP)])
def test_unpacked_zero_points_are_refused(shape: tuple[int, int], dtype: torch.dtype) -> None:
    with pytest.raises(ArgumentTypeError, match=r"weight_zero_point=torch.*of shape .*expected torch.int32"):
        compressed_tensors(torch.full(shape, 3).to(dtype))


def test_packed_zero_points_of_another_shape_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"weight_zero_point.shape=\(4, 8\).*expected \(8, 4\)"):
        compressed_tensors(torch.zeros(4, 8, dtype=torch.int32))
