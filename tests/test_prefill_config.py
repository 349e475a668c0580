"""Prefill configurations: what is derived, what is refused, what is chosen. Nothing is compiled."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import swordfish as sf
from swordfish.dispatch import sources_for
from swordfish.errors import ArgumentError
from swordfish.layouts.swizzle import k_major_128b
from swordfish.prefill.choose import choose_prefill, even_cycles, unsupported
from swordfish.prefill.collective.addresses import prove_shared_store
from swordfish.prefill.config import SHARED_LIMIT, TMEM_COLUMNS, PrefillConfig
from swordfish.prefill.launch import Grid, source
from swordfish.prefill.model import step_cycles
from swordfish.runtime import CuteSource, DeviceProps
from swordfish.scheme import Scheme

BASE = Scheme(4, 128, "bfloat16")
B200, THOR = DeviceProps.for_target("sm_100a"), DeviceProps.for_target("sm_110a")


def everything() -> list[PrefillConfig]:
    """Every configuration that is not refused."""
    found = []
    for bits, group, zeros, tokens, ctas, home in itertools.product(
        (4, 8), (32, 64, 128, -1), ("none", "integer"), range(32, 257, 32), (1, 2), ("tmem", "shared")
    ):
        try:
            found.append(PrefillConfig(Scheme(bits, group, "bfloat16", zeros), tokens, ctas, home))
        except ArgumentError as error:
            assert "shared memory" in str(error)
    return found


def test_every_configuration_fits_and_has_three_input_stages() -> None:
    configs = everything()
    assert len(configs) > 400
    for c in configs:
        assert c.input_stages >= 3 and c.shared_bytes <= SHARED_LIMIT and c.tmem_columns <= TMEM_COLUMNS
        assert c.operand_stages >= 2 and c.operand_stages % 2 == 0 and c.threads <= 512
        assert c.input_stages % c.transform_groups == 0 and c.operand_stages // 2 % c.transform_groups == 0
        assert c.turn % c.input_stages == 0 and c.turn % (c.operand_stages // 2) == 0
        assert c.token_step_bytes % 1024 == 0, "operand B begins at a swizzle atom"
        assert PrefillConfig.from_flat(c.flat()).flat() == c.flat()


def test_only_single_cta_tiles_of_many_tokens_are_too_large() -> None:
    refused = [
        (tokens, ctas, home, bits)
        for tokens, ctas, home, bits in itertools.product(
            range(32, 257, 32), (1, 2), ("tmem", "shared"), (4, 8)
        )
        if not any(
            (c.tokens, c.ctas, c.home, c.scheme.bits) == (tokens, ctas, home, bits)
            for c in everything()
            if c.scheme.group_size == 128
        )
    ]
    assert refused and all(ctas == 1 for _, ctas, _, _ in refused)


@pytest.mark.parametrize(
    ("tokens", "home", "accumulators", "operand", "inputs"),
    [
        (192, "tmem", 2, 4, 6),
        (128, "tmem", 2, 8, 8),
        (224, "tmem", 2, 2, 5),
        (256, "tmem", 1, 8, 4),
        (256, "shared", 2, 4, 3),
    ],
)
def test_stages_of_the_tiles_of_the_documentation(
    tokens: int, home: str, accumulators: int, operand: int, inputs: int
) -> None:
    c = PrefillConfig(BASE, tokens, home=home)  # type: ignore[arg-type]
    assert (c.accumulators, c.operand_stages, c.input_stages) == (accumulators, operand, inputs)
    assert str(c) == f"tile(tokens={tokens}, ctas=2, home={home!r}, slices=1)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": Scheme(4, 96, "bfloat16")}, "group_size=96"),
        ({"tokens": 48}, "tokens=48"),
        ({"tokens": 288}, "tokens=288"),
        ({"ctas": 4}, "ctas=4"),
        ({"home": "registers"}, "home='registers'"),
        ({"slices": 0}, "slices=0"),
        ({"tokens": 256, "ctas": 1}, "232448 bytes of shared memory"),
    ],
)
def test_refusals_name_the_argument(change: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(PrefillConfig(BASE), **change)  # type: ignore[arg-type]


def test_operand_stores_match_the_swizzled_layout_and_no_other() -> None:
    layout = k_major_128b(128, 64, stages=4)
    prove_shared_store(lambda row, k, stage: int(layout(row, k, stage)), 4)
    with pytest.raises(ValueError, match="row 1, k 0, stage 0: stored at 72, read at 64"):
        prove_shared_store(lambda row, k, stage: stage * 8192 + row * 64 + k, 4)


def tiles_in_order(grid: Grid) -> list[tuple[int, int]]:
    """The order of ``collective/schedule.py``, written down a second time: (row tile, token tile)."""
    order = []
    for start in range(0, grid.token_tiles, grid.band):
        for row in range(grid.row_tiles):
            order += [(row, token) for token in range(start, min(start + grid.band, grid.token_tiles))]
    return order


def test_bands_keep_their_tokens_in_half_of_l2() -> None:
    c = PrefillConfig(BASE, 256)
    wide, small = Grid.of(c, 8192, 8192, 8192, B200), Grid.of(c, 8192, 8192, 8192, THOR)
    assert (wide.band, small.band) == (15, 4)
    for props, grid in ((B200, wide), (THOR, small)):
        assert grid.band * c.tokens * 8192 * 2 <= props.l2_bytes // 2 < (grid.band + 1) * c.tokens * 8192 * 2
        assert sorted(tiles_in_order(grid)) == sorted(itertools.product(range(32), range(32)))
    assert Grid.of(c, 8192, 8192, 1 << 20, THOR).band == 1


def test_slices_are_never_empty() -> None:
    c = PrefillConfig(BASE, 32)
    for k, slices in itertools.product((64, 128, 640, 1152, 4096), (1, 2, 3, 4, 8)):
        grid = Grid.of(replace(c, slices=slices), 32, 256, k, B200)
        assert (grid.slices - 1) * grid.slice_stages < grid.k_stages <= grid.slices * grid.slice_stages
    with pytest.raises(ArgumentError, match="needs at least 2 SMs"):
        Grid.of(c, 32, 256, 512, replace(B200, sm_count=1))
    with pytest.raises(ArgumentError, match="m=0"):
        Grid.of(c, 0, 256, 512, B200)


def test_choice_is_reasonable_and_total() -> None:
    for props in (B200, THOR):
        for m, (k, n) in itertools.product(
            (1, 33, 300, 1024, 8192), ((4096, 4096), (192, 64), (14336, 4096), (4096, 28672))
        ):
            choice = choose_prefill(m, n, k, BASE, props)
            ideal = 2 * m * n * k / (8192 * props.sm_count)
            assert choice.cycles >= ideal
            if m >= 4096 and n >= 4096:
                assert choice.cycles < 1.15 * ideal, (m, k, n, choice)
                assert ideal <= even_cycles(m, n, k, BASE, props) <= choice.cycles
    small = choose_prefill(64, 4096, 14336, BASE, B200)
    assert small.config.partial, "16 tiles leave most of 148 SMs idle"
    assert choose_prefill(64, 4096, 14336, replace(BASE, act_order=True), B200).config.scheme == BASE


def test_unsupported_shapes_say_why() -> None:
    assert unsupported(4096, 4096, BASE, B200) is None
    assert "sm_90a" in str(unsupported(4096, 4096, BASE, DeviceProps.for_target("sm_90a")))
    assert "N=100" in str(unsupported(100, 4096, BASE, B200))
    assert "at least" not in str(unsupported(4096, 4096, BASE, replace(B200, sm_count=1)))
    small = replace(B200, smem_per_cta=99 << 10)
    assert "more than 101376" in str(unsupported(4096, 4096, BASE, small))
    with pytest.raises(ArgumentError, match="bytes of shared memory, more than 101376"):
        Grid.of(PrefillConfig(BASE), 32, 256, 512, small)
    for m in (64, 4096):
        assert choose_prefill(m, 4096, 4096, BASE, replace(B200, sm_count=1)).config.ctas == 1
        most = replace(B200, smem_per_cta=190 << 10)
        assert choose_prefill(m, 4096, 4096, BASE, most).config.shared_bytes <= most.smem_per_cta
    with pytest.raises(ArgumentError, match="group size 96"):
        choose_prefill(512, 4096, 4096, Scheme(4, 96, "bfloat16"), B200)
    with pytest.raises(ArgumentError, match="m=0"):
        choose_prefill(0, 4096, 4096, BASE, B200)


def test_ahead_of_time_builds_cover_every_choice() -> None:
    built = set(sources_for(BASE, 4096, 4096, B200))
    assert 3 <= sum(isinstance(src, CuteSource) for src in built) <= 12
    for m in (100, 517, 1000, 2049, 4095):
        assert source(choose_prefill(m, 4096, 4096, BASE, B200).config) in built
    assert any("reduce" in str(src) for src in sources_for(BASE, 14336, 4096, B200)), (
        "split-K needs its second kernel"
    )
    assert not any(isinstance(src, CuteSource) for src in sources_for(BASE, 4096, 100, B200))


def test_model_says_where_the_shared_memory_home_loses() -> None:
    """The bandwidth argument for TMEM: with operand A in shared memory, shared memory is what bounds the
    tile."""
    for tokens in (128, 192, 256):
        # type: ignore[arg-type]
        tmem, shared = (step_cycles(PrefillConfig(BASE, tokens, home=home)) for home in ("tmem", "shared"))
        assert tmem.bound() == ("MMA", 2 * tokens)
        assert shared.bound()[0] == "shared memory" and shared.shared - tmem.shared == 256


def test_importing_the_choice_brings_no_compiler() -> None:
    import subprocess
    import sys

    code = (
        "import sys, swordfish.prefill.choose, swordfish.prefill.run\n"
        "print([m for m in ('cutlass', 'cuda.core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert sf.__version__
