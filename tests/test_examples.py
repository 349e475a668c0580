"""The examples, as a user runs them, on the CPU."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "tensor_parallel_mlp.py"


def run_parallel(*arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, str(SCRIPT), "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--act-order"]])
def test_tensor_parallel_mlp(options: list[str]) -> None:
    """640 rows over 2 ranks cut a group of 128 in the middle; the example raises if the results differ."""
    done = run_parallel("--hidden", "256", "--intermediate", "640", "--tokens", "16,100", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "K=320, N=256, int4, group_size=64" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["16 tokens", "100 tokens"]


@pytest.mark.slow
def test_a_size_that_cannot_be_cut_is_named() -> None:
    done = run_parallel("--hidden", "256", "--intermediate", "576", "--tokens", "16")
    assert done.returncode != 0
    assert "world=2 is not allowed: expected one of [1, 3, 9], which cut N=576" in done.stderr


def test_the_comparison_notices_a_missing_shard() -> None:
    compare = runpy.run_path(str(SCRIPT))["compare"]
    g = torch.Generator().manual_seed(0)
    parts = torch.randn(2, 16, 64, generator=g, dtype=torch.float64)
    whole, rounded = parts.sum(0).bfloat16(), parts.bfloat16().double()
    assert 0 < compare(rounded.sum(0).bfloat16(), rounded.abs().sum(0), whole) <= 1
    with pytest.raises(RuntimeError, match="of what rounding explains"):
        compare(rounded[0].bfloat16(), rounded[0].abs(), whole)
