"""Time many configurations of a decode kernel on one GPU and keep the best per shape and M.

    python -m bench.sweep_decode --shapes 8b.o,8b.qkv --m 1,8,16 --out sweep.json [--seconds 300]

Kernels are compiled by a process pool first. Each shape then runs in a child process that a watchdog kills when a configuration makes no
progress, so a hang costs seconds, not the run. A configuration is checked against the fp64 product, per column, before it
is timed; timing replays a CUDA graph over rotating cold weights (`bench.harness` has the protocol) with programmatic dependent
launch, and reports the median.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing as mp
import queue
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from bench.data import check
from bench.harness import CudaBackend, launches_per_graph, rotation_count
from bench.shapes import SHAPES

ROW_BUCKETS = (1, 2, 4, 8, 16)


def ring_candidates(scheme: Any, m: int, k: int, n: int, props: Any) -> list[Any]:
    """RingConfigs worth timing for one shape: those that fit, reach every SM and keep enough bytes in flight."""
    from swordfish.decode.ring import RingConfig
    from swordfish.errors import ArgumentError

    rows = next(r for r in ROW_BUCKETS if r >= min(m, 16))
    blocks, columns = -(-k // 64), -(-n // 64)
    found: dict[Any, None] = {}
    for cols, unit, warps, slots, split in itertools.product(
        (1, 2), (1, 2, 4), (2, 3, 4, 6, 7, 8, 10, 12, 14, 16), (2, 3, 4, 6), range(1, 9)
    ):
        unit_bytes = cols * unit * scheme.bits * 512
        tiles = -(-columns // cols)
        if -(-blocks // unit) < split * warps or not 2048 <= unit_bytes <= 16384:
            continue
        try:
            config = RingConfig(rows, cols, unit, warps, slots, split)
            config.check(scheme, k, props)
        except ArgumentError:
            continue
        resident = min(
            props.smem_per_sm // (config.shared_bytes(scheme, k) + props.smem_reserved), max(1, 20 // warps)
        )
        config = replace(config, min_ctas=min(8, resident))
        grids = [0]
        if tiles * split > props.sm_count * resident:
            if split > 1:
                continue
            grids = [-(-tiles // -(-tiles // (props.sm_count * r))) for r in range(1, resident + 1)] + [0]
        for grid in grids:
            ctas = min(grid or tiles * split, props.sm_count * resident)
            if ctas * warps * slots * unit_bytes >= props.sm_count * 40 * 1024:
                found[replace(config, ctas=grid)] = None
    return list(found)


def _compile(item: tuple[Any, Any, int, int]) -> str | None:
    from swordfish.runtime import get_artifact

    config, scheme, k, n = item
    try:
        artifact = get_artifact(config.source(scheme, k, n, bias=False), "sm_90a")
    except Exception as error:
        return f"{config}: {error}"[:300]
    return None if not artifact.metadata.spill_bytes else f"{config}: spills {artifact.metadata.spill_bytes}"


class Operands:
    """Random packed weights, enough copies to find each one cold, and the exact product with the first."""

    def __init__(self, scheme: Any, m: int, k: int, n: int) -> None:
        from swordfish.layouts import unpack_words
        from swordfish.layouts.packing import packed_shape

        torch.manual_seed(0)
        dtype, groups, pitch = scheme.torch_dtype, scheme.groups(k), -(-n // 64) * 64
        shape = packed_shape(k, n, scheme.bits)
        self.scheme, self.dtype = scheme, scheme.dtype
        bytes_each = k * n * scheme.bits // 8 + groups * pitch * 2 * (1 if scheme.zeros == "none" else 2)
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.count = rotation_count(bytes_each, l2)
        self.repeats = launches_per_graph(self.count, 2 + bytes_each / 3.5e6) // self.count
        low, high = -(2**31), 2**31
        self.words = [
            torch.randint(low, high, shape, dtype=torch.int32, device="cuda") for _ in range(self.count)
        ]
        size = 3.5 / (2**scheme.bits * k**0.5)
        self.scales = [
            ((0.75 + 0.5 * torch.rand(groups, pitch, device="cuda")) * size).to(dtype)
            for _ in range(self.count)
        ]
        half = 1 << (scheme.bits - 1)
        self.zeros = [
            None
            if scheme.zeros == "none"
            else torch.randint(half - 2, half + 3, (groups, pitch), device="cuda").to(dtype)
            for _ in range(self.count)
        ]
        self.x = torch.randn(m, k, device="cuda").to(dtype)
        self.out = torch.empty(m, n, device="cuda", dtype=dtype)
        codes = unpack_words(self.words[0], scheme.bits, (k, n))
        rows = torch.arange(k, device="cuda") // (k if scheme.group_size == -1 else scheme.group_size)
        self.exact = torch.empty(m, n, device="cuda", dtype=torch.float64)
        for at in range(0, n, 4096):
            part = slice(at, min(n, at + 4096))
            zero: Any = half if self.zeros[0] is None else self.zeros[0][:, part].double()[rows]
            self.exact[:, part] = self.x.double() @ (
                (codes[:, part].double() - zero) * self.scales[0][:, part].double()[rows]
            )

    def error(self, call: Any) -> tuple[str | None, float]:
        self.out.fill_(float("nan"))
        call(0)
        torch.cuda.synchronize()
        found = check(self.out, self.exact, self.dtype)
        first = self.out.clone()
        call(0)
        if not torch.equal(first, self.out):
            return "differs between two runs", found.rounding
        return (None if found.ok else found.message), found.rounding

    def time(self, call: Any) -> float:
        """Median microseconds of a launch over replays of a graph that walks over all copies."""
        backend = CudaBackend()
        graph, _ = backend.capture([lambda i=i: call(i) for i in range(self.count)], self.repeats)
        samples = []
        for _ in range(6):
            start = backend.mark()
            backend.replay(graph)
            samples.append((start, backend.mark()))
        torch.cuda.synchronize()
        return sorted(backend.elapsed_us(*s) for s in samples[1:])[2] / (self.count * self.repeats)


def _child(job: dict[str, Any], results: Any, start: int) -> None:
    from swordfish.runtime import get_kernel

    scheme, m, k, n, configs = job["scheme"], job["m"], job["k"], job["n"], job["configs"]
    problem = Operands(scheme, m, k, n)
    for index in range(start, len(configs)):
        config = configs[index]
        results.put(("start", index, None))
        try:
            kernel = get_kernel(config.source(scheme, k, n, bias=False), "sm_90a")
            launch = kernel.prepare(config.launch_config(scheme, m, k, n))

            def call(i: int, launch: Any = launch, config: Any = config) -> torch.Tensor:
                launch(
                    config.arguments(
                        problem.words[i],
                        problem.scales[i],
                        problem.zeros[i],
                        problem.x,
                        None,
                        None,
                        problem.out,
                    )
                )
                return problem.out

            error, rounding = problem.error(call)
            if error is not None:
                results.put(("done", index, {"error": error}))
                continue
            results.put(("done", index, {"us": problem.time(call), "rounding": rounding}))
        except Exception as failure:
            results.put(("done", index, {"error": repr(failure)[:200]}))
            if "illegal" in repr(failure) or "unspecified" in repr(failure):
                return  # the context is lost: the parent starts a new child
    results.put(("end", len(configs), None))


def sweep(job: dict[str, Any], patience: float, deadline: float) -> list[dict[str, Any]]:
    """Run the configurations of one shape in children; a child without progress for `patience` seconds is killed."""
    context = mp.get_context("spawn")
    rows: list[dict[str, Any]] = []
    start = 0
    while start < len(job["configs"]) and time.time() < deadline:
        results = context.Queue()
        child = context.Process(target=_child, args=(job, results, start))
        child.start()
        current, wait = start, 40.0
        while True:
            try:
                kind, index, value = results.get(timeout=wait)
            except queue.Empty:
                rows.append({"config": str(job["configs"][current]), "error": "hang"})
                child.kill()
                start = current + 1
                break
            wait = patience
            if kind == "start":
                current = index
            elif kind == "done":
                rows.append({"config": str(job["configs"][index]), **value})
                start = index + 1
            else:
                start = index
                break
            if time.time() > deadline:
                child.kill()
                break
            if not child.is_alive() and results.empty():
                start = max(start, current + 1)
                break
        child.join(5)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--m", default="1,8,16")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--zeros", default="none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--most", type=int, default=60, help="configurations per shape and M")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--top", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    from swordfish.decode import choose
    from swordfish.runtime.device import DeviceProps
    from swordfish.scheme import Scheme

    deadline = time.time() + args.seconds
    scheme = Scheme(args.bits, args.group, args.dtype, args.zeros)
    props = DeviceProps.for_target("sm_90a")
    jobs = []
    for name in args.shapes.split(","):
        k, n = SHAPES[name].k, SHAPES[name].n
        for m in map(int, args.m.split(",")):
            configs = ring_candidates(scheme, m, k, n, props)
            picked = (
                configs if len(configs) <= args.most else random.Random(args.seed).sample(configs, args.most)
            )
            picked = list(dict.fromkeys([choose(m, n, k, scheme, props).config, *picked]))
            jobs.append(
                {
                    "name": name,
                    "scheme": scheme,
                    "m": m,
                    "k": k,
                    "n": n,
                    "configs": picked,
                    "of": len(configs),
                }
            )
    began = time.time()
    items = {
        (c.source(scheme, j["k"], j["n"], bias=False)): (c, scheme, j["k"], j["n"])
        for j in jobs
        for c in j["configs"]
    }
    with ProcessPoolExecutor(args.jobs, mp_context=mp.get_context("spawn")) as pool:
        problems = [p for p in pool.map(_compile, list(items.values()), chunksize=4) if p]
    print(
        f"compiled {len(items)} kernels in {time.time() - began:.0f} s, {len(problems)} with problems",
        flush=True,
    )
    for text in problems[:5]:
        print("  ", text)
    table = []
    for job in jobs:
        if time.time() > deadline:
            print("time is up")
            break
        rows = sweep(job, 8.0, deadline)
        good = sorted((r for r in rows if "us" in r), key=lambda r: r["us"])
        bad = [r for r in rows if "us" not in r]
        table.append({"shape": job["name"], "m": job["m"], "k": job["k"], "n": job["n"], "rows": rows})
        print(
            f"{job['name']:12s} M={job['m']:<3d} {len(good)} of {job['of']} timed, {len(bad)} bad", flush=True
        )
        for r in good[: args.top]:
            print(f"    {r['us']:7.2f} us  x{r['rounding']:.2f}  {r['config']}")
        for r in bad[:3]:
            print(f"    BAD {r['error']}  {r['config']}")
        with open(args.out, "w") as file:
            json.dump(table, file)
        chosen = next((r for r in rows if r["config"] == str(job["configs"][0])), {})
        print(f"    {chosen.get('us', float('nan')):7.2f} us  is the default  {job['configs'][0]}")
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
