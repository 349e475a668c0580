"""The dequantise kernel against the torch reference, bit for bit, and the product behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.dense import WORKSPACE_BYTES, DequantConfig, dense_mm, dequant, dequantize_into
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.weights import dequantize_by_torch
from tests.backends import BACKENDS, EMULATED, Backend, quantised

SCHEMES: dict[str, dict[str, Any]] = {
    "symmetric": {},
    "symmetric g32 fp16": {"group_size": 32, "dtype": torch.float16},
    "symmetric channelwise": {"group_size": -1},
    "zero points g64": {"zeros": "integer", "group_size": 64},
    "zero points channelwise fp16": {"zeros": "integer", "group_size": -1, "dtype": torch.float16},
    "offsets g32": {"zeros": "offset", "group_size": 32},
    "offsets g96 fp16": {"zeros": "offset", "group_size": 96, "dtype": torch.float16},
    "act-order": {"act_order": True, "group_size": 32},
    "act-order, zero points": {"act_order": True, "group_size": 64, "zeros": "integer"},
}

SHAPES = [(64, 64), (128, 320), (200, 200), (161, 36), (33, 1), (97, 71)]


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.int16).cpu()


def expand(w: sf.PackedWeight, backend: Backend, *, transposed: bool = False) -> torch.Tensor:
    """``[K, N]`` by the kernel, into memory that holds NaN and has something behind each row."""
    k, n = w.shape
    rows, columns = (n, k) if transposed else (k, n)
    room = torch.full((rows, columns + 8), float("nan"), dtype=w.dtype, device=backend.device)
    with backend.active():
        dequantize_into(w, room[:, :columns], transposed=transposed)
    assert room[:, columns:].isnan().all()
    return room[:, :columns].T if transposed else room[:, :columns]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
@pytest.mark.parametrize("int_bits", [4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_bits_as_the_reference(scheme: str, int_bits: int, transposed: bool, backend: Backend) -> None:
    w = quantised(160, 200, bits=int_bits, device=backend.device, **SCHEMES[scheme])
    assert torch.equal(bits(expand(w, backend, transposed=transposed)), bits(dequantize_by_torch(w)))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
@pytest.mark.parametrize("int_bits", [4, 8])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_any_shape(k: int, n: int, int_bits: int, transposed: bool, backend: Backend) -> None:
    w = quantised(k, n, bits=int_bits, group_size=32, zeros="integer", device=backend.device)
    assert torch.equal(bits(expand(w, backend, transposed=transposed)), bits(dequantize_by_torch(w)))


def unequal_groups(dtype: torch.dtype = torch.bfloat16) -> sf.PackedWeight:
    """An act-order shard whose groups were filled up: some packed rows are padding."""
    g = torch.Generator().manual_seed(3)
    g_idx = torch.randperm(256, generator=g)[:150] // 32
    codes = torch.randint(0, 16, (150, 72), dtype=torch.uint8, generator=g)
    w = sf.pack(codes, torch.rand(8, 72, generator=g), None, g_idx.int(), bits=4, group_size=32, dtype=dtype)
    assert w.packed_k > w.shape[0]
    return w


@pytest.mark.parametrize("backend", EMULATED, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
def test_rows_of_padding_are_not_written(transposed: bool, backend: Backend) -> None:
    w = unequal_groups()
    assert torch.equal(bits(expand(w, backend, transposed=transposed)), bits(dequantize_by_torch(w)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zeros", ["none", "integer", "offset"])
@pytest.mark.parametrize("int_bits", [4, 8])
def test_every_code_with_extreme_scales(int_bits: int, zeros: str, dtype: torch.dtype) -> None:
    """Subnormal results, overflow to infinity, negative zeros: as the reference rounds them."""
    tiny, huge = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    if zeros == "offset" and dtype == torch.bfloat16:
        huge /= 1 << int_bits  # the reference adds in fp32, where a larger product is infinite before the sum
    scales = torch.tensor([tiny, -tiny / 8, tiny * 2.0**-7, huge, -huge / 3, 1.0, -0.0, 0.0], dtype=dtype)
    levels, columns = 1 << int_bits, len(scales)
    codes = torch.arange(levels).to(torch.uint8).repeat(-(-64 // levels))[:, None].expand(-1, columns)
    z = None
    if zeros == "integer":
        z = torch.tensor([[0, levels, 1, levels - 1, levels // 2, 3, 5, levels]])
    elif zeros == "offset":
        z = torch.tensor([[tiny, tiny / 4, -tiny, -huge, huge, -3.0, -0.0, 0.0]], dtype=dtype)
    w = sf.pack(
        codes.contiguous(),
        scales[None],
        z,
        bits=int_bits,
        group_size=-1,
        dtype=dtype,
        zero_kind=zeros,  # type: ignore[arg-type]
    )
    for backend in EMULATED:
        assert torch.equal(bits(expand(w, backend)), bits(dequantize_by_torch(w)))


@pytest.mark.parametrize("backend", EMULATED, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
@pytest.mark.parametrize("int_bits", [4, 8])
def test_no_bank_conflicts_and_no_findings(int_bits: int, transposed: bool, backend: Backend) -> None:
    w = quantised(128, 256, bits=int_bits, zeros="integer")
    out = torch.empty(256, 128, dtype=w.dtype) if transposed else torch.empty(128, 256, dtype=w.dtype)
    with sf.emulate(backend.name) as emulation:
        dequantize_into(w, out, transposed=transposed)
    report = emulation.reports[-1].raise_on_findings()
    assert report.conflicts == 0
    assert sum(line.wavefronts for line in report.shared) > 0


@pytest.mark.parametrize(
    ("offset", "pitch", "width"), [(0, 80, 8), (4, 80, 4), (0, 74, 2), (1, 80, 1), (0, 75, 1)]
)
def test_stores_as_wide_as_the_alignment_allows(offset: int, pitch: int, width: int) -> None:
    w = quantised(64, 72)
    storage = torch.full((64 * pitch + 16,), float("nan"), dtype=w.dtype)
    out = storage[offset : offset + 64 * pitch].view(64, pitch)[:, :72]
    assert DequantConfig.for_output(out, transposed=False).width == width
    with sf.emulate("sm_90a"):
        dequantize_into(w, out)
    assert torch.equal(bits(out), bits(dequantize_by_torch(w)))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("int_bits", [4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("k", "n"), [(160, 200), (90, 1032), (16, 512)])
def test_large_outputs_are_stored_by_the_copy_engine(
    k: int, n: int, scheme: str, int_bits: int, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of rows that end with the row, or inside its last block; rows that end inside a block."""
    w = quantised(k, n, bits=int_bits, device=backend.device, **SCHEMES[scheme])
    monkeypatch.setattr(dequant, "BULK_BYTES", 2 * k * n)
    assert DequantConfig.for_output(torch.empty(k, n, dtype=w.dtype), transposed=False).bulk
    assert torch.equal(bits(expand(w, backend, transposed=False)), bits(dequantize_by_torch(w)))


def test_the_copy_engine_leaves_out_what_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of padding, and columns beside a part; stores that are too narrow for it go as ever."""
    monkeypatch.setattr(dequant, "BULK_BYTES", 0)
    w = unequal_groups()
    assert torch.equal(bits(expand(w, EMULATED[0], transposed=False)), bits(dequantize_by_torch(w)))
    w = quantised(96, 200, zeros="integer", group_size=32)
    out = torch.full((96, 136), float("nan"), dtype=w.dtype)
    with sf.emulate("sm_90a"):
        dequantize_into(w, out[:, :128], columns=(64, 192))
    assert torch.equal(bits(out[:, :128]), bits(dequantize_by_torch(w)[:, 64:192]))
    assert out[:, 128:].isnan().all()
    assert not DequantConfig.for_output(out[:, 4:12], transposed=False).bulk
    assert not DequantConfig.for_output(out, transposed=True).bulk


@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
def test_some_columns(transposed: bool) -> None:
    w = quantised(96, 200, zeros="integer", group_size=32)
    wanted = dequantize_by_torch(w)[:, 64:190]
    out = torch.empty((126, 96) if transposed else (96, 126), dtype=w.dtype)
    with sf.emulate("sm_90a"):
        dequantize_into(w, out, transposed=transposed, columns=(64, 190))
    assert torch.equal(bits(out.T if transposed else out), bits(wanted))


def test_what_does_not_fit_is_named() -> None:
    w = quantised(64, 128)
    good = torch.empty(64, 128, dtype=w.dtype)
    with sf.emulate("sm_90a"):
        with pytest.raises(ArgumentError, match=r"out.shape=\(128, 64\)"):
            dequantize_into(w, good.T.contiguous())
        with pytest.raises(ArgumentTypeError, match=r"out.dtype"):
            dequantize_into(w, good.half())
        with pytest.raises(ArgumentError, match=r"out.stride"):
            dequantize_into(w, torch.empty(128, 64, dtype=w.dtype).T)
        with pytest.raises(ArgumentError, match="columns"):
            dequantize_into(w, good, columns=(32, 128))
        with pytest.raises(ArgumentError, match=r"out.device"):
            dequantize_into(w, good.to("meta"))
    with pytest.raises(ArgumentError, match="CUDA device"):
        dequantize_into(w, good)
    with pytest.raises(ArgumentError, match="width=3"):
        DequantConfig(width=3)
    for other in ({"width": 4}, {"transposed": True}):
        with pytest.raises(ArgumentError, match="bulk=True"):
            DequantConfig(bulk=True, **other)


def assert_product(w: sf.PackedWeight, x: torch.Tensor, *, limit: int = WORKSPACE_BYTES) -> None:
    """One rounding of the result, and fp32 sums of the rounded weights; into a slice of something larger."""
    n = w.shape[1]
    room = torch.full((x.shape[0], n + 8), float("nan"), dtype=w.dtype)
    out = room[:, :n]
    with sf.emulate("sm_90a") as emulation:
        assert dense_mm(x, w, w.bias, out, limit=limit) is out
    for report in emulation.reports:
        report.raise_on_findings()
    values = dequantize_by_torch(w).double()
    wanted, size = x.double() @ values, x.double().abs() @ values.abs()
    if w.bias is not None:
        wanted, size = wanted + w.bias.double(), size + w.bias.double().abs()
    error = (out.double() - wanted).abs()
    assert (error <= torch.finfo(w.dtype).eps / 2 * wanted.abs() + 2.0**-20 * size).all()
    assert room[:, n:].isnan().all()


def activations(m: int, w: sf.PackedWeight) -> torch.Tensor:
    return torch.randn(m, w.shape[0], generator=torch.Generator().manual_seed(1)).to(w.dtype)


@pytest.mark.parametrize(
    "limit", [WORKSPACE_BYTES, 2 * 96 * 64, 1], ids=["whole", "a block each", "less than a block"]
)
@pytest.mark.parametrize(
    "scheme", [{"bias": True}, {"act_order": True, "group_size": 32}, {"bits": 8}], ids=str
)
def test_product(scheme: dict[str, Any], limit: int) -> None:
    w = quantised(96, 200, **scheme)
    assert_product(w, activations(40, w), limit=limit)


@pytest.mark.parametrize(("k", "n"), [(33, 1), (97, 71), (64, 64)])
@pytest.mark.parametrize("act_order", [False, True])
def test_product_of_any_shape(k: int, n: int, act_order: bool) -> None:
    w = quantised(k, n, act_order=act_order, group_size=32, zeros="integer", dtype=torch.float16, bias=True)
    x = activations(5, w)
    assert_product(w, x)
    assert_product(w, x[:1].expand(3, -1))
    assert_product(w, x.T.contiguous().T)


def test_product_with_rows_of_padding() -> None:
    w = unequal_groups()
    assert_product(w, activations(3, w))
