"""Time configurations of the expert kernels, gate_up and down each on its own.

python -m bench.sweep_moe --models qwen3-30b-a3b --m 1,64 --out sweep.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.moe_data import MODELS, MoeShape
from bench.moe_layers import SILU, ColdLayers
from bench.shapes import parse_ints
from swordfish.decode import RingConfig, WideConfig
from swordfish.errors import ArgumentError
from swordfish.experts.choose import ExpertConfig, LayerShape, plan_experts
from swordfish.experts.kernels import ExpertRing, ExpertWide, Product
from swordfish.runtime.device import DeviceProps, device_props
from swordfish.runtime.registry import compile_many, get_artifact
from swordfish.scheme import Scheme
from swordfish.tune.timing import CudaBackend, medians

__all__ = ["candidates", "main"]

GRAPH_US = 1500.0
ROUNDS = 5


def candidates(
    model: MoeShape, scheme: Scheme, m: int, which: str, props: DeviceProps
) -> Iterator[ExpertConfig]:
    """Configurations worth timing for ``m`` tokens."""
    k = model.hidden if which == "gate_up" else model.intermediate
    n = 2 * model.intermediate if which == "gate_up" else model.hidden
    mean = m * model.top_k / model.experts
    wgmma = props.arch == "sm_90a"
    if mean < 12:
        block_rows = [1] if m == 1 else [r for r in (2, 4, 8, 16) if mean <= r <= max(4, 6 * mean + 4)]
        for r, cols, unit, warps, slots, split, per_sm in itertools.product(
            block_rows, (1, 2), (1, 2, 4), (4, 6, 8, 12, 16), (2, 3), (1, 2), (1, 2, 3, 4)
        ):
            units = -(-k // (64 * unit))
            if units < warps * split or (cols == 2 and r < 8) or warps * per_sm not in (12, 16, 18, 24):
                continue
            if unit == (1 if r < 8 else 4) or (split > 1 and model.experts > 16 and m > 1):
                continue
            for clusters in (0, per_sm * props.sm_count // split):
                try:
                    ring = RingConfig(r, cols, unit, warps, slots, split, min_ctas=per_sm)
                    columns = -(-n // (64 * cols))
                    blocks = min(model.experts, m * model.top_k)
                    items = 1 if not clusters else min(64, max(2, -(-2 * blocks * columns // clusters)))
                    narrow = ExpertRing(ring, clusters, items)
                    narrow.check(scheme, k, props)
                except ArgumentError:
                    continue
                if narrow.shared_bytes(scheme, k) <= props.smem_per_sm // per_sm - props.smem_reserved:
                    yield narrow
    if mean > 3 and wgmma:
        tokens = [t for t in (16, 24, 32, 48, 64, 80, 96, 128) if 0.9 * min(mean, 100) <= t <= 2 * mean + 16]
        for t, (tiles, groups), stage_k, slots, ctas, span in itertools.product(
            tokens, ((2, 1), (2, 2), (4, 1)), (128, 256), (2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 4)
        ):
            in_place = tiles * t > 160
            try:
                wide = WideConfig(
                    t, tiles, groups, stage_k, slots, min_ctas=ctas, scale_rows=stage_k // scheme.group_size,
                    in_place=in_place, ctas=ctas * props.sm_count, span=span,
                )  # fmt: skip
                config = ExpertWide(wide)
                config.check(scheme, k, props)
            except ArgumentError:
                continue
            registers = tiles * t // (2 if in_place else 1) + 72
            if config.shared_bytes(scheme) > props.smem_per_sm // ctas - props.smem_reserved:
                continue
            if registers <= wide.registers:
                yield config


def product(model: MoeShape, scheme: Scheme, m: int, which: str, config: ExpertConfig) -> Product:
    """What a configuration compiles."""
    k, n = model.hidden, 2 * model.intermediate
    if which == "gate_up":
        return Product(scheme, model.experts, k, n, False, SILU, False, False, False, False, m == 1)
    return Product(scheme, model.experts, n // 2, k, False, None, True, True, True, False, m == 1)


def sample(
    model: MoeShape, scheme: Scheme, m: int, which: str, props: DeviceProps, most: int, seed: int
) -> list[ExpertConfig]:
    """The configuration of the plan, then at most this many of the candidates."""
    h, i = model.hidden, model.intermediate
    shape = LayerShape(model.experts, model.experts, h, 2 * i, i, h, scheme, scheme)
    plan = plan_experts(m, model.top_k, shape, props)
    default = plan.gate_up if which == "gate_up" else plan.down
    assert default is not None
    found = [config for config in candidates(model, scheme, m, which, props) if config != default]
    g = torch.Generator().manual_seed(seed)
    return [default, *(found[i] for i in sorted(torch.randperm(len(found), generator=g)[:most].tolist()))]


def sweep(bench: ColdLayers, which: str, picked: Sequence[ExpertConfig], log: list[dict[str, Any]]) -> None:
    """Times the configurations and prints the best."""
    model, start = bench.model, time.perf_counter()
    rows: list[dict[str, Any]] = []
    share = (2 if which == "gate_up" else 1) / 3
    flops = 6 * bench.m * model.top_k * model.hidden * model.intermediate
    guess = 3 + share * (model.active_bytes(bench.routes[0].active) / 3e6 + flops / 5e8)
    for config in picked:
        source = config.source(product(model, bench.scheme, bench.m, which, config))
        if get_artifact(source, bench.props.arch).metadata.spill_bytes:
            continue
        wrong = bench.error(which, config)
        us = None
        if not wrong:
            us = medians(CudaBackend(), [bench.graph(which, config, guess)], ROUNDS)[0]
        rows.append({"model": model.name, "m": bench.m, "which": which, "us": us, "error": wrong,
                     "config": str(config), "fields": asdict(config)})  # fmt: skip
    log += rows
    wrong_rows = [row for row in rows if row["error"]]
    for row in wrong_rows[:2]:
        print(f"WRONG {row['config']}: {row['error']}")
    good = sorted((row for row in rows if row["us"] is not None), key=lambda row: row["us"])
    seconds = time.perf_counter() - start
    print(f"{model.name} M={bench.m} {which}: {len(good)} timed, {len(wrong_rows)} wrong, {seconds:.1f} s")
    for row in (rows[0], *good[:3]):
        print(f"   {row['us'] or 0:8.2f}  {row['config']}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sweep_moe", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--m", default="1,4,16,64,256,1024")
    parser.add_argument("--most", type=int, default=40, help="configurations of a problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    scheme = Scheme(4, 128, "bfloat16")
    log: list[dict[str, Any]] = []
    models, ms = [MODELS[name] for name in options.models.split(",")], parse_ints(options.m)
    props = device_props(torch.cuda.current_device())
    picked = {
        (model, m, which): sample(model, scheme, m, which, props, options.most, options.seed)
        for model in models
        for m in ms
        for which in ("gate_up", "down")
    }
    start = time.perf_counter()
    sources = [
        config.source(product(model, scheme, m, which, config))
        for (model, m, which), configs in picked.items()
        for config in configs
    ]
    compile_many([(source, props.arch) for source in sources])
    print(f"{len(sources)} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    for model in models:
        bench = ColdLayers.make(model, scheme)
        for m in ms:
            bench.set_tokens(m)
            for which in ("gate_up", "down"):
                sweep(bench, which, picked[model, m, which], log)
            if options.out:
                options.out.write_text(json.dumps(log, default=str))
        del bench
    return 1 if any(row["error"] for row in log) else 0


if __name__ == "__main__":
    sys.exit(main())
