"""Random weights, the exact reference and the check before each timing."""

from __future__ import annotations

import math

import pytest
import torch

from bench.adapters.base import pack_rows
from bench.data import Weight, activations, check, dequantize, random_weight, reference
from bench.shapes import Problem, Shape, parse_ints, parse_shapes

SMALL = Shape("small", 512, 192)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_zero_mean_with_unit_gain_and_use_every_code(bits, dtype):
    problem = Problem(Shape("t", 2048, 512), bits=bits, dtype=dtype)
    weight = random_weight(problem, "cpu")
    assert weight.codes.dtype == torch.uint8 and weight.scales.dtype == problem.torch_dtype
    assert weight.codes.unique().numel() == 1 << bits
    values = dequantize(weight, slice(None), torch.float64)
    gain = values.square().mean().sqrt().item() * math.sqrt(2048)
    assert abs(values.mean().item()) * math.sqrt(2048) < 0.02
    assert 0.9 < gain < (1.1 if bits == 4 else 3.0)
    assert torch.equal(random_weight(problem, "cpu").codes, weight.codes)
    assert not torch.equal(random_weight(problem, "cpu", seed=1).codes, weight.codes)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group_size", [-1, 64, 160])
def test_reference_agrees_with_a_scalar_loop(zeros, act_order, group_size):
    problem = Problem(SMALL, group_size=group_size, zeros=zeros, act_order=act_order)
    weight = random_weight(problem, "cpu")
    x = activations(3, problem, "cpu")
    exact = reference(weight, x)
    for m, n in ((0, 0), (1, 77), (2, 191)):
        total = 0.0
        for k in range(SMALL.k):
            group = 0 if group_size == -1 else k // group_size
            if weight.g_idx is not None:
                group = int(weight.g_idx[k])
            zero = 8 if weight.zeros is None else int(weight.zeros[group, n])
            value = (int(weight.codes[k, n]) - zero) * float(weight.scales[group, n])
            total += float(x[m, k]) * value
        assert exact[m, n].item() == pytest.approx(total, rel=1e-12, abs=1e-13)


def test_act_order_gives_every_group_its_rows():
    weight = random_weight(Problem(SMALL, group_size=128, act_order=True), "cpu")
    assert torch.bincount(weight.g_idx).tolist() == [128] * 4
    assert not torch.equal(weight.g_idx, weight.g_idx.sort().values)


def test_packed_bytes():
    assert Problem(Shape("t", 256, 64)).packed_bytes == 256 * 32 + 2 * 64 * 2
    assert Problem(Shape("t", 256, 64), bits=8, group_size=-1).packed_bytes == 256 * 64 + 64 * 2
    assert Problem(Shape("t", 320, 64), zeros=True).packed_bytes == 320 * 32 + 3 * 64 * 2 + 3 * 32


def _case(m: int = 4, dtype: str = "bfloat16") -> tuple[torch.Tensor, torch.Tensor, Weight]:
    problem = Problem(SMALL, dtype=dtype)
    weight = random_weight(problem, "cpu")
    exact = reference(weight, activations(m, problem, "cpu"))
    return exact.to(problem.torch_dtype), exact, weight


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_rounding_passes_with_ratio_one(dtype):
    out, exact, _ = _case(dtype=dtype)
    verdict = check(out, exact, dtype)
    assert verdict.ok and verdict.rounding == pytest.approx(1.0, rel=1e-6), verdict


def test_weights_rounded_to_sixteen_bits_pass():
    problem = Problem(SMALL)
    weight = random_weight(problem, "cpu")
    x = activations(4, problem, "cpu")
    rounded = dequantize(weight, slice(None), torch.float32).bfloat16()
    verdict = check((x.float() @ rounded.float()).bfloat16(), reference(weight, x), "bfloat16")
    assert verdict.ok and 1.05 < verdict.rounding < 2.0, verdict


@pytest.mark.parametrize("m", [1, 4])
def test_one_wrong_column_is_named(m):
    out, exact, _ = _case(m)
    out[:, 37] = exact[:, 38].to(out.dtype)
    verdict = check(out, exact, "bfloat16")
    assert not verdict.ok and "column 37" in verdict.message, verdict


def test_one_missing_group_fails():
    problem = Problem(SMALL)
    weight = random_weight(problem, "cpu")
    x = activations(4, problem, "cpu")
    x_short = x.clone()
    x_short[:, 128:256] = 0
    verdict = check(reference(weight, x_short).bfloat16(), reference(weight, x), "bfloat16")
    assert not verdict.ok and "relative error" in verdict.message


def test_an_unwritten_element_fails():
    out, exact, _ = _case()
    out[2, 5] = float("nan")
    verdict = check(out, exact, "bfloat16")
    assert not verdict.ok and "1 of 768" in verdict.message
    assert not check(out[:, :64], exact, "bfloat16").ok


@pytest.mark.parametrize("bits", [4, 8])
def test_pack_rows_puts_row_zero_lowest(bits):
    codes = torch.randint(
        0, 1 << bits, (64, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    words = pack_rows(codes, bits)
    per_word = 32 // bits
    assert words.shape == (64 // per_word, 5) and words.dtype == torch.int32
    for row in range(64):
        word = words[row // per_word].long() & 0xFFFFFFFF
        assert torch.equal((word >> (bits * (row % per_word))) & ((1 << bits) - 1), codes[row].long())


def test_command_line_lists():
    assert parse_ints("1,8,decode")[:3] == [1, 8, 1]
    assert parse_ints("prefill")[-1] == 8192
    assert [s.name for s in parse_shapes("8b.o,64x128")] == ["8b.o", "64x128"]
    assert len(parse_shapes("all")) == 7
    for bad in ("0", "x", "-1", ""):
        with pytest.raises(ValueError, match="is not allowed"):
            parse_ints(bad)
    with pytest.raises(ValueError, match="'nope' is not allowed"):
        parse_shapes("nope")
