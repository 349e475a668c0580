"""The rules of the wide kernel: what they choose always fits, and says why."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from swordfish.decode.choose_wide import ONE_TILE, TOKEN_BUCKETS, choose_wide
from swordfish.errors import ArgumentError
from swordfish.runtime import DeviceProps
from swordfish.scheme import Scheme

ARCHS = ("sm_90a", "sm_100a", "sm_103a", "sm_110a")
SCHEMES = [
    Scheme(bits, group, "bfloat16", zeros)
    for bits, group, zeros in itertools.product((4, 8), (32, 96, 128, -1), ("none", "integer", "offset"))
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_choice_fits(arch: str, scheme: Scheme) -> None:
    props = DeviceProps.for_target(arch)
    for m, n, k in itertools.product(
        (1, 8, 16, 17, 33, 64, 65, 96, 128, 129, 300, 1000), (8, 200, 4096, 57344), (64, 320, 28672)
    ):
        config, reason = choose_wide(m, n, k, scheme, props)
        config.check(scheme, k, props)
        launch = config.launch_config(scheme, m, k, n)
        room = props.smem_per_sm // config.min_ctas - props.smem_reserved
        assert launch.shared_bytes <= min(room, props.smem_per_cta)
        assert config.threads * config.min_ctas <= 2048 and config.registers >= 96
        assert config.wgmma == (arch == "sm_90a")
        assert -(-m // config.tokens) <= -(-m // 64) and reason


@pytest.mark.parametrize("m", range(1, ONE_TILE + 1))
def test_smallest_bucket(m: int) -> None:
    config, _ = choose_wide(m, 4096, 4096, Scheme(4, 128, "bfloat16"), DeviceProps.for_target("sm_90a"))
    assert config.tokens == min(t for t in TOKEN_BUCKETS if t >= m)


@pytest.mark.parametrize(
    ("m", "tokens"), [(129, 80), (130, 80), (192, 96), (257, 144), (1024, 128), (1025, 144), (1152, 144)]
)
def test_more_rows_make_even_tiles(m: int, tokens: int) -> None:
    config, _ = choose_wide(m, 4096, 4096, Scheme(4, 128, "bfloat16"), DeviceProps.for_target("sm_90a"))
    assert config.tokens == tokens


@pytest.mark.parametrize(
    ("m", "n", "tokens"),
    [(384, 4096, 96), (300, 4096, 80), (512, 4096, 128), (384, 28672, 128), (128, 4096, 128)],
)
def test_more_tiles_where_they_fill_a_wave(m: int, n: int, tokens: int) -> None:
    config, _ = choose_wide(m, n, 4096, Scheme(4, 128, "bfloat16"), DeviceProps.for_target("sm_90a"))
    assert config.tokens == tokens and config.span > 1


def test_no_rows() -> None:
    with pytest.raises(ArgumentError, match="m=0"):
        choose_wide(0, 4096, 4096, Scheme(4, 128, "bfloat16"), DeviceProps.for_target("sm_90a"))


def test_clusters_leave_room_for_uneven_gpcs() -> None:
    """As many clusters as the GPCs of an H200 ran at the same time, at most."""
    props = DeviceProps.for_target("sm_90a")
    for m, n, k in itertools.product((8, 16, 32, 64, 128, 200), range(64, 32768, 192), (8192, 28672)):
        config, _ = choose_wide(m, n, k, Scheme(4, 128, "bfloat16"), props)
        if config.split > 1:
            gpcs = (18, 18, 18, 18, 18, 16, 16, 10)
            clusters = sum(sms * config.min_ctas // config.split for sms in gpcs)
            assert -(-n // config.columns) * -(-m // config.tokens) <= clusters


def test_stream_only_where_whole_tiles_leave_sms_without_work() -> None:
    """Or where there are many waves of wide tiles, each with a start and an end."""
    props = DeviceProps.for_target("sm_90a")
    sizes = itertools.product((48, 96, 128, 512, 1024), (4096, 8192, 28672, 57344), (4096, 28672), (4, 8))
    for m, n, k, bits in sizes:
        config, reason = choose_wide(m, n, k, Scheme(bits, 128, "bfloat16"), props)
        tiles = -(-n // config.columns) * -(-m // config.tokens)
        places = props.sm_count * config.min_ctas
        waves = -(-tiles // places)
        if config.ctas:
            assert config.ctas == places and config.split == 1 and "equal parts" in reason
            assert tiles < 0.9 * waves * places or (m > 128 and waves >= 4)
        elif m >= 96 and m * n * k > 1e10 and config.split == 1:
            full = 0.9 if k >= 8192 or m > 128 else 0.8  # merging weighs more where K is short
            assert tiles >= full * waves * places


@pytest.mark.parametrize(("bits", "depth"), [(4, (128, 4)), (8, (128, 3))])
def test_wide_tiles_of_many_rows(bits: int, depth: tuple[int, int]) -> None:
    """One set of sums, and as much of K in the ring as memory holds."""
    props, scheme = DeviceProps.for_target("sm_90a"), Scheme(bits, 128, "bfloat16")
    found = [choose_wide(m, 28672, 4096, scheme, props)[0] for m in (1024, 2048, 2560)]
    found.append(choose_wide(1024, 8192, 8192, scheme, props)[0])
    for config in found:
        assert config.columns == 256 and config.in_place and (config.stage_k, config.slots) == depth
        assert config.span * config.stage_k >= 512
        assert replace(config, slots=config.slots + 1).shared_bytes(scheme) > props.smem_per_cta
    assert [bool(config.ctas) for config in found] == [True, True, True, False]


def test_few_sms_do_not_split_what_fills_them() -> None:
    props = replace(DeviceProps.for_target("sm_110a"), sm_count=20)
    config, _ = choose_wide(32, 8192, 4096, Scheme(4, 128, "bfloat16"), props)
    assert config.split == 1


@pytest.mark.parametrize("m", [8, 16])
@pytest.mark.parametrize("k", [2048, 3584, 4096, 7168, 14336])
@pytest.mark.parametrize("n", [1024, 3584, 4096])
def test_narrow_clusters_have_no_idle_ctas(m: int, k: int, n: int) -> None:
    """CTAs of 64 columns: with one less in a cluster the longest range would be longer; all run at once."""
    props = DeviceProps.for_target("sm_90a")
    config, _ = choose_wide(m, n, k, Scheme(4, 128, "bfloat16"), props)
    assert (config.columns, config.min_ctas) == (64, 4 if k < 8192 else 3)
    stages = -(-k // config.stage_k)
    assert -(-stages // (config.split - 1)) > -(-stages // config.split)
    fill = 0.76 if config.min_ctas == 4 else 0.91
    assert n // 64 * config.split <= fill * props.sm_count * config.min_ctas
