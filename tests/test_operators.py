"""The operators as torch sees them: opcheck, compile, export, fake tensors, gradients, bad input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import swordfish as sf
from swordfish.operators import operands
from tests.backends import quantised
from tests.moe_layers import layer as layer_of_experts
from tests.products import PLACES, device_of, place

K, N = 192, 72
OPERATORS: Any = torch.ops.swordfish

WEIGHTS: dict[str, dict[str, Any]] = {
    "int4": {},
    "bias": {"bias": True, "dtype": torch.float16},
    "act-order": {"act_order": True, "zeros": "integer", "group_size": 32},
    "int8 minimum": {"bits": 8, "zeros": "offset", "group_size": -1},
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """torch compiles one function eight times at most, and all layers share theirs."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def weight(kind: str, where: str = "reference") -> sf.PackedWeight:
    return quantised(K, N, device=device_of(where), **{"group_size": 64, **WEIGHTS[kind]})


def arguments(x: torch.Tensor, w: sf.PackedWeight) -> tuple[Any, ...]:
    words, scale_rows, zero_rows, perm, *rest = operands(w)
    return (x, words, scale_rows, zero_rows, perm, w.bias, *rest)


def tokens(w: sf.PackedWeight, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(*shape, w.shape[0], generator=g).to(w.dtype).to(w.device)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_opcheck(kind: str, where: str) -> None:
    w = weight(kind, where)
    for shape in ((3,), (1, 2), (0,)):
        x = tokens(w, *shape)
        torch.library.opcheck(OPERATORS.mm.default, arguments(x, w))
        out = torch.empty(*shape, N, dtype=w.dtype, device=w.device)
        torch.library.opcheck(OPERATORS.mm_out.default, arguments(x, w), {"out": out})
    torch.library.opcheck(OPERATORS.mm.default, arguments(tokens(w, 2).requires_grad_(), w))
    torch.library.opcheck(OPERATORS.dequantize.default, operands(w))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_operators_are_the_functions(kind: str) -> None:
    w = weight(kind)
    x = tokens(w, 2, 3)
    y = OPERATORS.mm(*arguments(x, w))
    assert torch.equal(y, sf.mm(x, w))
    out = torch.empty_like(y)
    OPERATORS.mm_out(*arguments(x, w), out=out)
    assert torch.equal(out, y)
    assert torch.equal(OPERATORS.dequantize(*operands(w)), sf.dequantize(w))


def test_one_graph_serves_every_number_of_rows() -> None:
    """The largest first; a symbolic size means that the branch is taken at run time."""
    w = weight("act-order")
    counter = CompileCounter()
    compiled = torch.compile(lambda x: sf.mm(x, w) * 2, fullgraph=True, backend=counter)
    for m in (300, 16, 17, 2, 129):
        x = tokens(w, m)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), sf.mm(x, w) * 2)
    assert counter.frame_count == 1
    for m in (1, 0):
        assert torch.equal(compiled(tokens(w, m)), sf.mm(tokens(w, m), w) * 2)
    assert counter.frame_count <= 3, "torch itself makes graphs of their own for 0 and 1"


def test_graphs_go_straight_to_the_kernels() -> None:
    """The profiler sees what the dispatcher calls."""
    layer = sf.Linear(weight("bias"))
    x = tokens(layer.weight, 3)
    y = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(layer, (x,)).module()

    def dispatched(call: Callable[..., torch.Tensor], *operands: Any) -> int:
        with torch.profiler.profile() as profile:
            assert torch.equal(call(*operands), y)
        return sum(event.name == "swordfish::mm" for event in profile.events())

    with torch.no_grad():
        for model in (compiled, exported):
            model(x)
            assert dispatched(model, x) == 0
    given = arguments(x, layer.weight)
    assert dispatched(OPERATORS.mm, *given) == 1
    assert dispatched(OPERATORS.mm.default, *given) == 1, "gradients"


@pytest.mark.parametrize("kind", WEIGHTS)
def test_graphs_run_the_kernels_of_eager_calls(kind: str) -> None:
    """On the short way, too: with and without a bias, permutation and zero points, one row and several."""
    w = weight(kind)
    with sf.emulate("sm_90a"), torch.no_grad():
        for shape in ((1,), (3,), (2, 2), (0,)):
            x = tokens(w, *shape)
            assert torch.equal(OPERATORS.mm.default(*arguments(x, w)), sf.mm(x, w))


class Seen(TorchDispatchMode):
    """Counts the calls of ``swordfish::mm``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is OPERATORS.mm.default
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    """The same one level above."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is OPERATORS.mm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
def test_modes_see_the_operator_of_graphs(mode: Any) -> None:
    w = weight("bias")
    x = tokens(w, 2)
    with torch.no_grad(), mode() as seen:
        y = OPERATORS.mm.default(*arguments(x, w))
    assert seen.calls == 1 and torch.equal(y, sf.mm(x, w))


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 5])
def test_tensor_subclasses_see_the_operator_of_graphs(index: int) -> None:
    w = quantised(K, N, group_size=32, act_order=True, zeros="integer", bias=True)
    given = list(arguments(tokens(w, 2), w))
    given[index] = given[index].as_subclass(Marked)
    with torch.no_grad():
        y = OPERATORS.mm.default(*given)
    assert type(y) is Marked and torch.equal(y.as_subclass(torch.Tensor), sf.mm(tokens(w, 2), w))


class Marked(torch.Tensor):
    """What comes of it is marked, too: the rule of ``__torch_function__``."""


def test_the_operator_of_graphs_has_gradients_transforms_and_fake_results() -> None:
    w = weight("bias")
    x = tokens(w, 3).requires_grad_()
    OPERATORS.mm.default(*arguments(x, w)).sum().backward()
    y = tokens(w, 3).requires_grad_()
    sf.mm(y, w).sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)
    with torch.no_grad():
        meta = OPERATORS.mm.default(*arguments(x.to("meta"), w.to("meta")))
        assert meta.is_meta and meta.shape == (3, N)
        with FakeTensorMode() as mode:
            fake = fake_weight(w, mode)
            assert OPERATORS.mm.default(*arguments(mode.from_tensor(x), fake)).shape == (3, N)
        rows = tokens(w, 2, 3)
        batched = torch.func.vmap(lambda x: OPERATORS.mm.default(*arguments(x, w)))(rows)
        assert torch.equal(batched, sf.mm(rows, w))


def test_compiled_modules_follow_their_buffers_and_keep_nothing() -> None:
    layer, other = sf.Linear(weight("int4")), quantised(K, N, group_size=64, seed=9)
    x = tokens(other, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    before = compiled(x)
    assert "_weight" not in layer.__dict__, "made anew at every call of the graph otherwise"
    layer.words, layer.scale_rows = other.words, other.scale_rows
    assert torch.equal(compiled(x), sf.mm(x, other)) and not torch.equal(compiled(x), before)
    with pytest.raises(sf.ArgumentError, match=r"x.shape=\(4, 64\)"):
        torch.compile(layer, backend="aot_eager")(x[:, :64])


@pytest.mark.parametrize("kind", WEIGHTS)
def test_compiled_modules(kind: str) -> None:
    layer = sf.Linear(weight(kind))
    model = torch.nn.Sequential(layer, torch.nn.SiLU())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((5,), (2, 3), (7,)):
        x = tokens(layer.weight, *shape)
        assert torch.equal(compiled(x), model(x))


def test_compiled_calls_take_the_kernels_of_eager_calls() -> None:
    w = weight("int4")
    compiled = torch.compile(lambda x: sf.mm(x, w), fullgraph=True, backend="eager", dynamic=True)
    for m in (2, 20):
        x = tokens(w, m)
        with sf.emulate("sm_90a") as eager:
            y = sf.mm(x, w)
        with sf.emulate("sm_90a") as traced:
            assert torch.equal(compiled(x), y)
        counts = [[report.classes for report in run.reports] for run in (eager, traced)]
        assert counts[0] == counts[1] != []


def test_out_and_gradients_inside_a_compiled_function() -> None:
    w = weight("bias")

    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        sf.mm(x, w, out=out)
        return out + 1

    x, out = tokens(w, 4), torch.empty(4, N, dtype=w.dtype)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, out), sf.mm(x, w) + 1) and torch.equal(out, sf.mm(x, w))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return sf.mm(x, w).float().square().sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        y = tokens(w, 4).requires_grad_()
        function(y).backward()
        grads.append(y.grad)
    assert grads[0] is not None and grads[1] is not None
    torch.testing.assert_close(grads[0], grads[1])


def test_autocast_inside_a_compiled_function() -> None:
    w = weight("int4")
    x = torch.randn(3, K)
    for function in (lambda x: sf.mm(x, w), sf.Linear(w)):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = compiled(x)
        assert y.dtype == torch.bfloat16 and torch.equal(y, sf.mm(x.bfloat16(), w))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_export(kind: str) -> None:
    layer = sf.Linear(weight(kind))
    rows = torch.export.Dim("rows", min=1, max=8192)
    program = torch.export.export(layer, (tokens(layer.weight, 4),), dynamic_shapes=({0: rows},))
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called == [OPERATORS.mm.default]
    for m in (1, 3, 40):
        x = tokens(layer.weight, m)
        assert torch.equal(program.module()(x), layer(x))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_fake_and_meta_results_look_like_real_ones(kind: str) -> None:
    w = weight(kind)
    x = tokens(w, 2, 3)
    y = sf.mm(x, w)
    meta = sf.mm(x.to("meta"), w.to("meta"))
    assert (meta.shape, meta.dtype, meta.stride()) == (y.shape, y.dtype, y.stride()) and meta.is_meta
    with FakeTensorMode() as mode:
        fake = sf.mm(mode.from_tensor(x), fake_weight(w, mode))
        values = OPERATORS.dequantize(*operands(fake_weight(w, mode)))
    assert (fake.shape, fake.dtype, fake.stride(), fake.device) == (y.shape, y.dtype, y.stride(), y.device)
    assert (values.shape, values.dtype) == ((K, N), w.dtype)


def fake_weight(w: sf.PackedWeight, mode: FakeTensorMode) -> sf.PackedWeight:
    fields = ("words", "scale_rows", "zero_rows", "perm", "bias")
    found = [getattr(w, name) for name in fields]
    made = [None if t is None else mode.from_tensor(t) for t in found]
    return sf.PackedWeight(*made, w.scheme, w.shape)  # type: ignore[arg-type]


def test_function_transforms_are_refused_by_torch() -> None:
    """They reach the operator, not the kernels with a wrapped tensor."""
    w = weight("int4")
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: sf.mm(x, w).float().sum())(tokens(w, 3))


def test_replicas_of_a_module() -> None:
    """What torch.nn.DataParallel does: a shallow copy whose buffers are replaced."""
    layer = sf.Linear(weight("act-order"))
    x = tokens(layer.weight, 2)
    y = layer(x)
    replica = layer._replicate_for_data_parallel()
    for name, buffer in layer._buffers.items():
        replica._buffers[name] = None if buffer is None else buffer.clone()
    assert torch.equal(replica(x), y) and replica.weight.words is not layer.weight.words
    assert torch.equal(copy.deepcopy(layer)(x), y)


def changed(index: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    def change(given: list[Any]) -> list[Any]:
        given[index] = value(given[index]) if callable(value) else value
        return given

    return change


BAD: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "x of another K": (changed(0, lambda x: x[:, :64]), r"x.shape=\(2, 64\)"),
    "x of another dtype": (changed(0, lambda x: x.float()), "x.dtype=torch.float32"),
    "words of another width": (changed(1, lambda t: t[..., :100]), "words.shape"),
    "words of another K": (changed(1, lambda t: t[:, :1]), "words.shape"),
    "scales of another dtype": (changed(2, lambda t: t.float()), "scale_rows.dtype=torch.float32"),
    "too few scale rows": (changed(2, lambda t: t[:1]), "scale_rows.shape"),
    "bias of another length": (changed(5, lambda t: torch.zeros(N + 1).bfloat16()), "bias="),
    "a group size that is none": (changed(8, 48), "group_size=48"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_of_the_operator_is_named(case: str) -> None:
    change, message = BAD[case]
    w = weight("int4")
    with pytest.raises((sf.ArgumentError, sf.ArgumentTypeError), match=message):
        OPERATORS.mm(*change(list(arguments(tokens(w, 2), w))))
    with torch.no_grad(), pytest.raises((sf.ArgumentError, sf.ArgumentTypeError), match=message):
        OPERATORS.mm.default(*change(list(arguments(tokens(w, 2), w))))


def test_bad_out_of_the_operator_is_named() -> None:
    w = weight("int4")
    with pytest.raises(sf.ArgumentError, match="out="):
        OPERATORS.mm_out(*arguments(tokens(w, 2), w), out=torch.empty(2, N + 1, dtype=w.dtype))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_warmup_builds_every_kind_of_call(arch: str) -> None:
    layer = sf.Linear(weight("bias"))
    with place(arch):
        assert sf.warmup(layer, 40) >= 2
        assert sf.warmup([layer.weight], [1]) >= 1
        with pytest.raises(sf.ArgumentError, match="rows"):
            sf.warmup(layer, 0)
        with pytest.raises(sf.ArgumentTypeError, match="weights"):
            sf.warmup([layer])  # type: ignore[list-item]
        with pytest.raises(sf.ArgumentTypeError, match="weights=NoneType is not allowed"):
            sf.warmup(None)  # type: ignore[arg-type]
        for rows in (1.5, "3", [1, "2"]):
            with pytest.raises(sf.ArgumentTypeError, match=r"rows=(float|str) is not allowed"):
                sf.warmup(layer, rows)  # type: ignore[arg-type]
    assert sf.warmup(layer) == 0, "nothing to build on a CPU"


def test_warmup_of_a_model_with_experts() -> None:
    made = layer_of_experts(4, 64, 64)
    model = torch.nn.ModuleList([sf.Linear(weight("int4")), sf.MoE(made.w13, made.w2)])
    with sf.emulate("sm_90a"):
        with pytest.raises(sf.ArgumentError, match="top_k=None"):
            sf.warmup(model, [1, 5])
        linear = sf.warmup(model[0], [1, 5])
        assert sf.warmup(model, [1, 5], top_k=2) >= linear + 8, "two plans, two types of ids"
    assert sf.warmup(model, [1, 5], top_k=2) == 0
