"""The block as a layout: definition, derived layouts, fragment ownership and bank conflicts."""

from __future__ import annotations

import itertools

import pytest
import torch
from tensor_layouts import Layout, Swizzle, compose, cosize, size
from tensor_layouts.analysis import bank_conflicts, is_bijective, per_group_bank_conflicts

from swordfish.errors import ArgumentError
from swordfish.layouts import pack_words
from swordfish.layouts.format import (
    block_bytes,
    block_layout,
    byte_layout,
    lane_group_layout,
    lane_word_layout,
    tensor_layout,
    tma_layout,
    word_layout,
)
from swordfish.layouts.fragments import a_fragment, b_fragment
from swordfish.layouts.swizzle import k_major_128b

BITS = pytest.mark.parametrize("bits", [4, 8])
LANES = range(32)


def formula(k: int, n: int, bits: int) -> int:
    """Bit offset inside a block, from the closed formulas."""
    j, b, c = n // 16, n % 16 // 8, n % 8
    s, h, t, o = k // 16, k % 16 // 8, k % 8 // 2, k % 2
    if bits == 4:
        return 32 * (128 * s + 4 * (4 * c + t) + j) + 4 * (4 * o + 2 * b + h)
    return 32 * (256 * s + 8 * (4 * c + t) + 2 * j + b) + 8 * (2 * o + h)


class TestDefinition:
    @BITS
    def test_equals_the_closed_formula(self, bits: int) -> None:
        layout = block_layout(bits)
        for k, n in itertools.product(range(64), range(64)):
            assert layout(k, n) == formula(k, n, bits)

    @BITS
    def test_codes_tile_the_block_without_gap_or_overlap(self, bits: int) -> None:
        layout = block_layout(bits)
        offsets = sorted(layout(i) for i in range(size(layout)))
        assert offsets == list(range(0, 64 * 64 * bits, bits))
        assert block_bytes(bits) == 64 * 64 * bits // 8

    @BITS
    def test_whole_tensor(self, bits: int) -> None:
        layout = tensor_layout(128, 192, bits)
        for k, n in ((0, 0), (63, 64), (64, 0), (127, 191), (70, 130)):
            block = (n // 64) * 2 + k // 64
            assert layout(k, n) == block * block_bytes(bits) * 8 + formula(k % 64, n % 64, bits)
        assert cosize(layout) > layout(127, 191)

    def test_bad_arguments(self) -> None:
        with pytest.raises(ArgumentError, match="bits=3 is not allowed: expected 4 or 8"):
            block_layout(3)
        with pytest.raises(ArgumentError, match="n=100 is not allowed: expected a positive multiple of 64"):
            tensor_layout(64, 100, 4)


class TestDerivedLayouts:
    @BITS
    def test_bytes_and_words(self, bits: int) -> None:
        block, in_bytes, in_words = block_layout(bits), byte_layout(bits), word_layout(bits)
        # Modes inside a unit have extent 1 after the recast, so coordinates are taken mode by mode.
        flat = list(itertools.product(*(range(e) for e in (2, 4, 2, 4, 8, 2, 4))))
        for o, t, h, s, c, b, j in flat:
            offset = block((o, t, h, s), (c, b, j))
            h_byte = 0 if bits == 4 else h
            assert in_bytes((o, t, h_byte, s), (c, b, j)) == offset // 8
            column = c + 8 * j if bits == 4 else c + 8 * (b + 2 * j)
            assert in_words(t + 4 * s, column) == offset // 32

    @BITS
    def test_views_reach_every_word_once(self, bits: int) -> None:
        words = block_bytes(bits) // 4
        for layout in (lane_word_layout(bits), lane_group_layout(bits)):
            assert size(layout) == words and is_bijective(layout)
        assert size(tma_layout(bits)) == block_bytes(bits) and is_bijective(tma_layout(bits))

    def test_lane_groups_are_256_bits(self) -> None:
        assert lane_group_layout(8) == Layout((32, 8, 4), (8, 1, 256))
        assert lane_group_layout(4) == Layout((32, (4, 2), 2), (4, (1, 128), 256))

    @BITS
    def test_lane_words_hold_the_lanes_codes(self, bits: int) -> None:
        block, by_lane = block_layout(bits), lane_word_layout(bits)
        lane_of_word = {
            by_lane(lane, i, s): lane
            for lane, i, s in itertools.product(LANES, range(by_lane.shape[1]), range(4))
        }
        for k, n in itertools.product(range(64), range(64)):
            assert lane_of_word[block(k, n) // 32] == 4 * (n % 8) + k % 8 // 2


class TestFragments:
    """Ownership, against the PTX ISA's fragment tables written out here."""

    @BITS
    def test_b_operand(self, bits: int) -> None:
        fragment = b_fragment(bits)
        for lane, half, register in itertools.product(LANES, range(2), range(2)):
            k, n = 2 * (lane % 4) + half + 8 * register, lane // 4
            assert fragment(lane, (half, register)) == formula(k, n, bits)

    @BITS
    def test_a_operand_of_the_transposed_weight(self, bits: int) -> None:
        fragment = a_fragment(bits)
        for lane, half, register in itertools.product(LANES, range(2), range(4)):
            row = lane // 4 + 8 * (register % 2)  # a1, a3: rows + 8
            k = 2 * (lane % 4) + half + 8 * (register // 2)  # a2, a3: k + 8
            assert fragment(lane, (half, register % 2, register // 2)) == formula(k, row, bits)

    @BITS
    def test_a_lane_owns_its_fragments(self, bits: int) -> None:
        """All bits of a lane's fragment lie in that lane's own words of the lane view."""
        by_lane = lane_word_layout(bits)
        for lane in LANES:
            own = {by_lane(lane, i, 0) for i in range(by_lane.shape[1])}
            a, b = a_fragment(bits), b_fragment(bits)
            assert {a(lane, v) // 32 for v in range(8)} <= own
            assert {b(lane, v) // 32 for v in range(4)} <= own

    def test_the_four_masks_of_an_int4_word(self) -> None:
        """``(word >> 4i) & 0x000f000f`` for i = 0..3 is a0, a2, a1, a3; or b0, b1 of two n8 tiles."""
        a, b = a_fragment(4), b_fragment(4)
        order = []
        for i in range(4):
            (match,) = [
                r
                for r in range(4)
                if (a(0, (0, r % 2, r // 2)), a(0, (1, r % 2, r // 2))) == (4 * i, 4 * i + 16)
            ]
            order.append(match)
        assert order == [0, 2, 1, 3]
        assert [b(0, (0, r)) for r in range(2)] == [0, 4]
        assert block_layout(4)(0, 8) == 8  # the second n8 tile starts at nibble 2

    def test_the_bytes_of_an_int8_word(self) -> None:
        """Bytes (0, 2) are b0 and (1, 3) are b1 of n8 tile 2j + b, the word's index in the lane."""
        b = b_fragment(8)
        assert [[b(0, (half, r)) // 8 for half in range(2)] for r in range(2)] == [[0, 2], [1, 3]]
        for tile in range(8):
            assert block_layout(8)(0, 8 * tile) == 32 * tile

    def test_masks_on_a_packed_weight(self) -> None:
        """The masks as a kernel applies them, on real packed words."""
        codes = torch.randint(0, 16, (64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
        words = pack_words(codes, 4)[0, 0]
        for lane, s, j in itertools.product((0, 7, 18, 31), range(4), range(4)):
            word = int(words[128 * s + 4 * lane + j]) & 0xFFFFFFFF
            c, t = lane // 4, lane % 4
            for i, (row, k) in enumerate(((0, 0), (0, 8), (8, 0), (8, 8))):
                pair = (word >> (4 * i)) & 0x000F000F
                n, first = 16 * j + c + row, 16 * s + 2 * t + k
                assert pair == int(codes[first, n]) | int(codes[first + 1, n]) << 16


class TestBankConflicts:
    """Shared-memory accesses that kernels use. A 16-byte access is served 8 lanes at a time."""

    def test_16_byte_loads_of_int4_words(self) -> None:
        for s in range(4):
            loads = Layout((32, 4), (4, 1))
            assert all(lane_word_layout(4)(l, i, s) == 128 * s + loads(l, i) for l in LANES for i in range(4))
            result = per_group_bank_conflicts(loads, element_bytes=4, group_size=8)
            assert result["worst_max_ways"] == 1

    def test_16_byte_loads_of_int8_words(self) -> None:
        """A lane's 32 bytes as two loads: in the same order in every lane they collide two ways, with the
        order exchanged in every other group of four lanes they do not."""
        vector = Layout((32, (4, 2)), (8, (1, 4)))  # (lane, (word, vector)) of a sub-tile, in words
        assert all(
            vector(l, i) == lane_word_layout(8)(l, i, 0) for l, i in itertools.product(LANES, range(8))
        )
        first = Layout((32, 4), (8, 1))
        assert per_group_bank_conflicts(first, element_bytes=4, group_size=8)["worst_max_ways"] == 2
        exchanged = compose(Swizzle(1, 2, 3), first)
        assert per_group_bank_conflicts(exchanged, element_bytes=4, group_size=8)["worst_max_ways"] == 1
        assert {exchanged(l, 0) // 8 for l in LANES} == set(LANES)  # each lane still reads its own words
        assert [exchanged(l, 0) % 8 // 4 for l in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]

    @pytest.mark.parametrize("swizzled", [True, False])
    def test_32_bit_stores_into_the_compute_buffer(self, swizzled: bool) -> None:
        """Lane (c, t) writes codes 2t, 2t+1 of row c: 32 banks with the swizzle, 8-way conflicts without."""
        buffer = k_major_128b(128, 128)
        for octet, k in itertools.product(range(16), range(0, 128, 8)):
            offsets = [
                (buffer if swizzled else buffer.inner)(8 * octet + lane // 4, k + 2 * (lane % 4), 0)
                for lane in LANES
            ]
            banks = {offset // 2 % 32 for offset in offsets}
            assert len(banks) == (32 if swizzled else 4)
        lanes = Layout(((4, 8),), ((2, 64),))
        access = compose(buffer.outer, lanes) if swizzled else lanes
        assert bank_conflicts(access, element_bytes=2)["max_ways"] == (1 if swizzled else 8)
