"""Sorting on the device and the choice of kernels: rules that no product shows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import swordfish as sf
from swordfish.decode import RingConfig, WideConfig
from swordfish.errors import ArgumentError
from swordfish.experts import dense as experts_dense
from swordfish.experts import layer as experts_layer
from swordfish.experts import moe, plan_layer
from swordfish.experts import routing as experts_routing
from swordfish.experts.activation import ACTIVATIONS
from swordfish.experts.choose import LayerShape, plan_experts
from swordfish.experts.choose_grouped import choose_grouped
from swordfish.experts.grouped import ExpertGrouped
from swordfish.experts.kernels import ExpertRing, ExpertWide, Product
from swordfish.experts.reference import places_of
from swordfish.experts.routing import block_bound, gather_rows, sort_pairs
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import Kernel
from swordfish.runtime.registry import Source, compile_many, get_kernel
from swordfish.scheme import Scheme
from tests.backends import BACKENDS, Backend
from tests.moe_layers import layer, routing


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("experts", [1, 3, 7, 60, 257, 1025])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_sorting(backend: Backend, experts: int, ids_dtype: torch.dtype) -> None:
    """Every pair whose expert is here once, in blocks of its expert; ids of nobody are left out (C27)."""
    g = torch.Generator().manual_seed(experts)
    tokens, top_k, rows = 37, min(4, experts), 8
    ids = torch.randint(-2, experts + 3, (tokens, top_k), generator=g).to(ids_dtype)
    ids[0, 0] = torch.iinfo(ids_dtype).max
    ids[1, 0] = torch.iinfo(ids_dtype).min
    check_sorted(backend, ids, None, experts, rows)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_sorting_with_a_map(backend: Backend) -> None:
    """Values that a map should not hold are nobody's, too."""
    expert_map = torch.tensor([3, -1, 0, 99, 1, -7, 2], dtype=torch.int32)
    ids = torch.randint(-1, 9, (50, 3), generator=torch.Generator().manual_seed(1)).int()
    check_sorted(backend, ids, expert_map, 4, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 300, 9000])
def test_sorting_many(tokens: int) -> None:
    ids = torch.randint(0, 96, (tokens, 8), generator=torch.Generator().manual_seed(1)).int()
    check_sorted(Backend("cuda"), ids, None, 96, 128)


def check_sorted(
    backend: Backend, ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int, rows: int
) -> None:
    where = backend.device
    with backend.active():
        arch = "sm_90a" if backend.name == "cuda" else backend.name
        there = None if expert_map is None else expert_map.to(where)
        made = sort_pairs(ids.to(where), there, experts, rows, arch)
    assert made.schedule is not None and made.order is not None
    entries = made.schedule.cpu().view(-1, 4)
    blocks, here = entries[0, :2].tolist()
    places = places_of(ids, expert_map, experts).flatten()
    counts = torch.bincount(places[places >= 0], minlength=experts)
    assert here == int(counts.sum()) and blocks == int((-(-counts // rows)).sum()) <= made.blocks
    order = made.order.cpu()[:here].long()
    assert torch.equal(order.sort().values, (places >= 0).nonzero().squeeze(1))
    seen = 0
    for index, (expert, first_block, first_place, expert_rows) in enumerate(entries[1 : 1 + blocks].tolist()):
        assert expert_rows == counts[expert]
        assert first_block <= index < first_block + -(-expert_rows // rows)
        if index == first_block:
            assert first_place == seen and bool((places[order[seen : seen + expert_rows]] == expert).all())
            seen += expert_rows
    assert seen == here


@pytest.mark.parametrize("pairs", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_block_bound(pairs: int, rows: int) -> None:
    """No routing makes more blocks, and one makes as many."""
    for experts in (1, 3, 40):
        bound = block_bound(pairs, experts, rows)
        ones = min(experts, pairs)
        worst = [1] * ones  # a row each, the others where they begin blocks of their own
        worst[0] += pairs - ones
        assert sum(-(-count // rows) for count in worst) <= bound <= pairs
        assert bound == max_blocks(pairs, experts, rows)


def max_blocks(pairs: int, experts: int, rows: int) -> int:
    """Greedy: an expert's first row makes a block, after that every ``rows`` rows do."""
    blocks = min(experts, pairs)
    left = pairs - blocks
    return blocks + left // rows


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("act_order", [False, True])
def test_gathering(backend: Backend, act_order: bool) -> None:
    made = layer(3, 136, 64, group_size=32, act_order=act_order)
    ids = torch.tensor([[0, 2], [1, -1], [2, 0], [2, 1]], dtype=torch.int32)
    x = torch.randn(4, 136).bfloat16()
    padded = x if act_order else torch.nn.functional.pad(x, (0, 56))
    where = backend.device
    weights = made.w13.to(where)
    with backend.active():
        arch = "sm_90a" if backend.name == "cuda" else backend.name
        sorted_ = sort_pairs(ids.to(where), None, 3, 8, arch)
        rows = gather_rows(padded.to(where), weights, sorted_, arch, in_order=False).cpu()
    assert sorted_.order is not None
    for place, pair in enumerate(sorted_.order.cpu()[:7].tolist()):
        w = made.gate_up[int(ids.flatten()[pair])]
        assert torch.equal(rows[place, :136], w.gather(x[pair // 2]))
        assert not rows[place, 136:].any()


SCHEMES = [
    Scheme(bits, group, "bfloat16", zeros)
    for bits, group, zeros in itertools.product((4, 8), (-1, 32, 64, 128), ("none", "integer", "offset"))
]
SHAPES = [(60, 2048, 1408), (128, 2048, 768), (8, 4096, 14336), (3, 128, 64), (256, 7168, 2048)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a", "sm_110a"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_plan_fits(arch: str, scheme: Scheme) -> None:
    props = DeviceProps.for_target(arch)
    for (experts, hidden, inner), tokens in itertools.product(SHAPES, (1, 2, 7, 16, 64, 300, 1024, 5000)):
        plan = plan_experts(tokens, 2, shape_of(experts, hidden, inner, scheme), props)
        assert plan.gate_up is not None and plan.down is not None
        assert plan.gate_up.block_rows == plan.down.block_rows
        assert plan.direct == (tokens == 1)
        plan.gate_up.check(scheme, hidden, props)
        plan.down.check(scheme, inner, props)
        for config, k, n in ((plan.gate_up, hidden, 2 * inner), (plan.down, inner, hidden)):
            product = Product(scheme, experts, k, n, False, None, True, True, True, False)
            launch = config.launch_config(product, block_bound(tokens * 2, experts, config.block_rows))
            assert launch.shared_bytes <= props.smem_per_cta
            if isinstance(config, ExpertRing):
                items = block_bound(tokens * 2, experts, config.block_rows) * -(-n // (64 * config.ring.cols))
                assert launch.grid[0] // config.ring.split * config.items >= items


def shape_of(experts: int, hidden: int, inner: int, scheme: Scheme) -> LayerShape:
    return LayerShape(experts, experts, hidden, 2 * inner, inner, hidden, scheme, scheme)


def test_blocks_grow_with_the_rows_of_an_expert() -> None:
    props = DeviceProps.for_target("sm_90a")
    shape = shape_of(60, 2048, 1408, Scheme(4, 128, "bfloat16"))
    rows = []
    for tokens in (2, 8, 32, 128, 512, 4096):
        config = plan_experts(tokens, 4, shape, props).gate_up
        assert config is not None
        rows.append(config.block_rows)
    assert rows == sorted(rows) and rows[0] <= 4 and rows[-1] >= 64


def test_plans_count_experts_elsewhere() -> None:
    """A rank that holds an eighth of the experts gets an eighth of the pairs."""
    props, scheme = DeviceProps.for_target("sm_90a"), Scheme(4, 128, "bfloat16")
    few = plan_experts(64, 8, LayerShape(16, 128, 2048, 1536, 768, 2048, scheme, scheme), props)
    all_ = plan_experts(64, 8, LayerShape(128, 128, 2048, 1536, 768, 2048, scheme, scheme), props)
    assert few.gate_up is not None and all_.gate_up is not None
    assert few.gate_up.block_rows == all_.gate_up.block_rows


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a", "sm_110a"])
@pytest.mark.parametrize(
    ("shape", "least"),
    # The columns of all experts together fill the SMs, or they do not; then a long K and few columns.
    [((60, 2048, 1408), 56), ((2, 512, 128), 96), ((1, 2048, 64), 128)],
)
def test_grouped_from_the_rows_of_a_dense_product(arch: str, shape: tuple[int, int, int], least: int) -> None:
    props, scheme = DeviceProps.for_target(arch), Scheme(4, 128, "bfloat16")
    if arch == "sm_110a" and least > 56:
        props = replace(props, sm_count=148)
    made, experts = shape_of(*shape, scheme), shape[0]
    for tokens, grouped in ((least * experts - 1, False), (least * experts, True)):
        plan = plan_experts(tokens, 1, made, props)
        assert isinstance(plan.gate_up, ExpertGrouped) == isinstance(plan.down, ExpertGrouped) == grouped
        assert (f"grouped from {least} rows" in plan.reason) != grouped
        assert plan.narrow == (grouped and tokens * made.n2 * 4 > props.l2_bytes)


def test_nothing_grouped_where_there_is_no_kernel() -> None:
    scheme = Scheme(4, 128, "bfloat16")
    hopper = plan_experts(4096, 4, shape_of(60, 2048, 1408, scheme), DeviceProps.for_target("sm_90a"))
    assert isinstance(hopper.gate_up, ExpertWide) and "grouped" not in hopper.reason
    blackwell = DeviceProps.for_target("sm_100a")
    odd = replace(shape_of(60, 2048, 1408, scheme), scheme2=Scheme(4, 192, "bfloat16"))
    plan = plan_experts(4096, 4, odd, blackwell)
    assert isinstance(plan.gate_up, ExpertWide) and "not grouped: group size 192" in plan.reason


@pytest.mark.parametrize("arch", ["sm_100a", "sm_110a"])
def test_grouped_tiles(arch: str) -> None:
    """Blocks that hold most experts as a whole where these have few rows, large ones where they have many;
    of tiles that the model finds alike, those that fetch least."""
    props, scheme = DeviceProps.for_target(arch), Scheme(4, 128, "bfloat16")
    products = [(2048, 2816, scheme), (1408, 2048, scheme)]
    few, many = (choose_grouped(products, 60, mean, props) for mean in (64, 8192))
    assert few.configs[0].block_rows == few.configs[1].block_rows and few.blocks < 1.1
    assert many.configs[0].block_rows > 128
    for config in (*few.configs, *many.configs):
        assert config.clusters == props.sm_count // config.ctas
    single = replace(props, sm_count=1)
    assert choose_grouped(products, 60, 64, single).configs[0] == ExpertGrouped(96, 1, 1)


def test_no_tokens_and_no_gpu() -> None:
    shape = shape_of(3, 128, 64, Scheme(4, 128, "bfloat16"))
    assert plan_experts(0, 2, shape, DeviceProps.for_target("sm_90a")).path == "empty"
    assert plan_experts(4, 2, shape, None).path == "reference"
    with pytest.raises(ArgumentError, match="tokens=-1"):
        plan_experts(-1, 2, shape, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExpertRing(RingConfig(1, gather=True)), "without gather"),
        (lambda: ExpertRing(RingConfig(1, ctas=4)), "without gather and ctas"),
        (lambda: ExpertRing(RingConfig(1, split=3)), "split=3"),
        (lambda: ExpertRing(RingConfig(1), items=0), "items=0"),
        (lambda: ExpertWide(WideConfig(16)), "ctas=0"),
        (lambda: ExpertWide(WideConfig(16, split=2)), "split=2"),
        (lambda: ExpertWide(WideConfig(16, 1, ctas=4)), "tiles=1"),
    ],
)
def test_configurations_that_cannot_be(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_plans_do_not_spill(arch: str) -> None:
    """Of ring and wide kernels; tests/test_moe_grouped.py looks at the code of the others."""
    props, requests = DeviceProps.for_target(arch), []
    for scheme in SCHEMES[::4] + SCHEMES[1::8]:
        for tokens in (1, 4, 16, 64, 256, 1024, 4096):
            plan = plan_experts(tokens, 4, shape_of(60, 2048, 1408, scheme), props)
            for config, k, n, act in (
                (plan.gate_up, 2048, 2816, ACTIVATIONS["silu"]),
                (plan.down, 1408, 2048, None),
            ):
                assert config is not None
                if isinstance(config, ExpertGrouped):
                    continue
                in_order = act is None or config.in_order
                product = Product(
                    scheme, 60, k, n, True, act, act is None, in_order, in_order, False, plan.direct
                )
                requests.append((config.source(product), arch))
    for artifact in compile_many(requests):
        assert artifact.metadata.spill_bytes == 0, artifact.metadata.entry


def test_function_not_hidden_by_a_module() -> None:
    import swordfish.experts

    assert callable(sf.moe) and swordfish.experts.moe is sf.moe


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("arch", "m", "path"),
    [("sm_90a", 1, ""), ("sm_90a", 4, ""), ("sm_90a", 40, ""), ("sm_90a", 40, "dense"), ("sm_100a", 144, "")],
)
def test_sources_are_what_a_call_compiles(
    monkeypatch: pytest.MonkeyPatch, arch: str, m: int, path: str, act_order: bool
) -> None:
    monkeypatch.setenv("SWORDFISH_PATH", path)
    made = layer(3, 192, 64, group_size=32, act_order=act_order)
    asked = []

    def recorded(source: Source, arch: str) -> Kernel:
        asked.append(source)
        return get_kernel(source, arch)

    for module in (experts_layer, experts_routing, experts_dense):
        monkeypatch.setattr(module, "get_kernel", recorded)
    experts_dense._dequant.cache_clear()
    experts_layer._launch.cache_clear()
    experts_routing._prepared.cache_clear()
    weights, ids = routing(m, 2, 3)
    with sf.emulate(arch):
        plan = plan_layer(made.w13, made.w2, m, 2)
        moe(torch.randn(m, 192).bfloat16(), made.w13, made.w2, weights, ids)
    listed = experts_layer.layer_sources(plan, made.w13, made.w2, ACTIVATIONS["silu"])
    assert set(asked) == set(listed[:-1])  # the last one pads x, which is not needed here
