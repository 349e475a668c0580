"""What the prefill tests share: weights and activations, runs on the emulator, checks of compiled code."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

import swordfish as sf
from swordfish.emulator import Report
from swordfish.emulator import run as emulate
from swordfish.packed import PackedWeight
from swordfish.prefill.config import PrefillConfig
from swordfish.prefill.count import count_transform, disassemble
from swordfish.prefill.launch import Grid, arguments, source
from swordfish.prefill.run import launch_prefill
from swordfish.reference import exact_columns
from swordfish.runtime import DeviceProps, get_artifact
from swordfish.runtime.artifact import Artifact
from swordfish.runtime.launch import _for_emulator
from swordfish.scheme import Scheme
from tests.backends import quantised

BASE = PrefillConfig(Scheme(4, 128, "bfloat16"))
POLICIES = ("mixed", "late", "eager", "heavy")
WARP_POLICIES = ("random", "greedy", "round_robin")
REGISTERS = 65536  # of an SM
UNIT = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}  # half a unit in the last place of a number just above 1


def config_of(w: PackedWeight, **tile: object) -> PrefillConfig:
    """A tile for a weight."""
    return PrefillConfig(replace(w.scheme, act_order=False), **tile)  # type: ignore[arg-type]


def weight_for(config: PrefillConfig, k: int, n: int, *, bias: bool = True) -> PackedWeight:
    """A random weight of a configuration's scheme."""
    s = config.scheme
    scheme = {"bits": s.bits, "group_size": s.group_size, "dtype": s.torch_dtype, "zeros": s.zeros}
    return quantised(k, n, bias=bias, **scheme)  # type: ignore[arg-type]


def activations(m: int, w: PackedWeight) -> torch.Tensor:
    return torch.randn(m, w.shape[0], generator=torch.Generator().manual_seed(m)).to(w.dtype)


def schedule(seed: int) -> dict[str, Any]:
    """Options of the emulator: a policy of completion and one of warps, all twelve pairs in twelve seeds."""
    return {"seed": seed, "policy": POLICIES[seed % 4], "warp_policy": WARP_POLICIES[seed % 3]}


def run(
    x: torch.Tensor,
    w: PackedWeight,
    config: PrefillConfig,
    seed: int = 0,
    pairs: int = 2,
    arch: str = "sm_100a",
) -> torch.Tensor:
    """One run, on few CTAs so that each computes several tiles; raises on any finding."""
    out = torch.full((x.shape[0], w.shape[1]), float("nan"), dtype=w.dtype)
    with sf.emulate(arch, tcgen05_fences=True, cluster_start=True, **schedule(seed)) as emulation:
        launch_prefill(config, x, w, w.bias, out, pairs=pairs)
    for report in emulation.reports:
        report.raise_on_findings()
    return out


def assert_close(y: torch.Tensor, x: torch.Tensor, w: PackedWeight) -> None:
    """Error model: one rounding of the result, and K fp32 truncations of terms as large as their absolute
    sum. Weights are rounded before the product, unless their scales are factors of the result."""
    if config_of(w).scales_results:
        x, values = w.gather(x), exact_columns(w, 0, w.shape[1])
    else:
        values = sf.dequantize(w).double()
    reference, size = x.double() @ values, x.double().abs() @ values.abs()
    if w.bias is not None:
        reference, size = reference + w.bias.double(), size + w.bias.double().abs()
    bound = UNIT[y.dtype] * 1.001 * reference.abs() + 2.0**-20 * size
    excess = (y.double() - reference).abs() - bound
    assert (excess <= 0).all(), f"[{int(excess.argmax())}]: {float(excess.max())} beyond the bound"


def check_resources(config: PrefillConfig, artifact: Artifact, arch: str) -> None:
    """No spills, the shared memory declared and registers for the threads declared."""
    meta = artifact.metadata
    assert meta.arch == arch and meta.spill_bytes == 0 and meta.local_bytes == 0
    assert meta.dynamic_shared_bytes == config.shared_bytes and meta.max_threads == config.threads
    assert -(-meta.registers // 8) * 8 * config.threads <= REGISTERS


def check_code(config: PrefillConfig, arch: str) -> Artifact:
    """No spills, the shared memory declared, registers for the threads declared, and the right
    instructions."""
    artifact = get_artifact(source(config), arch)
    check_resources(config, artifact, arch)
    group = f"cta_group::{config.ctas}"
    operand = r"\[%r\d+\], \[%r\d+\], %rd\d+" if config.home == "tmem" else r"\[%r\d+\], %rd\d+, %rd\d+"
    wanted = [
        rf"tcgen05\.mma\.{group}\.kind::f16\S* {operand}",
        rf"tcgen05\.commit\.{group}\.",
        r"tcgen05\.st\.sync\.aligned\.16x128b\.x8"
        if config.home == "tmem"
        else r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared",
        r"st\.global" if config.partial else r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta",
    ]
    if config.rows:
        wanted.append(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans")
    if config.ctas == 2:
        wanted.append(r"cp\.async\.bulk\.tensor\.2d\.[^\s]*cta_group::2")
    for pattern in wanted:
        assert re.search(pattern, artifact.ptx), pattern
    assert ("tcgen05.st" in artifact.ptx) == (config.home == "tmem")
    return artifact


def instructions_allowed(config: PrefillConfig) -> float:
    """SASS instructions of the Transform per weight: 1.7 for int4 bf16 with one scale per stage, 2.3
    otherwise."""
    s = config.scheme
    simple = s.dtype == "bfloat16" and s.zeros == "none" and config.groups_per_stage == 1
    return 1.7 if simple or (config.scales_results and s.bits == 4) else 2.3 if s.bits == 4 else 2.5


def check_count(config: PrefillConfig, artifact: Artifact) -> None:
    """PTX counts moves and address arithmetic that the assembler removes; SASS is what counts, where it can
    be had."""
    ptx = count_transform(config, artifact)
    assert ptx.weights % (128 * config.turn // config.transform_groups) == 0 < ptx.weights
    assert ptx.per_weight <= instructions_allowed(config) + 1
    text = disassemble(artifact)
    if text is not None:
        assert count_transform(config, artifact, text).per_weight <= instructions_allowed(config)


class Problem:
    """A small product, to be run with changed PTX."""

    def __init__(self, config: PrefillConfig, m: int, n: int, k: int, pairs: int) -> None:
        w = weight_for(config, k, n, bias=False)
        self.x = torch.randn(m, k, generator=torch.Generator().manual_seed(1)).to(w.dtype)
        self.out = torch.zeros(m, n, dtype=w.dtype)
        self.artifact = get_artifact(source(config), "sm_100a")
        self.grid = Grid.of(config, m, n, k, DeviceProps.for_target("sm_100a"), pairs=pairs)
        self.launch = self.grid.launch_config(config)
        args = arguments(config, self.grid, self.x, w, None, self.out, None)
        self.args = [_for_emulator(arg) for arg in args]

    def run(self, ptx: str, seed: int = 0, **options: Any) -> Report:
        self.out.fill_(float("nan"))
        entry = self.artifact.metadata.entry
        return emulate(ptx, entry, self.args, self.launch, arch="sm_100a", seed=seed, **options)
