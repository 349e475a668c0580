"""The benchmark of host times, with nothing launched."""

from __future__ import annotations

import pytest
import torch

from bench import host_time
from swordfish import dispatch


def test_every_way_to_call_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("CALLS", 10), ("LOOPS", 1), ("LAYERS", 2)):
        monkeypatch.setattr(host_time, name, value)
    torch.compiler.reset()  # one function is compiled eight times at most
    planned = dispatch.planned
    assert host_time.main(["--stub", "--size", "64"]) == 0
    assert dispatch.planned is planned
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len({line[1] for line in lines}) == 7 and all(float(line[2]) > 0 for line in lines)


def test_nothing_to_time_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert host_time.main([]) == 2
