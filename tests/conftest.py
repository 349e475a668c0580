"""Settings of the whole test run."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("SWORDFISH_TUNED", "0")  # results do not depend on what was tuned on this machine

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers are the parallelism


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are deselected where there is none; pytest's summary counts them."""
    if torch.cuda.is_available():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
