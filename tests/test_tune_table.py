"""The table of tuned configurations and its use by dispatch and the command line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import swordfish as sf
from swordfish import dispatch
from swordfish.cli import tune as command
from swordfish.cli.app import run
from swordfish.decode import RingConfig, choose
from swordfish.runtime import KNOWN_ARCHS, DeviceProps
from swordfish.scheme import Scheme
from swordfish.tune.measure import Outcome, Problem, Row
from swordfish.tune.table import ROWS, Entry, Table, row_bucket, table_path
from tests.products import assert_product, layer

HOPPER = DeviceProps.for_target("sm_90a")
INT4 = Scheme(4, 128, "bfloat16")
TUNED = RingConfig(1, 1, 1, 2, 3)
DEFAULT = choose(1, 4096, 4096, INT4, HOPPER).config
ENTRY = Entry(TUNED, 3.5, DEFAULT, 4.25)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for tables, and nothing remembered."""
    monkeypatch.setattr("swordfish.tune.table.cache_directory", lambda: tmp_path)
    monkeypatch.delenv("SWORDFISH_TUNED", raising=False)
    dispatch.forget_plans()
    yield tmp_path
    dispatch.forget_plans()


def saved(entry: Entry = ENTRY, scheme: Scheme = INT4, rows: int = 1, k: int = 4096, n: int = 4096) -> Path:
    table = Table.load(HOPPER)
    table.put(scheme, rows, k, n, entry)
    return table.save()


# --- the table


def test_round_trip() -> None:
    path = saved()
    assert path == table_path(HOPPER) and path.parent.name == "tuned"
    assert Table.load(HOPPER).find(INT4, 1, 4096, 4096) == ENTRY
    content = json.loads(path.read_text())
    [(key, plain)] = content["entries"].items()
    assert key == "k=4096 n=4096 rows=1 bits=4 group_size=128 dtype=bfloat16 zeros=none act_order=False"
    assert plain["us"] == 3.5 and plain["default_us"] == 4.25 and plain["kernel"] == "ring"
    assert plain["versions"]["swordfish"] == sf.__version__ and plain["date"][:2] == "20"
    assert content["version"] == 1 and content["device"]["sm_count"] == 132


def test_entries_are_of_one_problem_each() -> None:
    saved()
    saved(replace(ENTRY, us=3.0), rows=8)
    saved(replace(ENTRY, us=2.0), replace(INT4, zeros="integer"))
    table = Table.load(HOPPER)
    assert [
        table.find(INT4, m, 4096, 4096) and table.find(INT4, m, 4096, 4096).us for m in (1, 2, 5, 8, 9)
    ] == [
        3.5,
        None,
        3.0,
        3.0,
        None,
    ]
    assert table.find(INT4, 1, 4096, 4160) is None and table.find(INT4, 1, 4160, 4096) is None
    assert table.find(replace(INT4, act_order=True), 1, 4096, 4096) is None
    assert table.find(INT4, 10**6, 4096, 4096) is None
    table.put(INT4, 1, 4096, 4096, None)
    table.put(INT4, 1, 64, 64, None)
    table.save()
    left = Table.load(HOPPER)
    assert left.find(INT4, 1, 4096, 4096) is None and left.find(INT4, 8, 4096, 4096) is not None


def test_row_buckets() -> None:
    assert [row_bucket(m) for m in (1, 2, 3, 16, 17, 256, 257)] == [1, 2, 4, 16, 24, 256, None]
    assert list(ROWS) == sorted(set(ROWS))


def test_each_device_has_a_file_of_its_own() -> None:
    saved()
    others = [DeviceProps.for_target(arch) for arch in KNOWN_ARCHS[1:]]
    others += [replace(HOPPER, sm_count=114), replace(HOPPER, l2_bytes=50 << 20)]
    assert len({table_path(props) for props in others} | {table_path(HOPPER)}) == len(others) + 1
    assert all(not Table.load(props).entries for props in others)
    assert Table.load(replace(HOPPER, name="another name")).entries


def test_a_failed_write_leaves_the_old_file_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved()
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="no space"):
        saved(rows=2)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


DAMAGE = {
    "not JSON": ("{", "Expecting property name"),
    "not text": (b"\xff\xfe\x00", "codec"),
    "a list": ("[]", "not a file of format"),
    "another format": ('{"format": "something", "version": 1}', "not a file of format"),
    "another version": ('{"format": "swordfish.tuned", "version": 2}', "format version 2, not 1"),
    "another device": (
        '{"format": "swordfish.tuned", "version": 1, "device": {"arch": "sm_100a"}, "entries": {}}',
        "another device",
    ),
}


@pytest.mark.parametrize("kind", [*DAMAGE, "no entries", "a folder"])
def test_a_damaged_or_foreign_file_is_ignored_with_one_warning(kind: str) -> None:
    path = saved()
    if kind == "a folder":
        path.unlink()
        path.mkdir()
        message = "directory"
    elif kind == "no entries":
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "entries": 3}))
        message = "no entries"
    else:
        text, message = DAMAGE[kind]
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.warns(UserWarning, match="tuned kernels") as caught:
        for m in (1, 2, 8):
            assert (
                dispatch.plan(m, 4096, 4096, INT4, HOPPER).config
                == choose(m, 4096, 4096, INT4, HOPPER).config
            )
    assert len(caught) == 1 and message in str(caught[0].message)
    assert "swordfish tune" in str(caught[0].message)


CHANGES: dict[str, Any] = {
    "another Swordfish": {"versions": {"swordfish": "0.0.1"}},
    "no version": {"versions": None},
    "an unknown kernel": {"kernel": "wave"},
    "fields of another version": {"config": {"rows": 1}},
    "too large for the device": {"config": {**vars(TUNED), "slots": 16, "warps": 16, "unit": 4}},
    "an idle cluster": {"config": {**vars(TUNED), "split": 8, "unit": 4, "warps": 16, "slots": 2}, "k": 128},
    "gather without act-order": {"config": {**vars(TUNED), "gather": True}},
    "no time": {"us": None},
    "slower than the default": {"us": 4.5},
    "not a number": {"us": float("nan")},
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_entry_that_does_not_fit_is_ignored(what: str) -> None:
    changes = dict(CHANGES[what])
    k = changes.pop("k", 4096)
    path = saved(k=k)
    content = json.loads(path.read_text())
    [plain] = content["entries"].values()
    assert Table.load(HOPPER).find(INT4, 1, k, 4096) == ENTRY
    plain.update(changes)
    path.write_text(json.dumps(content))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Table.load(HOPPER).find(INT4, 1, k, 4096) is None
        assert not dispatch.plan(1, 4096, k, INT4, HOPPER).reason.startswith("tuned")


# --- dispatch


def test_dispatch_takes_the_tuned_configuration_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    saved()
    plan = dispatch.plan(1, 4096, 4096, INT4, HOPPER)
    assert plan.path == "decode" and plan.config == TUNED
    assert plan.reason.startswith("tuned on this device, 3.50 us against 4.25 us by rule")
    by_rule = dispatch.plan(1, 4096, 4096, INT4, HOPPER, wishes=dispatch.Overrides(tuned=False))
    assert by_rule.config == DEFAULT and "tuned" not in by_rule.reason
    for value, config in (("0", DEFAULT), ("1", TUNED), ("0", DEFAULT)):
        monkeypatch.setenv("SWORDFISH_TUNED", value)
        plan = dispatch.plan(1, 4096, 4096, INT4, HOPPER, wishes=dispatch.overrides())
        assert plan.config == config
    assert choose(1, 4096, 4096, INT4, HOPPER).config == DEFAULT


def test_the_file_is_read_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[DeviceProps] = []
    load = Table.load

    def counted(props: DeviceProps) -> Table:
        reads.append(props)
        return load(props)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "load", counted)
        for n in (4096, 4160, 4224):
            dispatch.plan(1, n, 4096, INT4, HOPPER)
    assert reads == [HOPPER]
    saved()
    assert dispatch.plan(1, 4096, 4096, INT4, HOPPER).config == DEFAULT
    dispatch.forget_plans()
    assert dispatch.plan(1, 4096, 4096, INT4, HOPPER).config == TUNED


def test_padded_rows_do_not_gather() -> None:
    scheme = replace(INT4, act_order=True)
    saved(replace(ENTRY, config=replace(TUNED, gather=True)), scheme)
    assert dispatch.plan(1, 4096, 4096, scheme, HOPPER).config.gather
    assert not dispatch.plan(1, 4096, 4096, scheme, HOPPER, padded_rows=True).reason.startswith("tuned")


def test_mm_runs_what_explain_says() -> None:
    made = layer(256, 72, dtype=torch.bfloat16)
    x = torch.randn(1, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    saved(replace(ENTRY, config=RingConfig(1, 1, 1, 2, 2)), made.weight.scheme, 1, 256, 72)
    with sf.emulate("sm_90a") as emulation:
        shown = str(sf.explain(made.weight, 1))
        assert (
            "tuned on this device, 3.50 us against 4.25 us by rule" in shown and "warps=2, slots=2" in shown
        )
        assert_product(sf.mm(x, made.weight), x, made.values)
        assert len(emulation.reports) == 1


# --- the command


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU on which the second configuration of M=1 is faster, that of M=8 is not, and M=16 fails."""
    seen: list[Any] = []

    def measured(shapes: Sequence[Sequence[Problem]], props: DeviceProps, make: Any, **options: Any) -> Any:
        seen.append((shapes, options))
        for shape in shapes:
            outcomes = [Outcome(problem) for problem in shape]
            for outcome in outcomes:
                m = outcome.problem.m
                outcome.rows = {0: Row(10.0, 1.0), 1: Row(9.0, 1.0), 2: Row(error="hangs")}
                outcome.final = {0: 10.5, 1: 9.5 if m == 1 else 10.4}
                if m == 16:
                    outcome.rows, outcome.final = {0: Row(None, 9.0, "column 3 is wrong")}, {}
            yield outcomes

    monkeypatch.setattr(command, "_device", lambda text: (0, HOPPER))
    monkeypatch.setattr(command, "measure", measured)
    return seen


def test_the_command_keeps_winners(simulated: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    saved(rows=8)
    assert run(["tune", "--shape", "4096x4096", "--m", "1,8", "--most", "5", "--seconds", "60"]) == 0
    shown = capsys.readouterr().out
    assert "M=1   2 timed of" in shown and "1.105 x the time of the best, 9.50 us" in shown
    assert "M=8   2 timed of" in shown and "default 10.50 us, stays" in shown and "hangs" in shown
    assert "1 of 2 problems" in shown and str(table_path(HOPPER)) in shown
    [[shape], options] = simulated[0]
    assert [(p.m, len(p.configs)) for p in shape] == [(1, 6), (8, 6)] and options["seconds"] == 60
    table = Table.load(HOPPER)
    found = table.find(INT4, 1, 4096, 4096)
    assert found is not None and (found.us, found.default_us) == (9.5, 10.5)
    assert table.find(INT4, 8, 4096, 4096) is None, "the default won: what was there is gone"


def test_a_dry_run_only_reports(
    simulated: list[Any], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = directory / "report.json"
    arguments = ["--shape", "4096x4096", "--shape", "8192x1024", "--m", "1,15", "--most", "3", "--bits", "8"]
    arguments += ["--dtype", "float16", "--zeros", "integer", "--group-size", "64", "--act-order"]
    assert run(["tune", *arguments, "--top", "2", "--dry-run", "--report", str(out)]) == 1
    shown = capsys.readouterr().out
    assert not table_path(HOPPER).exists() and "kept in" not in shown
    assert "9.00 us  ring(" in shown and "no result: column 3 is wrong" in shown
    told = json.loads(out.read_text())
    assert [(t["k"], t["n"], t["m"]) for t in told] == [
        (4096, 4096, 1),
        (4096, 4096, 16),
        (8192, 1024, 1),
        (8192, 1024, 16),
    ]
    assert told[0]["scheme"] == vars(Scheme(8, 64, "float16", "integer", act_order=True))
    assert told[0]["rows"][1]["us"] == 9.0 and told[0]["winner"] == told[0]["rows"][1]["config"]
    assert told[1]["rows"][0]["error"] == "column 3 is wrong" and told[1]["winner"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--checkpoint / --shape=nothing is not allowed"),
        (["--shape", "64x64", "--m", "0"], "--m='0' is not allowed: expected rows from 1 to 256"),
        (["--shape", "64x64", "--m", "1,x"], "--m='1,x' is not allowed"),
        (["--shape", "64x64", "--m", "257"], "--m='257' is not allowed"),
        (["--shape", "64x64", "--device", "cpu"], "--device='cpu' is not allowed: expected a CUDA device"),
        (["--shape", "64x64", "--device", "gpu"], "--device='gpu' is not allowed: expected a CUDA device"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"swordfish: {message}")


def test_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["tune", "--shape", "64x64"]) == 1
    assert "torch sees none" in capsys.readouterr().err
