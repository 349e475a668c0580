"""Every registered format decodes to the values that an independent oracle gives."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch

import swordfish.formats as formats
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats import FORMATS, from_awq, from_compressed_tensors, from_gguf, from_gptq
from swordfish.weights import QuantizedWeight, dequantize, pack_weight
from tests.fixtures.oracles import SAMPLES, Sample, decode_awq, decode_compressed_tensors, decode_gptq


@cache
def samples(name: str) -> list[Sample]:
    return SAMPLES[name](np.random.default_rng(7))


def read(name: str, sample: Sample) -> QuantizedWeight:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "qzeros holds .*read as zero point 0")
        return FORMATS[name].read(sample.tensors, sample.params)


def rounded_once(q: QuantizedWeight, sample: Sample, dtype: torch.dtype) -> torch.Tensor:
    """``round((q - z) * round(s))`` by float64, where all products and sums here are exact."""
    k = sample.codes.shape[0]
    size = k if q.group_size == -1 else q.group_size
    group = torch.arange(k) // size if q.g_idx is None else q.g_idx.long()
    codes, scales = torch.from_numpy(sample.codes).double(), q.scales.to(dtype).double()[group]
    if q.zero_kind == "offset":
        exact = codes * scales + q.zeros.to(dtype).double()[group]
    else:
        exact = (codes - (1 << (q.bits - 1) if q.zeros is None else q.zeros[group])) * scales
    return exact.to(torch.float32).to(dtype) if q.zero_kind != "offset" else round_double(exact, dtype)


def round_double(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 to 16 bits with one rounding: the float32 in between is rounded to odd."""
    near = exact.float()
    bits = near.view(torch.int32)
    away = (near.double().abs() > exact.abs()).int()
    odd = torch.where((near.double() == exact) | (bits & 1 == 1), bits, bits + 1 - 2 * away)
    return odd.view(torch.float32).to(dtype)


def test_every_format_has_samples() -> None:
    assert set(SAMPLES) == set(FORMATS)
    for fmt in FORMATS.values():
        widths = {sample.params.bits for sample in samples(fmt.name)}
        assert widths == set(fmt.bits)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.filterwarnings("ignore:qzeros holds")
def test_reference_dequantise(name: str) -> None:
    for sample in samples(name):
        got = FORMATS[name].dequantize(sample.tensors, sample.params)
        assert got.dtype == torch.float32
        assert np.array_equal(got.numpy(), sample.values), sample.label


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_read_gives_codes_and_shape(name: str) -> None:
    for sample in samples(name):
        q = read(name, sample)
        codes = q.codes if isinstance(q.codes, torch.Tensor) else q.codes.columns(0, q.shape[1])
        assert q.shape == sample.values.shape == FORMATS[name].shape(sample.tensors, sample.params), (
            sample.label
        )
        assert np.array_equal(codes.numpy(), sample.codes), sample.label
        assert (
            q.scales.dtype == sample.tensors.get("scales", sample.tensors.get("weight_scale", q.scales)).dtype
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packed_weight_equals_the_oracle(name: str, dtype: torch.dtype) -> None:
    for sample in samples(name):
        q = read(name, sample)
        got = dequantize(pack_weight(q, dtype))
        assert torch.equal(got, rounded_once(q, sample, dtype)), sample.label
        if dtype == q.scales.dtype and q.zero_kind != "offset":
            assert np.array_equal(got.numpy(), sample.values.astype(np.float16)), sample.label


def test_columns_read_separately_equal_the_whole() -> None:
    for name in FORMATS:
        sample = max(samples(name), key=lambda s: s.codes.shape[1])
        source = read(name, sample).codes
        n = source.shape[1]
        parts = [source.columns(start, min(start + 64, n)) for start in range(0, n, 64)]
        assert np.array_equal(torch.cat(parts, dim=1).numpy(), sample.codes), name


@pytest.mark.filterwarnings("ignore:qzeros holds")
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_from_gptq(version: str) -> None:
    for sample in samples(version):
        t, p = sample.tensors, sample.params
        w = from_gptq(
            t["qweight"],
            t["scales"],
            t["qzeros"],
            t["g_idx"],
            bits=p.bits,
            group_size=p.group_size,
            sym=p.symmetric,
            checkpoint_format=version,
            dtype=torch.float16,
        )
        assert w.scheme.act_order == (w.perm is not None) == bool(p.act_order), sample.label
        oracle = decode_gptq(t, p.bits, p.group_size or -1, 1 if version == "gptq" else 0)
        assert np.array_equal(dequantize(w).numpy(), oracle.astype(np.float16)), sample.label


def test_from_gptq_without_zero_points_is_symmetric() -> None:
    sample = next(s for s in samples("gptq") if s.params.symmetric and not s.params.act_order)
    t = sample.tensors
    w = from_gptq(t["qweight"], t["scales"], bits=4, group_size=64, dtype=torch.float16)
    assert w.zeros is None and np.array_equal(dequantize(w).numpy(), sample.values.astype(np.float16))
    with pytest.raises(ArgumentError, match=r"qzeros=None"):
        from_gptq(t["qweight"], t["scales"], bits=4, group_size=64, sym=False, dtype=torch.float16)


def test_from_awq() -> None:
    for sample in samples("awq"):
        t, size = sample.tensors, sample.params.group_size
        w = from_awq(t["qweight"], t["scales"], t["qzeros"], group_size=size, dtype=torch.float16)
        expected = (
            decode_awq(t, sample.codes.shape[0] if size == -1 else size) if size != 128 else sample.values
        )
        assert np.array_equal(dequantize(w).numpy(), expected.astype(np.float16)), sample.label
        assert w.scheme.zeros == "integer"


@pytest.mark.parametrize("as_tensor", [False, True])
def test_from_compressed_tensors(as_tensor: bool) -> None:
    for sample in samples("compressed-tensors"):
        t, p = sample.tensors, sample.params
        shape = t["weight_shape"] if as_tensor else tuple(t["weight_shape"].tolist())
        w = from_compressed_tensors(
            t["weight_packed"],
            t["weight_scale"],
            t.get("weight_zero_point"),
            t.get("weight_g_idx"),
            shape=shape,
            bits=p.bits,
            group_size=p.group_size,
            dtype=torch.float16,
        )
        assert w.scheme.zeros == ("none" if p.symmetric else "integer"), sample.label
        size = sample.codes.shape[0] if p.group_size == -1 else p.group_size
        half = {**t, "weight_scale": t["weight_scale"].half()}
        oracle = decode_compressed_tensors(half, p.bits, size)
        assert np.array_equal(dequantize(w).numpy(), oracle.astype(np.float16)), sample.label


@pytest.mark.parametrize("quant_type", ["Q4_0", "Q4_1", "Q8_0"])
def test_from_gguf(quant_type: str) -> None:
    for sample in samples(f"gguf-{quant_type.lower()}"):
        w = from_gguf(sample.tensors["blocks"], quant_type=quant_type, dtype=torch.float16)
        error = np.abs(dequantize(w).float().numpy() - sample.values)
        assert (error <= np.abs(sample.values) * 2.0**-11 + 2.0**-25).all(), sample.label  # half an ulp
        assert w.scheme.group_size == 32 and w.scheme.zeros == ("offset" if quant_type == "Q4_1" else "none")


def test_from_gguf_refuses_other_types_and_broken_rows() -> None:
    blocks = torch.zeros(8, 36, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=r"quant_type=Q4_K .*'Q4_0', 'Q4_1' or 'Q8_0'"):
        from_gguf(blocks, quant_type="Q4_K", dtype=torch.float16)
    with pytest.raises(ArgumentError, match=r"blocks.shape=\(8, 35\).*18 bytes"):
        from_gguf(blocks[:, :35], quant_type="Q4_0", dtype=torch.float16)


def test_registering_a_name_twice_or_asking_for_an_unknown_one_raises() -> None:
    with pytest.raises(ValueError, match=r"'awq' is already registered"):
        formats.register(type(FORMATS["awq"]))
    with pytest.raises(ArgumentError, match=r"format=exl2 .*gptq"):
        formats.get_format("exl2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, "float64", None])
def test_other_activation_dtypes_are_refused(dtype: object) -> None:
    t = samples("awq")[0].tensors
    with pytest.raises(
        ArgumentTypeError, match=r"dtype=.* is not allowed: expected torch.float16 or torch.bfloat16"
    ):
        from_awq(t["qweight"], t["scales"], t["qzeros"], group_size=64, dtype=dtype)


def test_missing_tensors_are_named() -> None:
    t = samples("awq")[0].tensors
    with pytest.raises(ArgumentTypeError, match=r"qzeros=NoneType"):
        from_awq(t["qweight"], t["scales"], None, group_size=64, dtype=torch.float16)
