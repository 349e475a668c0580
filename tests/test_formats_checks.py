"""Metadata that is unset, out of range or contradictory: the right reading or an error that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats import from_awq, from_compressed_tensors, from_gptq
from swordfish.weights import PackedWeight, dequantize
from tests.fixtures.oracles import pack_awq, pack_columns, pack_rows, random_layer, values

K, N, GROUP = 256, 64, 64


def make(
    k: int = K, n: int = N, group_size: int = GROUP, bits: int = 4, order: bool = False
) -> dict[str, Any]:
    codes, scales, _, g_idx = random_layer(np.random.default_rng(1), k, n, bits, group_size, order)
    expected = values(codes, scales, 1 << (bits - 1), g_idx).astype(np.float16)
    return {
        "codes": codes,
        "scales": scales,
        "g_idx": g_idx,
        "values": expected,
        "bits": bits,
        "size": group_size,
    }


def gptq(layer: dict[str, Any], **changes: Any) -> PackedWeight:
    args: dict[str, Any] = {
        "qweight": pack_rows(layer["codes"], layer["bits"]),
        "scales": torch.from_numpy(layer["scales"]),
        "bits": layer["bits"],
        "group_size": layer["size"],
        "dtype": torch.float16,
    }
    return from_gptq(**{**args, **changes})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_unset_or_wide_g_idx(dtype: torch.dtype) -> None:
    layer = make()
    for g_idx in (None, torch.full((K,), -1, dtype=dtype), torch.from_numpy(layer["g_idx"]).to(dtype)):
        w = gptq(layer, g_idx=g_idx)
        assert w.perm is None and np.array_equal(dequantize(w).numpy(), layer["values"])


def test_int64_act_order() -> None:
    layer = make(order=True)
    w = gptq(layer, g_idx=torch.from_numpy(layer["g_idx"]).long())
    assert w.perm is not None and np.array_equal(dequantize(w).numpy(), layer["values"])


@pytest.mark.parametrize("entry", [4, -3, 1 << 20])
def test_g_idx_out_of_range(entry: int) -> None:
    layer = make()
    g_idx = torch.from_numpy(layer["g_idx"].copy())
    g_idx[17] = entry
    with pytest.raises(ArgumentError, match=rf"g_idx={entry} \(row 17\).*0 to 3"):
        gptq(layer, g_idx=g_idx)


def test_g_idx_of_wrong_length_or_dtype() -> None:
    layer = make()
    with pytest.raises(ArgumentError, match=r"g_idx.shape=\(255,\)"):
        gptq(layer, g_idx=torch.from_numpy(layer["g_idx"])[:-1])
    with pytest.raises(ArgumentTypeError, match=r"g_idx=torch.float32"):
        gptq(layer, g_idx=torch.from_numpy(layer["g_idx"]).float())


def test_scales_or_weight_with_a_row_missing() -> None:
    layer = make()
    with pytest.raises(ArgumentError, match=r"scale rows=3 .*expected 4 \(K=256, group_size=64\)"):
        gptq(layer, scales=torch.from_numpy(layer["scales"][:3]))
    with pytest.raises(ArgumentError, match=r"K=248 .*multiple of group_size=64 or of 32"):
        gptq(layer, qweight=pack_rows(layer["codes"], 4)[:-1])
    with pytest.raises(ArgumentError, match=r"g_idx.shape=\(256,\)"):
        shuffled = torch.from_numpy(layer["g_idx"]).flip(0)
        gptq(layer, qweight=pack_rows(layer["codes"], 4)[:-1], g_idx=shuffled)


def test_scale_rows_that_contradict_the_group_size() -> None:
    layer = make(k=384, group_size=32)
    doubled = torch.from_numpy(layer["scales"]).repeat(2, 1)
    with pytest.raises(ArgumentError, match=r"scale rows=24 .*expected 12 \(K=384, group_size=32\)"):
        gptq(layer, scales=doubled)
    with pytest.raises(ArgumentError, match=r"scale rows=24 .*expected 12 \(K=384, group_size=32\)"):
        from_compressed_tensors(
            pack_columns(layer["codes"].T.copy(), 4),
            doubled.t().contiguous(),
            shape=(N, 384),
            bits=4,
            group_size=32,
            dtype=torch.float16,
        )


def test_row_shards_of_an_act_order_layer_with_the_whole_scale_table() -> None:
    layer = make(k=1024, group_size=32, order=True)
    parts = []
    for start in range(0, 1024, 256):
        rows = slice(start, start + 256)
        w = gptq(
            layer,
            qweight=pack_rows(layer["codes"][rows], 4),
            g_idx=torch.from_numpy(layer["g_idx"][rows].copy()),
        )
        parts.append(dequantize(w).numpy())
    assert np.array_equal(np.concatenate(parts), layer["values"])


@pytest.mark.parametrize("bits", [4, 8])
def test_channelwise_spellings_agree(bits: int) -> None:
    layer = make(k=512, group_size=-1, bits=bits)
    for size in (-1, None, 512):
        w = gptq(layer, group_size=size)
        assert np.array_equal(dequantize(w).numpy(), layer["values"])
        assert w.scheme.group_size == -1
    for size in (0, -2):
        with pytest.raises(ArgumentError, match=rf"group_size={size} is not allowed"):
            gptq(layer, group_size=size)


@pytest.mark.parametrize("bits", [2, 3, 5, 6, None, True, "four", 4.5])
def test_other_bit_widths_are_refused(bits: object) -> None:
    with pytest.raises(ArgumentError, match=rf"bits={bits} is not allowed: expected 4 or 8"):
        gptq(make(), bits=bits)
    with pytest.raises(ArgumentError, match=rf"bits={bits} is not allowed: expected 4 or 8"):
        tensors = torch.zeros(64, 32, dtype=torch.int32), torch.ones(64, 4)
        from_compressed_tensors(*tensors, shape=(64, 256), bits=bits, group_size=64, dtype=torch.float16)


@pytest.mark.parametrize("bits", ["4", 4.0])
def test_bits_written_otherwise_are_converted(bits: object) -> None:
    layer = make()
    assert np.array_equal(dequantize(gptq(layer, bits=bits)).numpy(), layer["values"])


def test_messages_name_the_cause() -> None:
    with pytest.raises(ArgumentError, match=r"group_size=48 .*multiple of 32"):
        gptq(make(k=192, group_size=48))
    with pytest.raises(ArgumentError, match=r"K=104 .*group_size=64 or of 32"):
        gptq(make(k=104, group_size=64))
    with pytest.raises(ArgumentTypeError, match=r"qweight=torch.int64 of shape .*torch.int32"):
        gptq(make(), qweight=torch.zeros(32, 64, dtype=torch.int64))
    with pytest.raises(ArgumentTypeError, match=r"scales=torch.float64 of shape"):
        gptq(make(), scales=torch.ones(4, 64, dtype=torch.float64))
    with pytest.raises(ArgumentError, match=r"scales.shape=\(4, 63\).*\(4, 64\)"):
        gptq(make(), scales=torch.ones(4, 63))
    with pytest.raises(ArgumentError, match=r"qweight.shape=\(32,\).*2 dimensions"):
        gptq(make(), qweight=torch.zeros(32, dtype=torch.int32))
    with pytest.raises(ArgumentTypeError, match=r"sym='yes'"):
        gptq(make(), sym="yes")
    with pytest.raises(ArgumentError, match=r"weight_packed.shape=\(64, 32\).*\(64, 33\)"):
        tensors = torch.zeros(64, 32, dtype=torch.int32), torch.ones(64, 1)
        from_compressed_tensors(*tensors, shape=(64, 260), bits=4, group_size=-1, dtype=torch.float16)


@pytest.mark.parametrize(("k", "n"), [(128, 8), (128, 24), (96, 72), (64, 201), (256, 96)])
def test_shapes_that_are_no_multiples_of_64(k: int, n: int) -> None:
    layer = make(k=k, n=n, group_size=32)
    w = gptq(layer, qzeros=pack_columns(np.full((k // 32, n), 7, np.uint8), 4))
    assert w.shape == (k, n) and w.scales.shape == (k // 32, n)
    assert np.array_equal(dequantize(w).numpy(), layer["values"])


def test_short_last_group() -> None:
    layer = make(k=192, group_size=128)
    assert np.array_equal(dequantize(gptq(layer)).numpy(), layer["values"])


@pytest.mark.parametrize("bias_dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_bias_is_kept_in_natural_order_in_the_activation_dtype(bias_dtype: torch.dtype) -> None:
    layer = make(n=200, order=True)
    bias = torch.arange(400, dtype=bias_dtype)[::2]
    assert not bias.is_contiguous()
    w = gptq(layer, g_idx=torch.from_numpy(layer["g_idx"]), bias=bias)
    assert w.bias is not None and torch.equal(w.bias, bias.to(torch.float16))
    zeros, scales = np.full((4, 64), 8, np.uint8), torch.ones(4, 64, dtype=torch.float16)
    codes = np.zeros((K, N), np.uint8)
    w = from_awq(
        pack_awq(codes), scales, pack_awq(zeros), group_size=64, dtype=torch.bfloat16, bias=bias[:64]
    )
    assert w.bias is not None and torch.equal(w.bias, bias[:64].to(torch.bfloat16))
    assert gptq(layer).bias is None
    with pytest.raises(ArgumentError, match=r"bias.shape=\(100,\).*\(200,\)"):
        gptq(layer, bias=bias[:100])


def test_sources_may_be_views() -> None:
    layer = make()
    wide = torch.zeros(K // 8, N + 16, dtype=torch.int32)
    wide[:, 8 : 8 + N] = pack_rows(layer["codes"], 4)
    tall = torch.zeros(2 * K // GROUP, N, dtype=torch.float16)
    tall[::2] = torch.from_numpy(layer["scales"])
    w = gptq(layer, qweight=wide[:, 8 : 8 + N], scales=tall[::2])
    assert np.array_equal(dequantize(w).numpy(), layer["values"])
    tall.zero_()
    wide.zero_()
    assert np.array_equal(dequantize(w).numpy(), layer["values"])  # nothing of the source is kept


def test_row_shards_that_cut_a_group_say_so_by_g_idx() -> None:
    layer = make(k=384, group_size=128)
    scales, g_idx = torch.from_numpy(layer["scales"]), torch.from_numpy(layer["g_idx"])
    parts = []
    for start, first in ((0, 0), (192, 1)):
        rows = slice(start, start + 192)
        w = gptq(
            layer,
            qweight=pack_rows(layer["codes"][rows], 4),
            scales=scales[first : first + 2],
            g_idx=g_idx[rows] - first,
        )
        parts.append(dequantize(w).numpy())
    assert np.array_equal(np.concatenate(parts), layer["values"])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16])
def test_unpacked_zero_points_of_gptq_and_awq_are_refused(dtype: torch.dtype) -> None:
    layer = make()
    zeros = torch.full((K // GROUP, N), 8).to(dtype)
    with pytest.raises(ArgumentTypeError, match=r"qzeros=torch.* of shape \(4, 64\) .*expected torch.int32"):
        gptq(layer, qzeros=zeros)
    with pytest.raises(ArgumentTypeError, match=r"qzeros=torch.* of shape \(4, 64\) .*expected torch.int32"):
        scales = torch.from_numpy(layer["scales"])
        from_awq(pack_awq(layer["codes"]), scales, zeros, group_size=64, dtype=torch.float16)
    with pytest.raises(ArgumentError, match=r"qzeros.shape=\(8, 4\) .*expected \(4, 8\)"):
        gptq(layer, qzeros=torch.full((8, 4), 0x77777777, dtype=torch.int32))
