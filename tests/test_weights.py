"""Packing a quantised weight and reading it back: values, groups, act-order, bad input."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts import unpack_words
from swordfish.scheme import Scheme
from swordfish.weights import PackedWeight, QuantizedWeight, dequantize, pack, pack_weight

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BOTH = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
BITS = pytest.mark.parametrize("bits", [4, 8])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weight(
    k: int, n: int, *, bits: int = 4, group_size: int = 32, zeros: str = "none", seed: int = 0
) -> QuantizedWeight:
    """Codes, scales of both signs in fp16, and zeros, in natural order."""
    g = generator(seed)
    groups = 1 if group_size == -1 else -(-k // group_size)
    codes = torch.randint(0, 1 << bits, (k, n), dtype=torch.uint8, generator=g)
    scales = ((torch.rand(groups, n, generator=g) - 0.5) * 0.04).half()
    table: dict[str, torch.Tensor | None] = {
        "none": None,
        "integer": torch.randint(0, (1 << bits) + 1, (groups, n), generator=g),
        "offset": torch.randn(groups, n, generator=g).half(),
    }
    return QuantizedWeight(codes, scales, table[zeros], None, None, bits, group_size, zeros)  # type: ignore[arg-type]


def reference(q: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    """``round((q - z) * s)`` in fp64 (exact for these ranges), with the group of each row from ``g_idx``."""
    k, _ = q.shape
    size = k if q.group_size in (-1, None) else q.group_size
    group = torch.arange(k) // size if q.g_idx is None or bool((q.g_idx == -1).all()) else q.g_idx.long()
    if q.scales.shape[0] == 1:
        group = torch.zeros(k, dtype=torch.int64)
    assert isinstance(q.codes, torch.Tensor)
    codes, scales = q.codes.double(), q.scales.to(dtype).double()[group]
    if q.zero_kind == "offset":
        assert q.zeros is not None
        exact = codes * scales + q.zeros.to(dtype).double()[group]
    else:
        exact = (codes - (1 << (q.bits - 1) if q.zeros is None else q.zeros.double()[group])) * scales
    as_float = exact.float()
    assert q.zero_kind == "offset" or torch.equal(as_float.double(), exact)  # one rounding follows
    return as_float.to(dtype)


def regrouped(q: QuantizedWeight, **changes: Any) -> QuantizedWeight:
    fields = {name: getattr(q, name) for name in QuantizedWeight.__dataclass_fields__}
    return QuantizedWeight(**(fields | changes))


class TestValues:
    @given(
        k=st.integers(1, 200),
        n=st.integers(1, 150),
        bits=st.sampled_from([4, 8]),
        group_size=st.sampled_from([32, 64, 96, 128, -1]),
        zeros=st.sampled_from(["none", "integer"]),
        dtype=st.sampled_from(["float16", "bfloat16"]),
        seed=st.integers(0, 99),
    )
    @settings(max_examples=80, deadline=None, derandomize=True)
    def test_dequantize_is_exact_up_to_one_rounding(
        self, k: int, n: int, bits: int, group_size: int, zeros: str, dtype: str, seed: int
    ) -> None:
        q = random_weight(k, n, bits=bits, group_size=group_size, zeros=zeros, seed=seed)
        w = pack_weight(q, dtype)
        assert w.shape == (k, n) and w.dtype == DTYPES[dtype] and w.perm is None
        got = dequantize(w)
        assert got.dtype == DTYPES[dtype]
        assert torch.equal(got, reference(q, DTYPES[dtype]))

    @given(
        code=st.integers(0, 255),
        scale=st.floats(-60000, 60000, width=16),
        zero=st.floats(-60000, 60000, width=16),
        exponents=st.tuples(st.integers(-30, 0), st.integers(-30, 0)),
        dtype=st.sampled_from(["float16", "bfloat16"]),
    )
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_offset_sum_is_rounded_once(
        self, code: int, scale: float, zero: float, exponents: tuple[int, int], dtype: str
    ) -> None:
        """Against rational arithmetic: no representable number is nearer than the result."""
        torch_dtype = DTYPES[dtype]
        s = torch.tensor([[scale * 2.0 ** exponents[0]]]).to(torch_dtype)
        z = torch.tensor([[zero * 2.0 ** exponents[1]]]).to(torch_dtype)
        codes = torch.tensor([[code]], dtype=torch.uint8)
        w = pack(codes, s, z, bits=8, group_size=-1, dtype=torch_dtype, zero_kind="offset")
        got = dequantize(w)
        exact = code * Fraction(s.item()) + Fraction(z.item())
        limit = Fraction(torch.finfo(torch_dtype).max)
        if abs(exact) >= limit:
            assert got.isinf().item() or abs(Fraction(got.item())) == limit
            return
        error = abs(Fraction(got.item()) - exact)
        bits = got.view(torch.int16)
        neighbours = [b.view(torch_dtype) for b in (bits + 1, bits - 1)]
        for other in neighbours:
            if other.isfinite().item():
                distance = abs(Fraction(other.item()) - exact)
                assert error < distance or (error == distance and int(bits.item()) % 2 == 0)

    @pytest.mark.parametrize(
        ("code", "offset", "expected"),
        [
            (87, 0.0, 130),
            (87, 2.0**-120, 131),
            (87, -(2.0**-120), 130),
            (89, 0.0, 134),
            (89, -(2.0**-120), 133),
        ],
    )
    def test_tie_broken_by_an_offset_beyond_double_precision(
        self, code: int, offset: float, expected: int
    ) -> None:
        """1.5 * 87 = 130.5 and 1.5 * 89 = 133.5 lie half way between two bfloat16 values."""
        codes, scale = torch.tensor([[code]], dtype=torch.uint8), torch.tensor([[1.5]])
        zeros = torch.tensor([[offset]])
        w = pack(codes, scale, zeros, bits=8, group_size=-1, dtype=torch.bfloat16, zero_kind="offset")
        assert dequantize(w).item() == expected

    @BOTH
    def test_fp32_and_fp16_scales_are_rounded_once_to_nearest_even(self, dtype: torch.dtype) -> None:
        scales = torch.tensor([[1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-12, -(1 + 2**-11), 0.1]])
        codes = torch.full((32, 5), 9, dtype=torch.uint8)
        w = pack(codes, scales, bits=4, group_size=32, dtype=dtype)
        assert torch.equal(w.scales, scales.to(dtype))
        assert torch.equal(dequantize(w), scales.to(dtype).expand(32, 5))

    @BITS
    @BOTH
    def test_every_integer_zero_point_is_exact(self, bits: int, dtype: torch.dtype) -> None:
        n = (1 << bits) + 1
        codes = torch.full((32, n), (1 << bits) - 1, dtype=torch.uint8)
        zeros = torch.arange(n)[None]
        w = pack(codes, torch.ones(1, n), zeros, bits=bits, group_size=32, dtype=dtype)
        assert torch.equal(dequantize(w)[0].long(), (1 << bits) - 1 - zeros[0])

    @pytest.mark.parametrize("zero_dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
    def test_integer_zeros_of_any_dtype(self, zero_dtype: torch.dtype) -> None:
        q = random_weight(64, 40, zeros="integer")
        assert q.zeros is not None
        assert torch.equal(
            dequantize(pack_weight(regrouped(q, zeros=q.zeros.to(zero_dtype)), torch.float16)),
            reference(q, torch.float16),
        )

    def test_large_weights_take_several_slabs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("swordfish.weights.DEQUANTIZE_ELEMENTS", 128 * 64)
        q = random_weight(100, 300, zeros="integer")
        assert torch.equal(dequantize(pack_weight(q, torch.float16)), reference(q, torch.float16))


class TestChannelwise:
    @BITS
    @pytest.mark.parametrize("group_size", [-1, None, 4096])
    def test_spellings_agree(self, bits: int, group_size: int | None) -> None:
        q = random_weight(4096, 8, bits=bits, group_size=-1)
        w = pack_weight(regrouped(q, group_size=group_size), torch.float16)
        assert w.scheme.group_size == -1 and tuple(w.scales.shape) == (1, 8)
        assert torch.equal(dequantize(w), reference(q, torch.float16))

    @pytest.mark.parametrize("group_size", [0, -2, 48, 16, 100])
    def test_other_values_raise(self, group_size: int) -> None:
        q = random_weight(4096, 8, group_size=-1)
        with pytest.raises(ArgumentError, match=rf"group_size={group_size} is not allowed: .*multiple of 32"):
            pack_weight(regrouped(q, group_size=group_size), torch.float16)

    def test_replicated_rows_are_refused(self) -> None:
        q = random_weight(256, 8, group_size=-1)
        with pytest.raises(ArgumentError, match=r"scales.shape\[0\]=2 is not allowed: expected 1 for K=256"):
            pack_weight(regrouped(q, scales=q.scales.expand(2, 8)), torch.float16)

    def test_g_idx_of_one_group(self) -> None:
        q = random_weight(100, 8, group_size=-1)
        w = pack_weight(regrouped(q, g_idx=torch.zeros(100, dtype=torch.int32)), torch.float16)
        assert w.perm is None and torch.equal(dequantize(w), reference(q, torch.float16))


class TestPadding:
    def test_padded_codes_scales_and_zeros(self) -> None:
        w = pack_weight(random_weight(70, 65, zeros="integer"), torch.bfloat16)
        assert w.zero_rows is not None
        assert w.scale_rows.shape == w.zero_rows.shape == (3, 128)
        assert tuple(w.scales.shape) == (3, 65) and w.scales.stride() == (128, 1)
        assert not w.scale_rows[:, 65:].any() and not w.zero_rows[:, 65:].any()
        codes = unpack_words(w.words, 4, (128, 128))
        assert (codes[70:] == 8).all() and (codes[:, 65:] == 8).all()

    @pytest.mark.parametrize("n", [1, 8, 24, 32, 48, 72, 96])
    def test_small_and_odd_widths(self, n: int) -> None:
        q = random_weight(256, n, group_size=128, zeros="integer")
        w = pack_weight(q, torch.float16)
        assert tuple(dequantize(w).shape) == (256, n)
        assert torch.equal(dequantize(w), reference(q, torch.float16))


class TestActOrder:
    def test_groups_of_equal_size_sort_stably(self) -> None:
        q = random_weight(256, 40, group_size=64)
        g_idx = torch.arange(256)[torch.randperm(256, generator=generator(1))] // 64
        q = regrouped(q, g_idx=g_idx.int())
        w = pack_weight(q, torch.float16)
        assert w.scheme.act_order and w.scheme.group_size == 64 and w.packed_k == 256
        assert w.perm is not None and w.perm.dtype == torch.int32
        expected = sorted(range(256), key=lambda i: int(g_idx[i]))
        assert w.perm.tolist() == expected
        assert torch.equal(w.scales, q.scales)
        codes = unpack_words(w.words, 4, (256, 40))
        assert isinstance(q.codes, torch.Tensor)
        assert torch.equal(codes, q.codes[w.perm.long()])
        assert torch.equal(dequantize(w), reference(q, torch.float16))

    @pytest.mark.parametrize("k", [256, 250])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_natural_order_needs_no_permutation(self, k: int, dtype: torch.dtype) -> None:
        q = random_weight(k, 40, group_size=64)
        plain = pack_weight(q, torch.float16)
        for g_idx in (torch.arange(k) // 64, torch.full((k,), -1)):
            w = pack_weight(regrouped(q, g_idx=g_idx.to(dtype)), torch.float16)
            assert w.perm is None and w.scheme == plain.scheme
            assert torch.equal(w.words, plain.words) and torch.equal(w.scale_rows, plain.scale_rows)

    @given(
        k=st.integers(1, 200),
        groups=st.integers(1, 8),
        group_size=st.sampled_from([32, 64, 128]),
        zeros=st.sampled_from(["none", "integer", "offset"]),
        seed=st.integers(0, 999),
    )
    @settings(max_examples=80, deadline=None, derandomize=True)
    def test_any_g_idx_within_the_group_size_is_exact(
        self, k: int, groups: int, group_size: int, zeros: str, seed: int
    ) -> None:
        g = generator(seed)
        g_idx = torch.randint(0, groups, (k,), generator=g)
        n = 5
        tables = random_weight(groups * 32, n, zeros=zeros, seed=seed)
        q = QuantizedWeight(
            torch.randint(0, 16, (k, n), dtype=torch.uint8, generator=g),
            tables.scales,
            tables.zeros,
            g_idx,
            None,
            4,
            group_size,
            zeros,  # type: ignore[arg-type]
        )
        if int(torch.bincount(g_idx).max()) > group_size:
            with pytest.raises(ArgumentError, match=f"at most group_size={group_size} rows in a group"):
                pack_weight(q, torch.float16)
            return
        if groups == 1 and group_size == k:
            return
        w = pack_weight(q, torch.float16)
        assert torch.equal(dequantize(w), reference(q, torch.float16))
        self.check_groups(w, q)

    @staticmethod
    def check_groups(w: PackedWeight, q: QuantizedWeight) -> None:
        """Packed row i really has the scale row that kernels will use, ``i // group_size``."""
        assert q.g_idx is not None
        rows = torch.arange(w.packed_k) if w.perm is None else w.perm.long()
        real = rows >= 0
        assert sorted(rows[real].tolist()) == list(range(w.shape[0]))
        used = w.scales[torch.arange(w.packed_k) // w.scheme.group_size][real]
        assert torch.equal(used, q.scales.to(w.dtype)[q.g_idx[rows[real]].long()])

    def test_row_parallel_shards_with_the_full_scale_table(self) -> None:
        """Four shards of a random act-order weight: exact, and their products add up."""
        k, n = 1024, 64
        g_idx = (torch.arange(k) // 32)[torch.randperm(k, generator=generator(2))]
        whole = regrouped(random_weight(k, n), g_idx=g_idx)
        assert isinstance(whole.codes, torch.Tensor)
        ref = reference(whole, torch.float16)
        x = torch.randn(3, k, generator=generator(3), dtype=torch.float64)
        total = torch.zeros(3, n, dtype=torch.float64)
        for start in range(0, k, 256):
            part = slice(start, start + 256)
            w = pack_weight(regrouped(whole, codes=whole.codes[part], g_idx=g_idx[part]), torch.float16)
            assert w.scheme.group_size == 32 and w.packed_k > 256
            assert torch.equal(dequantize(w), ref[part])
            # What a kernel computes: gathered activations times packed rows with scales of row // 32.
            codes = unpack_words(w.words, 4, (w.packed_k, n)).double() - 8
            packed = codes * w.scales.double()[torch.arange(w.packed_k) // 32]
            total += w.gather(x[:, part]) @ packed
        exact = x @ ((whole.codes.double() - 8) * whole.scales.double()[g_idx])
        torch.testing.assert_close(total, exact, rtol=1e-12, atol=1e-12)

    def test_shard_that_starts_inside_a_group_needs_no_permutation(self) -> None:
        """Rows 192..383 of groups of 128: 64 rows of group 1, then 128 of group 2."""
        whole = random_weight(384, 40, group_size=128)
        assert isinstance(whole.codes, torch.Tensor)
        g_idx = torch.arange(384) // 128
        w = pack_weight(regrouped(whole, codes=whole.codes[192:], g_idx=g_idx[192:]), torch.bfloat16)
        assert w.perm is None and w.scheme.group_size == 64 and tuple(w.scales.shape) == (3, 40)
        assert torch.equal(dequantize(w), reference(whole, torch.bfloat16)[192:])

    def test_gather_puts_zero_in_rows_of_padding(self) -> None:
        g_idx = torch.tensor([0] * 10 + [1] * 20 + [0] * 5)
        q = regrouped(random_weight(35, 8, group_size=32), g_idx=g_idx)
        w = pack_weight(q, torch.float16)
        assert w.perm is not None and w.packed_k == 32 + 20
        x = torch.full((2, 3, 35), torch.inf)
        gathered = w.gather(x)
        assert tuple(gathered.shape) == (2, 3, 52)
        assert not gathered[..., 15:32].any() and gathered[..., :15].isinf().all()
        y = torch.arange(35.0)
        assert w.gather(y)[:15].tolist() == [*range(10), *range(30, 35)]

    def test_gather_without_act_order_is_the_identity(self) -> None:
        x = torch.randn(2, 64)
        assert pack_weight(random_weight(64, 8), torch.float16).gather(x) is x


class TestBias:
    def test_fp32_bias_is_rounded_once_and_copied(self) -> None:
        bias = torch.arange(40.0) + 2**-9
        w = pack_weight(regrouped(random_weight(64, 40), bias=bias), torch.bfloat16)
        assert w.bias is not None and torch.equal(w.bias, bias.bfloat16())
        same = bias.bfloat16()
        w = pack_weight(regrouped(random_weight(64, 40), bias=same), torch.bfloat16)
        assert w.bias is not None and w.bias.data_ptr() != same.data_ptr()

    def test_non_contiguous_bias(self) -> None:
        bias = torch.randn(80, dtype=torch.float16)[::2]
        w = pack_weight(regrouped(random_weight(64, 40), bias=bias), torch.float16)
        assert w.bias is not None and w.bias.is_contiguous() and torch.equal(w.bias, bias)

    def test_no_bias_from_nowhere(self) -> None:
        assert pack_weight(random_weight(64, 40), torch.float16).bias is None


G_IDX = torch.arange(256) // 64


def changed(index: int, value: int) -> torch.Tensor:
    g_idx = G_IDX.clone()
    g_idx[index] = value
    return g_idx


class TestBadInput:
    """Every message names the argument, the value seen and what is allowed."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"g_idx": changed(9, 4)}, r"g_idx=4 \(row 9\) is not allowed: expected 0 to 3, .*have 4 rows"),
            ({"g_idx": changed(255, -3)}, r"g_idx=-3 \(row 255\) is not allowed: expected 0 to 3"),
            ({"g_idx": changed(0, -1)}, r"g_idx=-1 \(row 0\) is not allowed"),
            ({"g_idx": G_IDX[:255]}, r"g_idx.shape=\(255,\) is not allowed: expected \(256,\)"),
            (
                {"g_idx": changed(200, 0)},
                r"g_idx=0 \(65 times\) is not allowed: expected at most group_size=64",
            ),
            (
                {"g_idx": G_IDX.float()},
                r"g_idx.dtype=torch.float32 is not allowed: expected an integer dtype",
            ),
            (
                {"scales": torch.ones(3, 64)},
                r"scales.shape\[0\]=3 is not allowed: expected 4 for K=256, group_",
            ),
            ({"scales": torch.ones(8, 64)}, r"scales.shape\[0\]=8 is not allowed: expected 4 for K=256"),
            (
                {"scales": torch.ones(4, 63)},
                r"scales.shape=\(4, 63\) is not allowed: expected \[groups, N=64\]",
            ),
            ({"scales": torch.ones(64)}, r"scales.shape=\(64,\) is not allowed"),
            (
                {"scales": torch.ones(4, 64).double()},
                r"scales.dtype=torch.float64 is not allowed: expected floa",
            ),
            (
                {"scales": torch.full((4, 64), 1e5)},
                r"scales\[0, 0\]=100000.0 is not .* finite value in float16",
            ),
            ({"scales": torch.full((4, 64), torch.nan)}, r"scales\[0, 0\]=nan is not allowed"),
            (
                {"codes": torch.full((256, 64), 77, dtype=torch.uint8)},
                r"codes=77 is not .* from 0 to 15 for bits",
            ),
            (
                {"codes": torch.zeros(256, 64)},
                r"codes.dtype=torch.float32 is not allowed: expected torch.uint8",
            ),
            (
                {"codes": torch.zeros(0, 64, dtype=torch.uint8)},
                r"codes.shape=\(0, 64\) is not allowed: .*one row",
            ),
            ({"codes": torch.zeros(4, dtype=torch.uint8)}, r"codes.shape=\(4,\) is not allowed"),
            ({"bits": 3}, r"bits=3 is not allowed: expected 4 or 8"),
            ({"bits": "4"}, r"bits='4' is not allowed: expected 4 or 8"),
            ({"bits": 4.0}, r"bits=4.0 is not allowed: expected 4 or 8"),
            ({"bits": None}, r"bits=None is not allowed: expected 4 or 8"),
            (
                {"group_size": 48},
                r"group_size=48 is not allowed: expected -1 \(channelwise\) or a positive mult",
            ),
            ({"bias": torch.ones(63)}, r"bias.shape=\(63,\) is not allowed: expected \(64,\)"),
            ({"bias": torch.ones(64).int()}, r"bias.dtype=torch.int32 is not allowed"),
            ({"bias": torch.full((64,), 1e6)}, r"bias\[0\]=1000000.0 is not allowed"),
            (
                {"zero_kind": "float"},
                r"zero_kind=float is not allowed: expected 'none', 'integer' or 'offset'",
            ),
            ({"zero_kind": "integer"}, r"zeros=None is not allowed: expected a tensor of shape \(4, 64\)"),
            (
                {"zeros": torch.ones(4, 64)},
                r"zeros=a \(4, 64\) tensor is not allowed: expected None for zero_ki",
            ),
        ],
    )
    def test_natural_order_weight(self, changes: dict[str, Any], message: str) -> None:
        q = random_weight(256, 64, group_size=64)
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            pack_weight(regrouped(q, **changes), torch.float16)

    @pytest.mark.parametrize(
        ("zeros", "message"),
        [
            (torch.full((4, 64), 17), r"zeros\[0, 0\]=17 is not allowed: expected 0 to 16 for bits=4"),
            (torch.full((4, 64), 200, dtype=torch.uint8), r"zeros\[0, 0\]=200 is not allowed"),
            (torch.full((4, 64), -1, dtype=torch.int8), r"zeros\[0, 0\]=-1 is not allowed"),
            (
                torch.full((4, 64), 8.0).half(),
                r"zeros.dtype=torch.float16 is not allowed: expected an integer",
            ),
            (torch.full((64, 4), 8), r"zeros.shape=\(64, 4\) is not .* shape of the scales, \(4, 64\)"),
            (torch.full((4, 8), 8), r"zeros.shape=\(4, 8\) is not allowed"),
        ],
    )
    def test_zero_points(self, zeros: torch.Tensor, message: str) -> None:
        q = random_weight(256, 64, group_size=64)
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            pack_weight(regrouped(q, zeros=zeros, zero_kind="integer"), torch.float16)

    def test_offsets_are_floating(self) -> None:
        q = random_weight(256, 64, group_size=64)
        with pytest.raises(ArgumentTypeError, match=r"zeros.dtype=torch.int64 .*for zero_kind='offset'"):
            pack_weight(regrouped(q, zeros=torch.ones(4, 64).long(), zero_kind="offset"), torch.float16)

    def test_scale_table_of_twice_the_size_without_g_idx(self) -> None:
        """A shard of 384 rows in groups of 32 has 12 scale rows; 24 must not become groups of 16."""
        codes = torch.zeros(384, 8, dtype=torch.uint8)
        with pytest.raises(
            ArgumentError, match=r"scales.shape\[0\]=24 is not allowed: expected 12 for K=384"
        ):
            pack(codes, torch.ones(24, 8), bits=4, group_size=32, dtype=torch.float16)

    @pytest.mark.parametrize("dtype", [torch.float32, "float64", None])
    def test_activation_dtype(self, dtype: Any) -> None:
        with pytest.raises(
            ArgumentTypeError, match=rf"dtype={dtype} is not .* torch.float16 or torch.bfloat16"
        ):
            pack_weight(random_weight(64, 64), dtype)

    @pytest.mark.parametrize("size", ["128", 128.0, True, 48])
    def test_group_sizes_are_whole_numbers(self, size: Any) -> None:
        codes = torch.zeros(256, 8, dtype=torch.uint8)
        message = (
            rf"group_size={size!r} is not allowed: expected -1 \(channelwise\) or a positive multiple of 32"
        )
        with pytest.raises(ArgumentError, match=message):
            pack(codes, torch.ones(2, 8), bits=4, group_size=size, dtype=torch.float16)

    def test_a_scheme_names_its_dtype(self) -> None:
        message = r"dtype=torch\.float16 is not allowed: expected 'float16' or 'bfloat16'"
        with pytest.raises(ArgumentTypeError, match=message):
            Scheme(4, 128, torch.float16)  # type: ignore[arg-type]

    def test_floating_zeros_need_their_kind_said(self) -> None:
        q = random_weight(64, 8, zeros="offset")
        assert isinstance(q.codes, torch.Tensor)
        with pytest.raises(
            ArgumentTypeError, match=r"zeros.dtype=torch.float16 .* integer dtype for zero_kind"
        ):
            pack(q.codes, q.scales, q.zeros, bits=4, group_size=32, dtype=torch.float16)
        w = pack(q.codes, q.scales, q.zeros, bits=4, group_size=32, dtype=torch.float16, zero_kind="offset")
        assert w.scheme.zeros == "offset"

    def test_tensors_on_two_devices(self) -> None:
        q = random_weight(64, 8)
        with pytest.raises(ArgumentError, match=r"scales.device=meta is not allowed: expected cpu"):
            regrouped(q, scales=q.scales.to("meta"))


def test_dequantize_takes_packed_weights_only() -> None:
    with pytest.raises(ArgumentTypeError, match="w=NoneType is not allowed: expected a PackedWeight"):
        dequantize(None)  # type: ignore[arg-type]
