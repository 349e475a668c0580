"""Swizzles in the byte and the element domain, and the recast between them, against CuTe's own algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_layouts import ComposedLayout, Layout, Swizzle, size

from swordfish.errors import ArgumentError
from swordfish.layouts.swizzle import SWIZZLE_128B, k_major_128b, recast, recast_swizzle

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
WIDTHS = st.sampled_from([4, 8, 16, 32])

TILES = [(128, 128, 4), (128, 64, 4), (64, 64, 2), (256, 64, 1), (16, 64, 3), (8, 64, 1), (64, 128, 2)]


def offset_by_formula(row: int, k: int, stage: int, rows: int, width: int) -> int:
    """The compute buffer's offset as kernels compute it, in 16-bit elements."""
    linear = (row % 8) * 64 + k % 64 + row // 8 * 512 + k // 64 * rows * 64 + stage * rows * width
    return linear ^ ((row % 8) << 3)


class TestKMajor:
    @pytest.mark.parametrize(("rows", "k", "stages"), TILES)
    def test_element_domain_equals_the_formula(self, rows: int, k: int, stages: int) -> None:
        layout = k_major_128b(rows, k, stages=stages)
        for stage in range(stages):
            for row in range(rows):
                for col in range(k):
                    assert layout(row, col, stage) == offset_by_formula(row, col, stage, rows, k)

    @pytest.mark.parametrize(("rows", "k", "stages"), TILES)
    def test_byte_domain_is_the_same_memory(self, rows: int, k: int, stages: int) -> None:
        """The hardware's byte swizzle of the plain byte offset is twice the swizzled element offset."""
        layout = k_major_128b(rows, k, stages=stages)
        plain = layout.inner
        in_bytes = recast(layout, 16, 8)
        assert in_bytes.outer == SWIZZLE_128B
        for i in range(0, size(plain), 3):
            assert SWIZZLE_128B(2 * plain(i)) == 2 * layout(i)
        for row, col, stage in ((0, 0, 0), (rows - 1, k - 1, stages - 1), (5, 37, 0)):
            assert in_bytes(row, 2 * col, stage) == 2 * layout(row, col, stage)
            assert in_bytes(row, 2 * col + 1, stage) == 2 * layout(row, col, stage) + 1

    def test_it_permutes_16_byte_chunks_of_a_row(self) -> None:
        layout = k_major_128b(8, 64)
        for row in range(8):
            assert [layout(row, 8 * chunk, 0) // 8 % 8 for chunk in range(8)] == [i ^ row for i in range(8)]

    def test_byte_elements(self) -> None:
        assert k_major_128b(8, 128, bits=8).outer == SWIZZLE_128B

    @pytest.mark.parametrize(
        ("rows", "k", "message"),
        [
            (12, 64, "rows=12 is not allowed: expected a positive multiple of 8"),
            (0, 64, "rows=0 is not allowed"),
            (8, 96, "k=96 is not allowed: expected a positive multiple of 64 for bits=16"),
        ],
    )
    def test_bad_tiles(self, rows: int, k: int, message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            k_major_128b(rows, k)


class TestRecastSwizzle:
    @given(
        bits=st.integers(0, 3),
        base=st.integers(0, 5),
        shift=st.integers(3, 5),
        old=WIDTHS,
        new=WIDTHS,
        offset=st.integers(0, 1 << 14),
    )
    @SETTINGS
    def test_moves_the_same_memory(
        self, bits: int, base: int, shift: int, old: int, new: int, offset: int
    ) -> None:
        swizzle = Swizzle(bits, base, shift)
        if new > old << base:
            with pytest.raises(ArgumentError, match=f"new_bits={new} is not allowed: expected at most"):
                recast_swizzle(swizzle, old, new)
            return
        fine = min(old, new)
        in_old, in_new = swizzle, recast_swizzle(swizzle, old, new)
        address = offset * fine  # a bit address; both swizzles say where its unit goes
        to_old = in_old(address // old) * old + address % old
        to_new = in_new(address // new) * new + address % new
        assert to_old == to_new

    def test_widths_are_powers_of_two(self) -> None:
        with pytest.raises(ArgumentError, match="new_bits=12 is not allowed: expected a power of two"):
            recast_swizzle(SWIZZLE_128B, 8, 12)


@st.composite
def plain_layouts(draw: st.DrawFn, unit: int) -> Layout:
    """Nested layouts whose innermost mode is a stride-1 run of whole ``unit`` elements."""
    run = unit * draw(st.integers(1, 4))
    modes = [(run, 1)]
    for _ in range(draw(st.integers(1, 3))):
        modes.append((draw(st.integers(1, 4)), draw(st.sampled_from([0, 1, 2, 3, 5])) * unit * 2))
    modes = draw(st.permutations(modes))
    if draw(st.booleans()) and len(modes) > 2:
        head, *rest = modes
        return Layout((head[0], tuple(e for e, _ in rest)), (head[1], tuple(s for _, s in rest)))
    return Layout(tuple(e for e, _ in modes), tuple(s for _, s in modes))


@pytest.fixture(scope="module")
def cute_recast() -> Iterator[Callable[[Layout | ComposedLayout, int, int], str]]:
    """CuTe's ``recast_layout``, evaluated at trace time: an MLIR context is enough, nothing is compiled."""
    import cutlass.cute as cute
    from cutlass._mlir import ir

    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):

            def run(layout: Layout | ComposedLayout, old: int, new: int) -> str:
                inner = layout.inner if isinstance(layout, ComposedLayout) else layout
                value = cute.make_layout(inner.shape, stride=inner.stride)
                if isinstance(layout, ComposedLayout):
                    s = layout.outer
                    value = cute.make_composed_layout(
                        cute.make_swizzle(s.bits, s.base, s.shift), layout.offset, value
                    )
                return str(cute.recast_layout(new, old, value)).replace(" ", "")

            yield run


def as_cute_text(layout: Layout | ComposedLayout) -> str:
    if isinstance(layout, ComposedLayout):
        s = layout.outer
        return f"S<{s.bits},{s.base},{s.shift}>o{layout.offset}o{as_cute_text(layout.inner)}"
    return f"{layout.shape}:{layout.stride}".replace(" ", "")


class TestRecastAgainstCute:
    @given(data=st.data(), old=WIDTHS, new=WIDTHS)
    @SETTINGS
    def test_plain_layouts(self, data: st.DataObject, old: int, new: int, cute_recast) -> None:  # type: ignore[no-untyped-def]
        layout = data.draw(plain_layouts(max(1, new // old)))
        assert as_cute_text(recast(layout, old, new)) == cute_recast(layout, old, new)

    @given(
        data=st.data(),
        old=WIDTHS,
        new=WIDTHS,
        bits=st.integers(1, 3),
        base=st.integers(3, 5),
        units=st.integers(0, 3),
    )
    @SETTINGS
    def test_swizzled_layouts(  # type: ignore[no-untyped-def]
        self, data: st.DataObject, old: int, new: int, bits: int, base: int, units: int, cute_recast
    ) -> None:
        ratio = max(1, new // old)
        inner = data.draw(plain_layouts(ratio))
        layout = ComposedLayout(Swizzle(bits, base, 3), inner, offset=units * ratio)
        assert as_cute_text(recast(layout, old, new)) == cute_recast(layout, old, new)

    @pytest.mark.parametrize(("rows", "k", "stages"), TILES)
    def test_compute_buffers(self, rows: int, k: int, stages: int, cute_recast) -> None:  # type: ignore[no-untyped-def]
        layout = k_major_128b(rows, k, stages=stages)
        in_bytes = recast(layout, 16, 8)
        assert as_cute_text(in_bytes) == cute_recast(layout, 16, 8)
        assert as_cute_text(recast(in_bytes, 8, 16)) == cute_recast(in_bytes, 8, 16) == as_cute_text(layout)


class TestInexactRecasts:
    @pytest.mark.parametrize(
        "layout",
        [
            Layout((3, 4), (1, 4)),  # three bytes are not whole 16-bit elements
            Layout((4, 2), (1, 3)),  # a stride of three bytes
        ],
    )
    def test_parts_of_elements_raise(self, layout: Layout) -> None:
        with pytest.raises(ArgumentError, match="expected whole 16-bit elements in every mode"):
            recast(layout, 8, 16)

    def test_offset_inside_an_element(self) -> None:
        layout = ComposedLayout(SWIZZLE_128B, Layout((4, 2), (1, 4)), offset=1)
        with pytest.raises(ArgumentError, match="expected an offset that is a multiple of 16 bits"):
            recast(layout, 8, 16)

    def test_negative_strides_and_other_compositions(self) -> None:
        with pytest.raises(ArgumentError, match="expected strides of 0 or more"):
            recast(Layout((4, 2), (1, -4)), 8, 16)
        composed = ComposedLayout(Layout((4, 4), (4, 1)), Layout((4, 4), (1, 4)))
        with pytest.raises(ArgumentError, match="expected a plain layout or one behind a swizzle"):
            recast(composed, 8, 16)
