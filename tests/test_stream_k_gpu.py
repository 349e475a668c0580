"""Stream-K launches beside each other on a GPU: streams and graphs must not share flags."""

from __future__ import annotations

import pytest
import torch

import swordfish as sf
from swordfish.decode.wide import WideConfig
from swordfish.scheme import Scheme
from swordfish.tune.operands import check_product, exact_product, random_weight

pytestmark = pytest.mark.gpu

M, K, N = 96, 14336, 4096
TIMES = 30


@pytest.fixture(scope="module")
def operands() -> tuple[sf.PackedWeight, list[torch.Tensor], list[torch.Tensor]]:
    """A weight, two activations and the two products, checked."""
    device = torch.device("cuda", torch.cuda.current_device())
    w = random_weight(Scheme(4, 128, "bfloat16"), K, N, device, 1)
    config = sf.explain(w, M).config
    if not isinstance(config, WideConfig) or not config.ctas:
        pytest.skip(f"the rules of this device choose {config}")
    xs = [torch.randn(M, K, device=device).to(w.dtype) for _ in range(2)]
    products = [sf.mm(x, w) for x in xs]
    for x, product in zip(xs, products, strict=True):
        wrong, _ = check_product(product, exact_product(x, w))
        assert not wrong
    return w, xs, products


def test_two_streams(operands: tuple[sf.PackedWeight, list[torch.Tensor], list[torch.Tensor]]) -> None:
    w, xs, products = operands
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(TIMES):
        for x, stream, found in zip(xs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(sf.mm(x, w))
    torch.cuda.synchronize()
    for product, found in zip(products, results, strict=True):
        assert all(torch.equal(product, y) for y in found)


def test_two_graphs(operands: tuple[sf.PackedWeight, list[torch.Tensor], list[torch.Tensor]]) -> None:
    """Captured from the same stream, replayed on two."""
    w, xs, products = operands
    torch.cuda.synchronize()
    capture = torch.cuda.Stream()
    graphs, outs = [], []
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=capture):
            for _ in range(4):
                out = sf.mm(x, w)
        graphs.append(graph)
        outs.append(out)
    streams = [torch.cuda.Stream() for _ in xs]
    for out in outs:
        out.fill_(float("nan"))
    torch.cuda.synchronize()
    for _ in range(TIMES):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for product, out in zip(products, outs, strict=True):
        assert torch.equal(product, out)
