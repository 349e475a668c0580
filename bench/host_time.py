"""What a call costs the CPU before it returns: ``python -m bench.host_time``.

Microseconds of one call with one row, the best of several loops; the device is waited for between loops, not
between calls. ``--stub`` needs no GPU: on the CPU, with plan and launch left out, what Python and torch cost
around them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from unittest import mock

import torch

import swordfish as sf
from swordfish import dispatch, operators, ready
from swordfish.calls import DecodeCall
from swordfish.decode.bound import BoundLaunch
from swordfish.runtime import torch_cuda
from swordfish.scheme import Scheme
from swordfish.tune.operands import random_weight

__all__ = ["best_us", "main", "measure"]

CALLS, LOOPS, LAYERS = 300, 8, 64


def best_us(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Of one call, the best of :data:`LOOPS` loops of so many."""
    best = float("inf")
    for _ in range(LOOPS + 1):  # the first may load kernels and make the clocks rise
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def measure(size: int, device: torch.device) -> dict[str, float]:
    """Microseconds by what is called, for ``size x size`` weights."""
    scheme = Scheme(4, 128, "bfloat16")
    weights = [random_weight(scheme, size, size, device, seed) for seed in range(LAYERS)]
    layers = [sf.Linear(w) for w in weights]
    w, layer = weights[0], layers[0]
    x, plain = torch.randn(1, size, device=device, dtype=w.dtype), sf.dequantize(w)
    words, scale_rows, zero_rows, perm, *rest = operators.operands(w)
    arguments = (x, words, scale_rows, zero_rows, perm, None, *rest)
    operator: Any = torch.ops.swordfish.mm
    compiled: Any = torch.compile(torch.nn.Sequential(*layers), fullgraph=True)
    single: Any = torch.compile(layer, fullgraph=True)
    found = {
        "`sf.mm(x, w)`, eager": best_us(lambda: sf.mm(x, w), CALLS, device),
        "`sf.Linear`": best_us(lambda: layer(x), CALLS, device),
        "`torch.mm`, the dequantised weight": best_us(lambda: torch.mm(x, plain), CALLS, device),
    }
    with torch.inference_mode():
        name = "`torch.ops.swordfish.mm{}` in inference mode"
        found[name.format("")] = best_us(lambda: operator(*arguments), CALLS, device)
        found[name.format(".default")] = best_us(lambda: operator.default(*arguments), CALLS, device)
        chain = best_us(lambda: compiled(x), CALLS // 10, device)
        found[f"a compiled chain of {LAYERS} `sf.Linear`, per call"] = chain / LAYERS
        found["a compiled `sf.Linear`"] = best_us(lambda: single(x), CALLS, device)
    return found


class _Nothing(DecodeCall):
    """A plan whose launch does nothing."""

    def __init__(self) -> None: ...

    def __call__(self, *arguments: Any) -> None: ...

    def bind(self, *weight: Any) -> BoundLaunch:
        return lambda *arguments: None


def _stubs() -> Iterator[Any]:
    """Patches with which CPU tensors go the way of those on a GPU, up to the launch."""
    nothing, guards = _Nothing(), cast(Any, torch._C)._dynamo.guards
    for owner, name, value in (
        (dispatch, "planned", lambda *_: nothing),
        (ready, "CPU_DEVICE", None),
        (torch_cuda, "raw_stream", lambda device: 0),
        (torch_cuda, "empty", guards._empty_strided_cpu),
    ):
        yield mock.patch.object(owner, name, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table; returns 2 without a CUDA device, unless calls are stubs."""
    parser = argparse.ArgumentParser(prog="python -m bench.host_time", description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=4096, help="K and N (default 4096)")
    parser.add_argument("--stub", action="store_true", help="on the CPU, nothing planned and launched")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stubs:
        if options.stub:
            device = torch.device("cpu")
            for stub in _stubs():
                stubs.enter_context(stub)
        elif torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        else:
            print("no CUDA device: nothing to time", file=sys.stderr)
            return 2
        print("| | us |\n|---|---|")
        for name, us in measure(options.size, device).items():
            print(f"| {name} | {us:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
