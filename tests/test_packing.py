"""The packer and unpacker, bit for bit against the format's closed formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.layouts import (
    Int32Codes,
    byte_view,
    lane_group_view,
    lane_word_view,
    pack_words,
    packed_shape,
    packing,
    unpack_words,
)

BITS = pytest.mark.parametrize("bits", [4, 8])
BLOCK_WORDS = {4: 512, 8: 1024}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def random_codes(k: int, n: int, bits: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << bits, (k, n), dtype=torch.uint8, generator=generator)


def closed_formula(k: int, n: int, bits: int) -> tuple[int, int]:
    """Word inside the block and shift inside the word, as the format is usually written down."""
    j, b, c = n % 64 // 16, n % 16 // 8, n % 8
    s, h, t, o = k % 64 // 16, k % 16 // 8, k % 8 // 2, k % 2
    if bits == 4:
        return 128 * s + 16 * c + 4 * t + j, 4 * (4 * o + 2 * b + h)
    return 256 * s + 32 * c + 8 * t + 2 * j + b, 8 * (2 * o + h)


def read_by_formula(words: torch.Tensor, k: int, n: int, bits: int) -> int:
    word, shift = closed_formula(k, n, bits)
    return (int(words[n // 64, k // 64, word]) >> shift) & ((1 << bits) - 1)


@BITS
def test_every_code_sits_where_the_formula_says(bits: int) -> None:
    k, n = 128, 192
    codes = random_codes(k, n, bits)
    words = pack_words(codes, bits)
    assert words.dtype == torch.int32
    assert tuple(words.shape) == (3, 2, BLOCK_WORDS[bits])
    read = [[read_by_formula(words, i, j, bits) for j in range(n)] for i in range(k)]
    assert read == codes.tolist()


@BITS
def test_inverse_formula_of_one_int4_word_and_one_int8_word(bits: int) -> None:
    """Literal table of rows and columns held by word 5 (lane 1) of a block."""
    codes = torch.zeros(64, 64, dtype=torch.uint8)
    if bits == 4:  # word 5: lane 1 (c=0, t=1), pair j=1; nibbles 0..7
        places = [(2, 16), (10, 16), (2, 24), (10, 24), (3, 16), (11, 16), (3, 24), (11, 24)]
    else:  # word 5: lane 0 (c=0, t=0), j=2, b=1; bytes 0..3
        places = [(0, 40), (8, 40), (1, 40), (9, 40)]
    for value, (k, n) in enumerate(places, start=1):
        codes[k, n] = value
    words = pack_words(codes, bits)
    expected = sum(value << (bits * (value - 1)) for value in range(1, len(places) + 1))
    assert int(words[0, 0, 5]) & 0xFFFFFFFF == expected
    assert int((words != 0).sum()) == 1


@given(k=st.integers(1, 200), n=st.integers(1, 200), bits=st.sampled_from([4, 8]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_round_trip_of_any_shape(k: int, n: int, bits: int, seed: int) -> None:
    codes = random_codes(k, n, bits, seed)
    words = pack_words(codes, bits)
    assert tuple(words.shape) == (-(-n // 64), -(-k // 64), BLOCK_WORDS[bits]) == packed_shape(k, n, bits)
    assert torch.equal(unpack_words(words, bits, (k, n)), codes)


@BITS
def test_padding_holds_the_symmetric_zero(bits: int) -> None:
    words = pack_words(random_codes(70, 3, bits), bits)
    whole = unpack_words(words, bits, (128, 64))
    assert (whole[70:] == 1 << (bits - 1)).all()
    assert (whole[:, 3:] == 1 << (bits - 1)).all()


@BITS
def test_rows_are_gathered_and_padded(bits: int) -> None:
    codes = random_codes(100, 65, bits)
    rows = torch.randperm(100, generator=torch.Generator().manual_seed(1)).tolist()
    rows[10:10] = [-1] * 7
    words = pack_words(codes, bits, rows=torch.tensor(rows))
    got = unpack_words(words, bits, (107, 65))
    for i, row in enumerate(rows):
        expected = codes[row] if row >= 0 else torch.full((65,), 1 << (bits - 1), dtype=torch.uint8)
        assert torch.equal(got[i], expected)


@BITS
def test_strides_of_the_source_do_not_matter(bits: int) -> None:
    codes = random_codes(128, 130, bits)
    wide = torch.zeros(128, 300, dtype=torch.uint8)
    wide[:, 7:137] = codes
    expected = pack_words(codes, bits)
    assert torch.equal(pack_words(codes.t().contiguous().t(), bits), expected)
    assert torch.equal(pack_words(wide[:, 7:137], bits), expected)
    assert torch.equal(unpack_words(expected, bits, (128, 130)), codes)


def test_slabs_bound_the_scratch_memory_and_cover_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SLAB_BYTES", 3 * 128 * 64)
    codes = random_codes(100, 700, 4)

    class Recorder:
        shape, device = (100, 700), codes.device
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def columns(self, start: int, stop: int) -> torch.Tensor:
            self.seen.append((start, stop))
            return codes[:, start:stop]

    words = pack_words(Recorder(), 4)
    assert Recorder.seen == [(0, 192), (192, 384), (384, 576), (576, 700)]
    assert torch.equal(unpack_words(words, 4, (100, 700)), codes)


def test_relation_to_the_flat_tile_order() -> None:
    """Word ``w`` of block (nb, kb) is word ``tile*nb + w % tile`` of k16 row ``4 kb + w // tile``."""
    k, n, tile = 128, 128, 128
    codes = random_codes(k, n, 4)
    words = pack_words(codes, 4)
    flat = words.view(n // 64, k // 64, 4, tile).permute(1, 2, 0, 3).reshape(k // 16, n // 64 * tile)
    for row in range(k // 16):
        for nb in range(n // 64):
            part = pack_words(codes[row * 16 : row * 16 + 16, nb * 64 : nb * 64 + 64], 4)
            assert torch.equal(flat[row, nb * tile : (nb + 1) * tile], part[0, 0, :tile])


class TestViews:
    @BITS
    def test_lane_words(self, bits: int) -> None:
        words = pack_words(random_codes(128, 64, bits), bits)
        view = lane_word_view(words, bits)
        per_lane = {4: 4, 8: 8}[bits]
        assert tuple(view.shape) == (1, 2, 4, 32, per_lane)
        assert view.data_ptr() == words.data_ptr()
        for s, lane, i in ((0, 0, 0), (1, 5, 2), (3, 31, per_lane - 1)):
            assert view[0, 1, s, lane, i] == words[0, 1, s * 32 * per_lane + lane * per_lane + i]

    def test_lane_groups_of_int4_join_two_sub_tiles(self) -> None:
        words = pack_words(random_codes(64, 64, 4), 4)
        view = lane_group_view(words, 4)
        assert tuple(view.shape) == (1, 1, 2, 32, 2, 4)
        for pair, lane in ((0, 3), (1, 30)):
            for half in range(2):
                start = (2 * pair + half) * 128 + lane * 4
                assert torch.equal(view[0, 0, pair, lane, half], words[0, 0, start : start + 4])

    def test_lane_groups_of_int8_are_32_consecutive_bytes(self) -> None:
        words = pack_words(random_codes(64, 64, 8), 8)
        view = lane_group_view(words, 8)
        assert tuple(view.shape) == (1, 1, 4, 32, 2, 4)
        assert torch.equal(view[0, 0, 2, 9].flatten(), words[0, 0, 2 * 256 + 9 * 8 : 2 * 256 + 9 * 8 + 8])

    @BITS
    def test_bytes_are_dense_little_endian_words(self, bits: int) -> None:
        words = pack_words(random_codes(64, 128, bits), bits)
        view = byte_view(words, bits)
        assert tuple(view.shape) == (2, 1, BLOCK_WORDS[bits] // 64, 256)
        assert view.data_ptr() == words.data_ptr()
        raw = words[1, 0].numpy().astype("<i4").tobytes()
        assert bytes(view[1, 0].flatten().tolist()) == raw

    @BITS
    def test_expert_dimension_in_front(self, bits: int) -> None:
        words = torch.stack([pack_words(random_codes(64, 64, bits, seed), bits) for seed in range(3)])
        assert torch.equal(lane_word_view(words, bits)[2], lane_word_view(words[2], bits))
        assert torch.equal(byte_view(words, bits)[1], byte_view(words[1], bits))

    def test_wrong_tensors_are_named(self) -> None:
        words = pack_words(random_codes(64, 64, 4), 4)
        with pytest.raises(ArgumentError, match=r"words.shape=\(1, 1, 512\) .* 1024\] tensor for bits=8"):
            lane_word_view(words, 8)
        with pytest.raises(ArgumentTypeError, match=r"words.dtype=torch.int64 is not allowed"):
            byte_view(words.long(), 4)


class TestInt32Codes:
    """Checkpoint layouts, built here field by field."""

    @staticmethod
    def pack_fields(codes: list[int], bits: int) -> int:
        word = sum(code << (bits * i) for i, code in enumerate(codes))
        return word - (1 << 32) if word >= 1 << 31 else word

    @BITS
    def test_packed_along_k(self, bits: int) -> None:
        p = 32 // bits
        codes = random_codes(16, 72, bits)
        words = [
            [self.pack_fields(codes[r * p : r * p + p, n].tolist(), bits) for n in range(72)]
            for r in range(16 // p)
        ]
        source = Int32Codes(torch.tensor(words, dtype=torch.int32), bits, (16, 72))
        assert torch.equal(source.dense(), codes)
        assert torch.equal(source.columns(64, 72), codes[:, 64:])
        assert torch.equal(pack_words(source, bits), pack_words(codes, bits))

    def test_awq_interleave(self) -> None:
        codes = random_codes(5, 72, 4)
        words = [
            [self.pack_fields([int(codes[k, 8 * m + AWQ_ORDER[i]]) for i in range(8)], 4) for m in range(9)]
            for k in range(5)
        ]
        tensor = torch.tensor(words, dtype=torch.int32)
        source = Int32Codes(tensor, 4, (5, 72), packed="n", interleave=AWQ_ORDER)
        assert torch.equal(source.dense(), codes)
        assert torch.equal(source.columns(64, 72), codes[:, 64:])
        assert torch.equal(pack_words(source, 4), pack_words(codes, 4))

    @BITS
    def test_transposed_and_filled_up_to_whole_words(self, bits: int) -> None:
        p, k, n = 32 // bits, 13, 70
        codes = random_codes(k, n, bits)
        filled = torch.zeros(-(-k // p) * p, n, dtype=torch.uint8)
        filled[:k] = codes
        words = [
            [self.pack_fields(filled[r * p : r * p + p, c].tolist(), bits) for r in range(len(filled) // p)]
            for c in range(n)
        ]
        source = Int32Codes(torch.tensor(words, dtype=torch.int32), bits, (k, n), transposed=True)
        assert torch.equal(source.dense(), codes)
        assert torch.equal(pack_words(source, bits), pack_words(codes, bits))

    @pytest.mark.parametrize("rows", [1, 9])
    def test_one_column_of_any_stride(self, rows: int) -> None:
        words = torch.arange(2 * rows * 7, dtype=torch.int32).as_strided((rows, 1), (1, 7))
        assert words.is_contiguous() and words.stride(1) == 7
        codes = Int32Codes(words, 8, (4 * rows, 1)).dense()
        assert codes.flatten().tolist() == [b for r in range(rows) for b in (r, 0, 0, 0)]

    def test_bad_input_is_named(self) -> None:
        words = torch.zeros(7, 64, dtype=torch.int32)
        with pytest.raises(ArgumentError, match=r"words.shape=\(7, 64\) .* \(8, 64\) for K=64, N=64, bits=4"):
            Int32Codes(words, 4, (64, 64))
        with pytest.raises(ArgumentTypeError, match=r"words.dtype=torch.int64 .* torch.int32"):
            Int32Codes(words.long(), 4, (56, 64))
        with pytest.raises(ArgumentError, match=r"bits=3 .* 4 or 8"):
            Int32Codes(words, 3, (56, 64))
        with pytest.raises(ArgumentError, match=r"packed=x .* 'k' or 'n'"):
            Int32Codes(words, 4, (56, 64), packed="x")
        with pytest.raises(ArgumentError, match=r"interleave=\(0, 1\) .* permutation of 0 to 7"):
            Int32Codes(words, 4, (56, 64), interleave=(0, 1))


class TestBadInput:
    def test_code_out_of_range(self) -> None:
        with pytest.raises(ArgumentError, match=r"codes=16 is not allowed: expected values from 0 to 15"):
            pack_words(torch.full((64, 64), 16, dtype=torch.uint8), 4)

    def test_dtype(self) -> None:
        with pytest.raises(ArgumentTypeError, match=r"codes.dtype=torch.int32 .* torch.uint8"):
            pack_words(torch.zeros(64, 64, dtype=torch.int32), 4)

    def test_rank(self) -> None:
        with pytest.raises(ArgumentError, match=r"codes.shape=\(64,\) .* \[K, N\]"):
            pack_words(torch.zeros(64, dtype=torch.uint8), 4)

    @pytest.mark.parametrize("bits", [2, 3, 5, 6, 16])
    def test_bits(self, bits: int) -> None:
        with pytest.raises(ArgumentError, match=rf"bits={bits} is not allowed: expected 4 or 8"):
            pack_words(torch.zeros(64, 64, dtype=torch.uint8), bits)

    def test_empty(self) -> None:
        with pytest.raises(ArgumentError, match=r"N=0 is not allowed: expected a positive number"):
            pack_words(torch.zeros(64, 0, dtype=torch.uint8), 4)

    def test_unpacking_a_wrong_shape(self) -> None:
        words = pack_words(torch.zeros(64, 64, dtype=torch.uint8), 4)
        with pytest.raises(ArgumentError, match=r"words.shape=\(1, 1, 512\) .* \(2, 1, 512\) for K=64, N=65"):
            unpack_words(words, 4, (64, 65))
        with pytest.raises(ArgumentTypeError, match=r"words.dtype=torch.float32 .* torch.int32"):
            unpack_words(words.float(), 4, (64, 64))
