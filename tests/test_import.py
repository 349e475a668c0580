"""``import swordfish`` is light, and nothing it offers is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import swordfish

HEAVY = ("cuda", "cutlass", "tensor_layouts", "safetensors", "numpy.testing", "typer", "rich", "platformdirs")


def run(code: str) -> Any:
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


def test_import_costs_little_beyond_torch() -> None:
    """Processor time, which other processes hardly change; three tries."""
    code = """
import json, time, torch
start = time.process_time()
import swordfish
print(json.dumps(time.process_time() - start))
"""
    assert any(run(code) < 0.2 for _ in range(3))


def test_import_brings_no_compiler_driver_or_layout_library() -> None:
    code = """
import json, sys, torch
before = set(sys.modules)
import swordfish
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = run(code)
    assert "swordfish.scheme" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_the_reference_product_needs_no_compiler() -> None:
    """A machine without CUDA wheels can pack, multiply on the CPU and save."""
    code = """
import json, sys
for name in ("cuda", "cutlass"):
    sys.modules[name] = None  # any import of it fails
import torch, swordfish as sf
codes = torch.full((64, 8), 9, dtype=torch.uint8)
w = sf.pack(codes, torch.ones(1, 8), bits=4, group_size=-1, dtype=torch.float16)
print(json.dumps(sf.Linear(w)(torch.ones(64).half()).tolist()))
"""
    assert run(code) == [64.0] * 8


def test_every_public_name_is_there() -> None:
    for name in swordfish.__all__:
        assert getattr(swordfish, name) is not None
    assert set(swordfish.__all__) <= set(dir(swordfish))
    assert set(swordfish._LAZY) <= set(swordfish.__all__)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'swordfish' has no attribute 'multiply'"):
        swordfish.multiply  # noqa: B018
