"""``sf.mm``: shapes, ``out``, ``bias``, gradients, and what it says about bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish.errors import ArgumentError, ArgumentTypeError
from tests.products import KERNELS, PLACES, assert_product, device_of, layer, place

K, N = 192, 72
LEADING = [(), (1,), (5,), (2, 3), (1, 1, 1), (2, 1, 3)]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_leading_dimensions(where: str, leading: tuple[int, ...]) -> None:
    made = layer(K, N, device=device_of(where))
    x = torch.randn(*leading, K).half().to(device_of(where))
    y = sf.mm(x, made.weight)
    assert y.shape == (*leading, N) and y.is_contiguous() and y.device == x.device
    assert_product(y, x, made.values)


@pytest.mark.parametrize("where", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_everything_at_once_on_kernels(where: str, dtype: torch.dtype) -> None:
    """Zero points, act-order, a bias, tails in K and N, three rows in two leading dimensions."""
    bias = torch.randn(N)
    made = layer(
        168,
        N,
        dtype=dtype,
        group_size=32,
        zeros=True,
        act_order=True,
        bias=bias,
        device=device_of(where),
    )
    x = torch.randn(3, 1, 168).to(dtype).to(device_of(where))
    with place(where):
        y = sf.mm(x, made.weight)
    assert y.shape == (3, 1, N)
    assert_product(y, x, made.values, bias.to(dtype))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("zeros", [False, True], ids=["sym", "zeros"])
def test_reference(bits: int, dtype: torch.dtype, zeros: bool) -> None:
    made = layer(320, 1100, bits=bits, dtype=dtype, zeros=zeros, group_size=64)
    x = torch.randn(9, 320).to(dtype)
    assert_product(sf.mm(x, made.weight), x, made.values)


def test_one_hot_rows_return_the_dequantised_weight() -> None:
    made = layer(K, N, zeros=True, act_order=True, group_size=32)
    assert torch.equal(sf.mm(torch.eye(K).half(), made.weight), sf.dequantize(made.weight))
    assert torch.equal(sf.dequantize(made.weight), made.values.half())


OUTS = {
    "contiguous": ((4, N), lambda base: base),
    "padded rows": ((4, N + 8), lambda base: base[:, :N]),
    "odd columns": ((4, N + 5), lambda base: base[:, 3 : 3 + N]),
    "transposed": ((N, 4), lambda base: base.t()),
    "every other column": ((4, 2 * N), lambda base: base[:, ::2]),
    "odd address": ((4 * N + 1,), lambda base: base[1:].view(4, N)),
    "three dimensions": ((2, N, 2), lambda base: base.transpose(1, 2)),
}


@pytest.mark.parametrize("where", [*PLACES, "sm_100a"])
def test_out_of_every_kind(where: str) -> None:
    """The result is written, returned, and nothing beside it is touched."""
    device = device_of(where)
    made = layer(128, N, device=device)
    x = torch.randn(4, 128).half().to(device)
    with place(where):
        expected = sf.mm(x, made.weight)
        for name, (shape, view) in OUTS.items():
            base = torch.full(shape, torch.nan, dtype=torch.float16, device=device)
            out = view(base)
            assert sf.mm(x.view(*out.shape[:-1], 128), made.weight, out=out) is out, name
            assert torch.equal(out.reshape(4, N), expected), name
            assert int(base.isfinite().sum()) == 4 * N, name


def test_out_of_one_row() -> None:
    made = layer(128, N)
    x = torch.randn(128).half()
    out = torch.empty(2 * N).half()[::2]
    assert sf.mm(x, made.weight, out=out) is out
    assert torch.equal(out, sf.mm(x, made.weight))


def test_bias_of_the_call_and_of_the_weight() -> None:
    plain, bias = layer(K, N), torch.randn(N)
    x = torch.randn(3, K).half()
    y = sf.mm(x, plain.weight, bias=bias)
    assert_product(y, x, plain.values, bias.half())
    assert torch.equal(y, sf.mm(x, layer(K, N, bias=bias).weight))


# --- gradients


def test_gradients_reach_x_and_bias() -> None:
    made = layer(K, N, act_order=True, group_size=32)
    x = torch.randn(2, 3, K).half().requires_grad_()
    bias = torch.randn(N, requires_grad=True)
    y = sf.mm(x, made.weight, bias=bias)
    grad = torch.randn(2, 3, N).half()
    y.backward(grad)
    assert x.grad is not None and bias.grad is not None
    torch.testing.assert_close(x.grad, (grad.double() @ made.values.T).half(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(bias.grad, grad.sum((0, 1)).float(), rtol=2e-3, atol=2e-3)
    assert torch.equal(y.detach(), sf.mm(x.detach(), made.weight, bias=bias.detach()))


def test_bias_alone_may_need_a_gradient() -> None:
    made = layer(K, N)
    bias = torch.zeros(N, dtype=torch.float16, requires_grad=True)
    sf.mm(torch.ones(K).half(), made.weight, bias=bias).sum().backward()
    assert bias.grad is not None and torch.equal(bias.grad, torch.ones(N).half())


def test_no_graph_is_built_unless_asked_for() -> None:
    made = layer(K, N)
    x = torch.randn(2, K).half()
    assert not sf.mm(x, made.weight).requires_grad
    with torch.no_grad():
        assert not sf.mm(x.clone().requires_grad_(), made.weight).requires_grad
    with torch.inference_mode():
        y = sf.mm(x.clone(), made.weight)
        assert y.is_inference() and torch.equal(y, sf.mm(x, made.weight))


# --- bad input

W = layer(K, N).weight
WITH_BIAS = layer(K, N, bias=torch.zeros(N)).weight
X = torch.zeros(2, K).half()
SHARED = torch.zeros(2 * K).half()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"w": torch.zeros(K, N)}, ArgumentTypeError, "w=Tensor is not allowed: expected a PackedWeight"),
        ({"x": [1.0]}, ArgumentTypeError, "x=list is not allowed: expected a torch.Tensor"),
        (
            {"x": X.float()},
            ArgumentTypeError,
            "x.dtype=torch.float32 is not allowed: expected torch.float16, for which the weight was packed. ",
        ),
        ({"x": X[:, 1:]}, ArgumentError, "x.shape=(2, 191) is not allowed: expected [..., K=192]"),
        ({"x": X[0, 0]}, ArgumentError, "x.shape=() is not allowed: expected [..., K=192]"),
        (
            {"x": X.to("meta")},
            ArgumentError,
            "x.device=meta is not allowed: expected cpu, where the weight is",
        ),
        ({"bias": [0.0] * N}, ArgumentTypeError, "bias=list is not allowed: expected a torch.Tensor or None"),
        (
            {"bias": torch.zeros(N).int()},
            ArgumentTypeError,
            "bias.dtype=torch.int32 is not allowed: expected a fl",
        ),
        ({"bias": torch.zeros(N - 1)}, ArgumentError, "bias.shape=(71,) is not allowed: expected (72,)"),
        ({"bias": torch.zeros(1, N)}, ArgumentError, "bias.shape=(1, 72) is not allowed: expected (72,)"),
        (
            {"bias": torch.zeros(N, device="meta")},
            ArgumentError,
            "bias.device=meta is not allowed: expected cpu",
        ),
        (
            {"w": WITH_BIAS, "bias": torch.zeros(N)},
            ArgumentError,
            "bias=a tensor is not allowed: expected None for a weight that carries its own bias",
        ),
        ({"out": "y"}, ArgumentTypeError, "out=str is not allowed: expected a torch.Tensor or None"),
        (
            {"out": torch.zeros(2, N)},
            ArgumentTypeError,
            "out.dtype=torch.float32 is not allowed: expected torch.float16",
        ),
        (
            {"out": torch.zeros(N, 2).half()},
            ArgumentError,
            "out.shape=(72, 2) is not allowed: expected (2, 72)",
        ),
        (
            {"out": torch.zeros(2, N, device="meta").half()},
            ArgumentError,
            "out.device=meta is not allowed: expected cpu",
        ),
        (
            {"out": torch.zeros(1, N).half().expand(2, N)},
            ArgumentError,
            "out.stride()=(0, 1) is not allowed: expected",
        ),
        (
            {"out": torch.zeros(2, N).half().requires_grad_()},
            ArgumentError,
            "out.requires_grad=True is not allowed: expected False",
        ),
        (
            {"x": SHARED.view(2, K), "out": SHARED[: 2 * N].view(2, N)},
            ArgumentError,
            "out=memory shared with x is not allowed: expected memory of its own",
        ),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    """Each message begins with the argument and its value; on the emulator nothing is launched before it."""
    with sf.emulate("sm_90a") as emulation, pytest.raises(kind) as caught:
        sf.mm(**{"x": X, "w": W, **arguments})
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, sf.SwordfishError) and not emulation.reports


def test_x_beside_out_in_one_buffer_is_fine() -> None:
    made = layer(K, N)
    buffer = torch.randn(K + N).half()
    x, out = buffer[:K], buffer[K:]
    expected = sf.mm(x.clone(), made.weight)
    assert torch.equal(sf.mm(x, made.weight, out=out), expected)
