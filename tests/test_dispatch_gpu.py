"""sf.mm on a GPU as serving uses it: graphs, torch.compile, streams, threads, the same bits every time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import swordfish as sf
from swordfish.dispatch import forget_plans
from swordfish.runtime import forget_kernels
from tests.backends import exact, quantised

pytestmark = pytest.mark.gpu

GRAPH_ROWS = [1 << i for i in range(10)]
ROWS = [1, 2, 8, 9, 16, 17, 48, 64, 65, 96, 128, 129, 144, 145, 256, 257, 511, 1025, 2500, 4100]

SCHEMES: list[dict[str, Any]] = [
    {},
    {"dtype": torch.float16},
    {"bits": 8},
    {"zeros": "integer", "group_size": 64},
    {"act_order": True},
    {"bits": 8, "zeros": "integer", "act_order": True, "dtype": torch.float16},
]


def tokens(m: int, w: sf.PackedWeight, seed: int = 0) -> torch.Tensor:
    g = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(m, w.shape[0], device="cuda", generator=g).to(w.dtype)


@pytest.mark.parametrize("path", ["", "decode", "dense"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_product_and_bits_over_rows(
    scheme: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path against the exact product, element by element, and 20 times the same bits.

    The bound: one rounding of the result, and six standard deviations of a rounding of every weight, which is
    uniform within its unit roundoff. Decode rounds none; its fp32 sums lose at most 2^-24 of all terms' size
    at each of K/16 products.
    """
    monkeypatch.setenv("SWORDFISH_PATH", path)
    w = quantised(1024, 576, device="cuda", **scheme)
    unit = 2.0**-8 if w.dtype == torch.bfloat16 else 2.0**-11
    values = sf.dequantize(w).double()
    for m in ROWS:
        x = tokens(m, w)
        y = sf.mm(x, w)
        reference = exact(x, w)
        if sf.explain(w, m).path == "decode":
            slack = (x.double().abs() @ values.abs()) * (w.shape[0] / 16 * 2**-24)
        else:
            slack = (x.double().square() @ values.square()).sqrt() * (6 * unit / 3**0.5)
        worst = (y.double() - reference).abs() / (reference.abs() * unit + slack)
        assert worst.max() <= 1, f"M={m}: {float(worst.max()):.2f} of the bound"
        for _ in range(20):
            assert torch.equal(sf.mm(x, w), y), f"M={m}: another run gives other bits"


@pytest.mark.parametrize("scheme", [{}, {"act_order": True, "bias": True}], ids=str)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_graphs_of_every_size(warm: bool, scheme: dict[str, Any]) -> None:
    """Captured at the first call ever, replayed with new data; 10,000 replays in all."""
    w = quantised(2048, 1024, device="cuda", **scheme)
    forget_plans()
    forget_kernels()
    if warm:
        assert sf.warmup(w, GRAPH_ROWS) > 0
    for m in GRAPH_ROWS:
        x = tokens(m, w)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = sf.mm(x, w)
        for seed in range(1, 4):
            fresh = tokens(m, w, seed)
            x.copy_(fresh)
            y.fill_(float("nan"))
            graph.replay()
            assert torch.equal(y, sf.mm(fresh, w)), f"M={m}"
        for _ in range(10_000 // len(GRAPH_ROWS)):
            graph.replay()
        assert torch.equal(y, sf.mm(fresh, w)), f"M={m}"


def test_one_compiled_graph_serves_every_path() -> None:
    w = quantised(1024, 512, device="cuda")
    layer = sf.Linear(w)
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: torch.nn.functional.silu(layer(x)), fullgraph=True, backend=counter)
    with torch.inference_mode():
        for m in (4096, *(m for m in ROWS if m > 1), 300, 17):
            x = tokens(m, w)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), torch.nn.functional.silu(layer(x)), rtol=2**-7, atol=1e-3)
    assert counter.frame_count == 1


@pytest.mark.parametrize("m", [1, 40, 200, 5000])
@pytest.mark.parametrize("scheme", [{}, {"act_order": True}], ids=str)
def test_work_stays_on_the_current_stream(m: int, scheme: dict[str, Any]) -> None:
    """A long-running producer, the call and a consumer on side streams, two of them sharing the weight."""
    w = quantised(1024, 512, device="cuda", **scheme)
    inputs = [tokens(m, w, seed) for seed in (1, 2)]
    wanted = [sf.mm(x, w) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(50):
        results = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000)
                results.append(sf.mm(x * 1, w).clone())
        torch.cuda.synchronize()
        assert all(torch.equal(y, right) for y, right in zip(results, wanted, strict=True))


def test_capture_on_a_side_stream() -> None:
    w = quantised(1024, 512, device="cuda", act_order=True)
    x, side, graph = tokens(20, w), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), torch.cuda.graph(graph, stream=side):
        y = sf.mm(x, w)
    x.copy_(tokens(20, w, 3))
    graph.replay()
    assert torch.equal(y, sf.mm(x, w))


def test_threads_share_a_weight() -> None:
    w = quantised(1024, 512, device="cuda")
    wanted = {m: sf.mm(tokens(m, w, m), w) for m in range(1, 40)}
    forget_plans()
    wrong: list[int] = []

    def work(part: int) -> None:
        for _ in range(20):
            for m in range(1 + part, 40, 4):
                if not torch.equal(sf.mm(tokens(m, w, m), w), wanted[m]):
                    wrong.append(m)

    threads = [threading.Thread(target=work, args=(part % 4,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_batch_of_sequences_is_its_rows(scheme: dict[str, Any]) -> None:
    """Again and again: the first call looks everything up, the later ones find it."""
    w = quantised(1024, 576, device="cuda", **scheme)
    layer = sf.Linear(w)
    for batch, length in ((1, 1), (1, 3), (2, 8), (3, 16), (2, 100)):
        x = tokens(batch * length, w)
        rows = sf.mm(x, w)
        for _ in range(3):
            assert torch.equal(sf.mm(x.view(batch, length, -1), w), rows.view(batch, length, -1))
            assert torch.equal(layer(x.view(batch, length, -1)).view(batch * length, -1), rows)


def test_devices_that_are_not_current() -> None:
    """With one GPU: a weight on the CPU is refused by name."""
    last = torch.cuda.device_count() - 1
    w = quantised(256, 128)
    there = w.to(f"cuda:{last}")
    x = tokens(3, w).to(f"cuda:{last}")
    torch.cuda.set_device(0)
    for _ in range(20):
        assert torch.equal(sf.mm(x, there).cpu(), sf.mm(x.to("cuda:0"), w.to("cuda:0")).cpu())
        assert torch.cuda.current_device() == 0
    with pytest.raises(sf.ArgumentError, match=r"x\.device"):
        sf.mm(x, w)
    if last:
        with pytest.raises(sf.ArgumentError, match=r"x\.device"):
            sf.mm(x.to("cuda:0"), there)


def test_huge_products_are_chunked_not_refused() -> None:
    """More rows than any tile walk holds at once: the last row is as right as the first."""
    w = quantised(128, 64, device="cuda")
    x = tokens(1, w).expand(300_000, 128)
    y = sf.mm(x, w)
    assert torch.equal(y[:1].expand_as(y), y)
