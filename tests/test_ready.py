"""The short way of a call that is like an earlier one: when it is taken, when not, and with which values."""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish import dispatch, ready
from swordfish.calls import DecodeCall
from swordfish.decode import RingConfig, WideConfig
from swordfish.decode.bound import BoundLaunch, address
from swordfish.dispatch import LOG_VARIABLE, PATH_VARIABLE
from swordfish.operators import operands
from swordfish.reference import reference_mm
from swordfish.runtime import PreparedLaunch, TensorMap, torch_cuda
from tests.backends import quantised

K, N = 192, 72


class Recorded(DecodeCall):
    """The reference product, which notes how it was asked for."""

    def __init__(self, ways: list[str]) -> None:
        self.ways = ways

    def __call__(self, *arguments: Any) -> None:
        self.ways.append("long")
        reference_mm(*arguments)

    def bind(self, w: sf.PackedWeight, bias: torch.Tensor | None) -> BoundLaunch:
        words, scale_rows, zero_rows, perm = (
            None if t is None else t.data for t in (w.words, w.scale_rows, w.zero_rows, w.perm)
        )
        assert words is not None and scale_rows is not None
        alias = w.unchecked(words, scale_rows, zero_rows, perm)  # a cache must not keep a weight alive

        def run(x: torch.Tensor, x_address: int, out: torch.Tensor, stream: int) -> None:
            assert (
                (x_address, stream) == (x.data_ptr(), 77) and x.ndim == out.ndim == 2 and out.is_contiguous()
            )
            self.ways.append("short")
            reference_mm(x, alias, bias, out)

        return run


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CPU tensors count as those of a GPU whose products are :class:`Recorded`."""
    found: list[str] = []
    call = Recorded(found)
    monkeypatch.setattr(dispatch, "planned", lambda *_: call)
    monkeypatch.setattr(ready, "CPU_DEVICE", None)
    monkeypatch.setattr(ready, "_known", {})
    monkeypatch.setattr(torch_cuda, "raw_stream", lambda device: 77)
    monkeypatch.setattr(torch_cuda, "empty", torch._C._dynamo.guards._empty_strided_cpu)
    return found


def tokens(w: sf.PackedWeight, *shape: int, seed: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, w.shape[0], generator=g).to(w.dtype)


def wanted(x: torch.Tensor, w: sf.PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = x.new_empty(x.numel() // w.shape[0], w.shape[1])
    reference_mm(x.reshape(-1, w.shape[0]), w, w.bias if bias is None else bias, out)
    return out.view(*x.shape[:-1], w.shape[1])


def eager(x: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    return sf.mm(x, w)


def operator(x: torch.Tensor, w: sf.PackedWeight) -> torch.Tensor:
    words, scale_rows, zero_rows, perm, *rest = operands(w)
    result: torch.Tensor = torch.ops.swordfish.mm.default(
        x, words, scale_rows, zero_rows, perm, w.bias, *rest
    )
    return result


@pytest.mark.parametrize("call", [eager, operator])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "kind", [{}, {"zeros": "offset", "bias": True}, {"act_order": True, "bits": 8}], ids=str
)
def test_the_second_call_is_short(call: Callable[..., Any], grad: bool, kind: Any, ways: list[str]) -> None:
    w = quantised(K, N, group_size=64, **kind)
    with torch.set_grad_enabled(grad):
        for shape in ((1,), (1, 1), (3,), (3, 1), ()):
            for seed, way in ((1, "long"), (2, "short")):
                ways.clear()
                x = tokens(w, *shape, seed=seed)
                assert torch.equal(call(x, w), wanted(x, w))
                assert ways == ([way] if shape in ((1,), (3,)) else ["short"]), shape


def test_eager_calls_and_operators_know_the_same(ways: list[str]) -> None:
    layer = sf.Linear(quantised(K, N, zeros="integer", group_size=64))
    x = tokens(layer.weight, 2)
    with torch.no_grad():
        for result in (layer(x), operator(x, layer.weight), torch.compile(layer, backend="aot_eager")(x)):
            assert torch.equal(result, wanted(x, layer.weight))
    assert ways == ["long", "short", "short"]


def _other_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


def _strided(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x], 1)[:, : x.shape[1]]


def _unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)


@pytest.mark.parametrize("change", [_other_rows, _strided, _unaligned])
def test_another_x_goes_the_long_way(change: Callable[..., torch.Tensor], ways: list[str]) -> None:
    w = quantised(K, N, group_size=64)
    x = tokens(w, 2)
    sf.mm(x, w)
    x = change(x)
    assert torch.equal(sf.mm(x, w), wanted(x, w)) and ways == ["long", "long"]


def test_no_more_row_counts_are_kept_than_said(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "_ROWS_KEPT", 2)
    w = quantised(K, N, group_size=64)
    for m in (1, 2, 3, 3, 1):
        x = tokens(w, m)
        assert torch.equal(sf.mm(x, w), wanted(x, w))
        (known,) = ready._known.values()
        assert len(known.bound) <= 2
    assert ways == ["long", "long", "long", "short", "long"]


@pytest.mark.parametrize("bad", ["dtype", "width", "scalar"])
def test_bad_x_is_refused_as_ever(bad: str, ways: list[str]) -> None:
    w = quantised(K, N, group_size=64)
    x = tokens(w, 2)
    sf.mm(x, w)
    given = {"dtype": x.float(), "width": x[:, :64], "scalar": x[0, 0]}[bad]
    for call in (eager, operator):
        with (
            pytest.raises((sf.ArgumentError, sf.ArgumentTypeError), match=r"x\.(dtype|shape)"),
            torch.no_grad(),
        ):
            call(given, w)
    assert ways == ["long"]


def test_another_current_device_goes_the_long_way(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    w = quantised(K, N, group_size=64)
    x = tokens(w, 2)
    sf.mm(x, w)
    elsewhere = types.SimpleNamespace(get_device=lambda: 1)
    monkeypatch.setattr(torch_cuda, "empty", lambda *_: elsewhere)
    assert torch.equal(sf.mm(x, w), wanted(x, w)) and ways == ["long", "long"]


class Marked(torch.Tensor):
    """A subclass that sees what is done with it."""


@pytest.mark.parametrize("index", range(5))
def test_tensor_subclasses_are_seen_every_time(index: int, ways: list[str]) -> None:
    w = quantised(K, N, group_size=64, zeros="integer", act_order=True, bias=True)
    tensors = [w.words, w.scale_rows, w.zero_rows, w.perm, w.bias]
    tensors[index] = tensors[index].as_subclass(Marked)  # type: ignore[union-attr]
    marked = sf.PackedWeight(*tensors, w.scheme, w.shape)  # type: ignore[arg-type]
    x = tokens(w, 2)
    with torch.no_grad():
        for _ in range(2):
            assert type(operator(x, marked)) is Marked
    assert ways == ["long", "long"]


@pytest.mark.parametrize("name", ["words", "scale_rows", "zero_rows", "perm", "bias"])
@pytest.mark.parametrize("how", ["replaced", "data"])
def test_changed_tensors_are_noticed(name: str, how: str, ways: list[str]) -> None:
    """A module's buffer is replaced by another tensor, or gets other memory under the same name."""
    kind: dict[str, Any] = {"group_size": 64, "zeros": "integer", "act_order": True, "bias": True}
    layer, other = sf.Linear(quantised(K, N, **kind)), quantised(K, N, **kind, seed=3)
    x = tokens(other, 2)
    layer(x)
    layer(x)
    if how == "replaced":
        setattr(layer, name, getattr(other, name))
    else:
        getattr(layer, name).data = getattr(other, name)
    assert ways == ["long", "short"]
    for _ in range(2):
        assert torch.equal(layer(x), wanted(x, layer.weight))
    assert ways == ["long", "short", "long", "short"]
    assert layer.weight.words.data_ptr() != other.words.data_ptr() or name == "words"


def test_values_written_in_place_are_seen(ways: list[str]) -> None:
    w, other = quantised(K, N, group_size=64), quantised(K, N, group_size=64, seed=3)
    x = tokens(w, 2)
    sf.mm(x, w)
    w.words.copy_(other.words)
    w.scale_rows.copy_(other.scale_rows)
    assert torch.equal(sf.mm(x, w), wanted(x, other)) and ways == ["long", "short"]


def test_one_tensor_of_words_may_be_several_weights(ways: list[str]) -> None:
    """With another bias, scheme or width."""
    w = quantised(K, N, group_size=64, bias=True)
    plain = w.unchecked(w.words, w.scale_rows, None, None)
    narrow = sf.PackedWeight(w.words, w.scale_rows, None, None, None, w.scheme, (K, N - 1))
    x = tokens(w, 2)
    for each in (w, plain, narrow, w):
        for way in ("long", "short"):
            ways.clear()
            assert torch.equal(sf.mm(x, each), wanted(x, each)) and ways == [way]


def test_wishes_of_the_environment_and_new_plans(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    w = quantised(K, N, group_size=64)
    x = tokens(w, 2)

    def way() -> str:
        assert torch.equal(sf.mm(x, w), wanted(x, w))
        return ways.pop()

    with monkeypatch.context() as environment:
        environment.setenv(PATH_VARIABLE, "decode")
        assert (way(), way()) == ("long", "short")
        environment.setenv(LOG_VARIABLE, "dispatch")
        assert (way(), way()) == ("long", "long")
    assert (way(), way()) == ("long", "short")
    dispatch.forget_plans()
    assert (way(), way()) == ("long", "short")


def test_gradients_and_modes_are_not_left_out(ways: list[str]) -> None:
    w = quantised(K, N, group_size=64, bias=True)
    assert w.bias is not None
    x = tokens(w, 2)
    sf.mm(x, w)
    y = sf.mm(x.clone().requires_grad_(), w)
    w.bias.requires_grad_()
    z = sf.mm(x, w)
    y.sum().backward()
    z.sum().backward()
    assert y.requires_grad and z.requires_grad and w.bias.grad is not None
    assert torch.equal(w.bias.grad, torch.full_like(w.bias, 2))
    with torch.inference_mode(False), torch.no_grad():
        assert not sf.mm(x, w).requires_grad


def test_nothing_is_kept_of_a_weight_that_is_gone(ways: list[str]) -> None:
    layer = sf.Linear(quantised(K, N, group_size=64, zeros="integer"))
    twin = copy.deepcopy(layer)
    x = tokens(layer.weight, 2)
    for _ in range(2):
        layer(x), twin(x)
    assert ways == ["long", "long", "short", "short"] and len(ready._known) == 2
    del layer
    gc.collect()
    assert list(ready._known) == [id(twin.words)]


CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ring": (RingConfig(2), {}),
    "ring, everything": (RingConfig(4, gather=True), {"act_order": True, "zeros": "integer", "bias": True}),
    "ring, permuted": (RingConfig(4), {"act_order": True, "group_size": 32}),
    "wide": (WideConfig(tokens=16), {"bias": True}),
    "wide, offsets": (WideConfig(tokens=16, split=2), {"zeros": "offset", "bits": 8}),
    "wide, Stream-K": (WideConfig(tokens=16, ctas=3), {}),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("k", [256, 200])
def test_a_bound_launch_gets_the_arguments_of_a_call(
    name: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, kind = CONFIGS[name]
    w = quantised(k, 128, **{"group_size": 64, **kind})
    calls: list[tuple[Any, ...]] = []

    def raw(launch: PreparedLaunch, device: int) -> Callable[..., None]:
        return lambda stream, *values: calls.append((stream, *map(plain, values)))

    def called(launch: PreparedLaunch, arguments: Any, stream: Any = None) -> None:
        if "gather" not in launch.kernel.artifact.metadata.entry:  # puts x in order before either
            calls.append((0, *map(plain, arguments)))

    def plain(value: Any) -> Any:
        if isinstance(value, TensorMap):
            fields = ("dtype", "dims", "strides", "box", "swizzle", "fill", "l2_promotion")
            return plain(value.tensor), *(getattr(value, field) for field in fields)
        number = address(value) if value is None or isinstance(value, torch.Tensor) else value
        return "new memory" if number > 1 << 32 and number not in places else number

    ours = DecodeCall(config, w.scheme, 3, w.packed_k, 128, bias=w.bias is not None, arch="sm_90a")
    monkeypatch.setattr(PreparedLaunch, "raw", raw)
    monkeypatch.setattr(PreparedLaunch, "__call__", called)
    x, out = tokens(w, 3), torch.empty(3, 128, dtype=w.dtype)
    places = {address(t) for t in (w.words, w.scale_rows, w.zero_rows, w.perm, w.bias, x, out)}
    with sf.emulate("sm_90a"):
        ours(x, w, w.bias, out)
        ours.bind(w, w.bias)(x, x.data_ptr(), out, 0)
    checked, bound = calls
    assert checked == bound
