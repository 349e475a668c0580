"""Time many configurations of the wide decode kernel on one GPU and keep the best per shape and M.

    python -m bench.tune_decode_wide --shapes 8b.o,8b.down --m 16,32,64 --most 16 --out wide.json

A process pool compiles first. One child process then checks every configuration against the fp64 product, per
column, and times it as `bench.sweep_decode` does; a child that makes no progress for a few seconds is killed
and the next one goes on behind the configuration that hung.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing as mp
import queue
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from bench.shapes import SHAPES
from bench.sweep_decode import Operands
from swordfish.decode.wide import WideConfig
from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

BUCKETS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
GPCS = (18, 18, 18, 18, 18, 16, 16, 10)
"""SMs of each GPC, inferred from the clusters of 2, 4 and 8 CTAs that ran together: 66, 30, 15."""
PATIENCE = 8.0
START = 60.0


@dataclass(frozen=True)
class Job:
    """One shape and M with the configurations to time."""

    name: str
    m: int
    k: int
    n: int
    configs: tuple[WideConfig, ...]


def registers_needed(config: WideConfig) -> int:
    """A little less than what the compiler was seen to need: sums, fragments, words and addresses."""
    sets = 1 if config.in_place else 2
    return sets * config.tiles * config.tokens // 2 + 32 + 8 * config.tiles + 22


def clusters_that_fit(split: int, ctas: int) -> int:
    """Clusters that run at the same time: each lies in one of the GPCs, which have unequal numbers of SMs."""
    return sum(sms * ctas // split for sms in GPCS)


def estimate(config: WideConfig, k: int, n: int, bits: int, sms: int) -> float:
    """Microseconds by a crude model: the slowest of DRAM, L2 and the busiest SM, and the cost of splitting.

    An SM is taken to be filled before the next one, so it works for as many CTAs as it has room for.
    """
    columns = -(-n // config.columns)
    ctas = columns * config.split
    full = max(1.0, math.ceil(ctas / (sms * config.min_ctas)) * sms * config.min_ctas / ctas)
    weights = k * n * bits / 8
    dram = weights / 4.2e6
    l2 = (weights + columns * config.tokens * k * 2) / 5.0e6
    steps = (
        config.columns / 64 * (-(-k // (config.stage_k * config.split)) * config.stage_k / 16) * ctas / sms
    )
    issue = (
        11
        + config.tokens / 16
        + (1700 / config.tiles + 350 * config.tiles) / config.stage_k / config.tiles * 0.9
    )
    cycles = max(14.0, config.tokens / 2, issue) * (1.25 if config.warpgroups * config.min_ctas < 3 else 1.0)
    busy = full * steps * cycles / 1600
    exchange = 0.0 if config.split == 1 else 0.7 + config.tokens * config.columns * config.min_ctas * 4 / 60e3
    return max(dram, l2, busy) + 0.25 * min(dram, busy) + exchange


def candidates(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, wgmma: bool) -> list[WideConfig]:
    """Configurations worth timing: for every cut of the machine its most promising splits, then variants."""
    tokens = next(b for b in BUCKETS if b >= m)
    by_cut: dict[tuple[int, ...], list[tuple[float, WideConfig]]] = {}
    cuts = itertools.product((1, 2, 4), (1, 2, 3, 4, 5), (1, 2, 3, 4), (False, True), (256, 128))
    for tiles, groups, ctas, in_place, stage_k in cuts:
        if groups * ctas not in (2, 3, 4, 5, 6) or tiles * groups > 4 + (groups == 5):
            continue
        if in_place and (tokens < 32 or scheme.zeros == "offset"):
            continue
        for split in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12):
            base = (tokens, tiles, groups, stage_k)
            grouped = scheme.group_size > 0 and stage_k % scheme.group_size == 0
            rows = stage_k // scheme.group_size if grouped else 1
            columns = -(-n // (64 * tiles * groups))
            if columns > (clusters_that_fit(split, ctas) if split > 1 else 4 * props.sm_count * ctas):
                continue
            if split > -(-k // stage_k):
                continue
            room = min(props.smem_per_cta, props.smem_per_sm // ctas - props.smem_reserved)
            for overlay, slots in itertools.product((False, True), (10, 8, 7, 6, 5, 4, 3, 2)):
                try:
                    config = WideConfig(*base, slots, split, ctas, overlay, wgmma, in_place, 1, 1, rows)
                except ArgumentError:
                    continue
                if slots * stage_k >= 384 + 128 * (not overlay) and config.shared_bytes(scheme) <= room:
                    break
            else:
                continue
            if registers_needed(config) > config.registers:
                continue
            # One set of sums costs more instructions; it is for what two sets have no registers for.
            if in_place and registers_needed(replace(config, in_place=False)) <= config.registers:
                continue
            cost = estimate(config, k, n, scheme.bits, props.sm_count)
            by_cut.setdefault((tiles, groups, ctas), []).append((cost, config))
    # The best of every cut, then the second best, ...
    ranked = [
        (rank, cost, config)
        for found in by_cut.values()
        for rank, (cost, config) in enumerate(sorted(found, key=lambda item: item[0]))
    ]
    ranked.sort(key=lambda item: item[:2])
    return [config for _, _, config in ranked]


def parse_config(text: str) -> WideConfig:
    """``tokens=64,tiles=2,split=4`` as a configuration."""
    return WideConfig(**{name: int(value) for name, value in (part.split("=") for part in text.split(","))})


def build(item: tuple[WideConfig, Scheme, int, int]) -> str | None:
    """Compile one configuration into the disk cache; a message if it spills or fails."""
    from swordfish.runtime import get_artifact

    config, scheme, k, n = item
    try:
        artifact = get_artifact(config.source(scheme, k, n, bias=False), "sm_90a")
    except Exception as error:
        return f"{config}: {error}"[:400]
    spilled = artifact.metadata.spill_bytes
    return f"{config}: spills {spilled} bytes" if spilled else None


def run_child(scheme: Scheme, jobs: list[Job], results: Any, start: int) -> None:
    """Check and time the configurations from flat index ``start`` on."""
    from swordfish.runtime import get_kernel

    at = 0
    for job in jobs:
        if at + len(job.configs) <= start:
            at += len(job.configs)
            continue
        operands = Operands(scheme, job.m, job.k, job.n)
        for config in job.configs:
            at += 1
            if at <= start:
                continue
            results.put(("start", at - 1, None))
            try:
                launch = get_kernel(config.source(scheme, job.k, job.n, bias=False), "sm_90a").prepare(
                    config.launch_config(scheme, job.m, job.k, job.n)
                )

                def call(
                    i: int, launch: Any = launch, config: WideConfig = config, o: Operands = operands
                ) -> torch.Tensor:
                    launch(config.arguments(o.words[i], o.scales[i], o.zeros[i], o.x, None, None, o.out))
                    return o.out

                error, rounding = operands.error(call)
                value = {"error": error} if error else {"us": operands.time(call), "rounding": rounding}
                results.put(("done", at - 1, value))
            except Exception as failure:
                results.put(("done", at - 1, {"error": repr(failure)[:200]}))
                if (
                    "illegal" in repr(failure)
                    or "unspecified" in repr(failure)
                    or "misaligned" in repr(failure)
                ):
                    return  # the context is lost
        del operands
    results.put(("end", at, None))


def sweep(scheme: Scheme, jobs: list[Job], deadline: float) -> dict[int, dict[str, Any]]:
    """Results by flat index; configurations that were not reached are absent."""
    context = mp.get_context("spawn")
    total = sum(len(job.configs) for job in jobs)
    found: dict[int, dict[str, Any]] = {}
    start = 0
    while start < total and time.time() < deadline:
        results = context.Queue()
        child = context.Process(target=run_child, args=(scheme, jobs, results, start), daemon=True)
        child.start()
        patience = START
        while time.time() < deadline:
            try:
                kind, index, value = results.get(timeout=patience)
            except queue.Empty:
                found[start] = {"error": "hang" if child.is_alive() else "child died"}
                start += 1
                break
            if kind == "end":
                start = total
                break
            start = index if kind == "start" else index + 1
            # Between configurations the next shape's operands may have to be made.
            patience = PATIENCE if kind == "start" else START
            if kind == "done":
                found[index] = value
                if not child.is_alive() and results.empty():
                    break
        child.kill()
        child.join(5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--m", default="16,32,48,64,96,128")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--zeros", default="none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--most", type=int, default=16, help="configurations per shape and M")
    parser.add_argument(
        "--config", action="append", default=[], help="tokens=64,tiles=2,...: time only these"
    )
    parser.add_argument("--mma", action="store_true", help="products by mma.sync")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=15)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    began = time.time()
    scheme = Scheme(args.bits, args.group, args.dtype, args.zeros)
    props = DeviceProps.for_target("sm_90a")
    explicit = [parse_config(text) for text in args.config]
    jobs = []
    for name in args.shapes.split(","):
        k, n = SHAPES[name].k, SHAPES[name].n
        for m in map(int, args.m.split(",")):
            if explicit:
                tokens = min((c.tokens for c in explicit if c.tokens >= m), default=0)
                configs = [c for c in explicit if c.tokens == tokens]
            else:
                configs = candidates(scheme, m, k, n, props, not args.mma)[: args.most]
            jobs.append(Job(name, m, k, n, tuple(configs)))
    items = list(dict.fromkeys((c, scheme, j.k, j.n) for j in jobs for c in j.configs))
    with ProcessPoolExecutor(args.jobs, mp_context=mp.get_context("spawn")) as pool:
        problems = [text for text in pool.map(build, items, chunksize=2) if text]
    print(
        f"{len(items)} kernels compiled in {time.time() - began:.0f} s, {len(problems)} with problems",
        flush=True,
    )
    for text in problems[:12]:
        print("  ", text)

    found = sweep(scheme, jobs, began + args.seconds)
    at, table = 0, []
    for job in jobs:
        rows = [{"config": str(c), **found[i]} for i, c in enumerate(job.configs, at) if i in found]
        at += len(job.configs)
        table.append({"shape": job.name, "m": job.m, "k": job.k, "n": job.n, "rows": rows})
        good = sorted((r for r in rows if "us" in r), key=lambda r: r["us"])
        bad = [r for r in rows if "us" not in r]
        print(f"{job.name:12s} M={job.m:<3d} {len(good)} timed, {len(bad)} bad, of {len(job.configs)}")
        for row in good[: args.top]:
            print(f"    {row['us']:7.2f} us  x{row['rounding']:.3f}  {row['config']}")
        for row in bad[:3]:
            print(f"    BAD {row['error']}  {row['config']}")
    with open(args.out, "w") as file:
        json.dump(table, file)
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
