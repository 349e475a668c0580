"""The dequantise kernel against a copy of as many bytes: ``python -m bench.dequantise --bits 4,8``.

Both move a weight's bytes: the kernel reads words and scales and writes 16-bit values; the copy reads half of
the bytes and writes the other half, by the fastest of several CTA sizes. Every launch finds its source cold.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.device import describe_device, versions
from bench.shapes import SHAPES, Shape, parse_shapes
from swordfish.dense import DequantConfig, dequantize_into
from swordfish.runtime import KernelSource, LaunchConfig, compile_many, device_props, get_kernel
from swordfish.scheme import DTYPES, Scheme
from swordfish.tune.operands import random_weight, weight_bytes
from swordfish.tune.timing import CudaBackend, Graph, medians, rotation_count, warm_up
from swordfish.weights import dequantize_by_torch

__all__ = ["COPY", "main", "markdown"]

COPY = r"""
extern "C" __global__ void __launch_bounds__(THREADS)
copy_once(const uint4* from, uint4* to, unsigned long long vectors) {
  const unsigned long long i = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
  if (i < vectors) to[i] = from[i];
}
"""
THREADS = (64, 128, 256, 512, 1024)
ROUNDS = 9
"""Replays; a graph walks twice over all copies."""


def copy_source(threads: int) -> KernelSource:
    """A thread copies one vector of 16 bytes."""
    return KernelSource(f"#define THREADS {threads}\n{COPY}", "copy_once")


def time_all(backend: CudaBackend, contenders: dict[str, list[Callable[[], object]]]) -> dict[str, float]:
    """Microseconds a call of each contender, whose calls walk over cold copies."""
    graphs = [Graph(backend, calls, 2 * len(calls)) for calls in contenders.values()]
    warm_up(backend, graphs[0])
    return dict(zip(contenders, medians(backend, graphs, ROUNDS), strict=True))


def measure(shape: Shape, scheme: Scheme, backend: CudaBackend) -> dict[str, Any]:
    """A row of the result: bytes, microseconds, and bandwidth over that of the copy. Checks values first."""
    device = torch.device("cuda", torch.cuda.current_device())
    props, k, n = device_props(device), shape.k, shape.n
    size = weight_bytes(scheme, k, n)
    moved = size + 2 * k * n
    weights = [random_weight(scheme, k, n, device, i) for i in range(rotation_count(size, props.l2_bytes))]
    rows = torch.empty((k, n), dtype=scheme.torch_dtype, device=device)
    columns = torch.empty((n, k), dtype=scheme.torch_dtype, device=device)
    forms = {"[K, N]": (rows, False), "[N, K]": (columns, True)}
    wanted = dequantize_by_torch(weights[0])
    contenders: dict[str, list[Callable[[], object]]] = {}
    for name, (out, transposed) in forms.items():
        out.fill_(float("nan"))
        dequantize_into(weights[0], out, transposed=transposed)
        if not torch.equal(out.T if transposed else out, wanted):
            raise RuntimeError(f"{name} of {shape.name}, {scheme}: wrong values")
        contenders[name] = [
            functools.partial(dequantize_into, w, out, transposed=transposed) for w in weights
        ]
    del wanted
    vectors = moved // 32
    buffers = [
        torch.randint(-9, 9, (vectors * 4,), dtype=torch.int32, device=device)
        for _ in range(max(2, rotation_count(moved, props.l2_bytes)))
    ]
    target = torch.empty_like(buffers[0])
    for threads in THREADS:
        kernel = get_kernel(copy_source(threads), props.arch)
        launch = kernel.prepare(LaunchConfig((-(-vectors // threads), 1, 1), (threads, 1, 1)))
        contenders[f"copy {threads}"] = [
            functools.partial(launch, (buffer, target, np.uint64(vectors))) for buffer in buffers
        ]
        target.zero_()
        contenders[f"copy {threads}"][0]()
        if not torch.equal(target, buffers[0]):
            raise RuntimeError(f"copy of {threads} threads a CTA: wrong values")
    times = time_all(backend, contenders)
    copy = min(us for name, us in times.items() if name.startswith("copy"))
    of_copy = {name: copy / times[name] for name in forms}
    problem = {"shape": shape.name, "k": k, "n": n, "bits": scheme.bits}
    return {**problem, "bytes": moved, "us": times, "copy_us": copy, "of_copy": of_copy}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/dense.md."""
    lines = [
        "| | MB | copy, TB/s | `[K, N]`, us | of the copy | `[N, K]`, us | of the copy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row['us'][form]:.1f} | {row['of_copy'][form]:.2f}" for form in row["of_copy"]]
        rate, name = row["bytes"] / row["copy_us"] / 1e6, f"int{row['bits']} {row['shape']}"
        lines.append(f"| {name} | {row['bytes'] / 1e6:.0f} | {rate:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, of a result file or of what is timed now; returns 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m bench.dequantise", description=__doc__)
    parser.add_argument("--shapes", default="all", help=f"KxN, 'all' or some of {', '.join(SHAPES)}")
    parser.add_argument("--bits", default="4,8")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES))
    parser.add_argument("--zeros", default="none", choices=("none", "integer", "offset"))
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--read", type=Path, help="print the table of this JSON file and time nothing")
    options = parser.parse_args(argv)
    if options.read:
        print(markdown(json.loads(options.read.read_text(encoding="utf-8"))["rows"]))
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    schemes = [
        Scheme(int(bits), options.group_size, options.dtype, options.zeros)
        for bits in options.bits.split(",")
    ]
    arch, backend = device_props(torch.cuda.current_device()).arch, CudaBackend()
    sources = [copy_source(t) for t in THREADS]
    kinds = DequantConfig(), DequantConfig(bulk=True), DequantConfig(transposed=True)
    sources += [kind.source(s) for s in schemes for kind in kinds]
    compile_many([(source, arch) for source in sources])
    rows = [measure(shape, s, backend) for s in schemes for shape in parse_shapes(options.shapes)]
    print(markdown(rows))
    if options.out:
        document = {
            "device": describe_device(torch.cuda.current_device()),
            "versions": versions(),
            "rows": rows,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
