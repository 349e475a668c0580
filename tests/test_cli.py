"""The command line: what each subcommand does, prints and returns."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swordfish.cli import demo as demo_module
from swordfish.cli import doctor as doctor_module
from swordfish.cli.app import run
from swordfish.cli.compile import kernel_requests, parse_archs
from swordfish.cli.doctor import Finding, examine
from swordfish.cli.weights import (
    Weight,
    checkpoint_weights,
    shape_experts,
    shape_weights,
)
from swordfish.dispatch import plan
from swordfish.errors import ArgumentError, CompileError, UnsupportedDeviceError
from swordfish.experts import ACTIVATIONS, plan_experts
from swordfish.experts.layer import layer_sources
from swordfish.experts.operators import layer_shape
from swordfish.runtime import CuteSource, DeviceProps, KernelSource, default_cache, forget_kernels
from swordfish.scheme import Scheme

SHIPPED = Path(demo_module.__file__).parents[1] / "data" / "demo"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; and the width of a file, whatever the terminal."""
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWORDFISH_EMULATE", raising=False)
    forget_kernels()
    yield tmp_path / "cache"
    forget_kernels()


@pytest.fixture
def tiny_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels a weight that compile in milliseconds, in place of the real ones."""

    def sources(scheme: Scheme, k: int, n: int, props: DeviceProps, *, bias: bool) -> list[KernelSource]:
        head = f"// int{scheme.bits} g{scheme.group_size} {scheme.dtype} {scheme.zeros} {bias}\n"
        kernel = 'extern "C" __global__ void tiny(int *out) {{ out[threadIdx.x] = {} + {} * {}; }}'
        return [KernelSource(head + kernel.format(rows, k, n), "tiny") for rows in (1, 8)]

    monkeypatch.setattr("swordfish.dispatch.sources_for", sources)


# --- arguments


def test_help_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("demo", "compile", "cache", "doctor"))


@pytest.mark.parametrize("arguments", [["swim"], ["compile", "--workers", "0"], ["demo", "--rows", "none"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_errors_are_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", "--shape", "4096"]) == 1
    assert capsys.readouterr().err == (
        "swordfish: --shape='4096' is not allowed: expected KxN, such as 4096x14336\n"
    )
    assert run(["compile", "--arch", "sm_120a", "--shape", "64x64"]) == 1
    assert "'sm_120a' is not supported" in capsys.readouterr().err
    assert run(["compile"]) == 1
    assert "at least one checkpoint or shape" in capsys.readouterr().err


def test_the_command_starts_without_heavy_imports() -> None:
    """Help must not wait for the compilers, cuda.core or the kernels."""
    code = (
        "import sys; from swordfish.cli.app import run; assert run(['compile', '--help']) == 0; "
        "heavy = {'cuda.core', 'cutlass', 'tensor_layouts', 'swordfish.decode'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# --- compile


def test_shapes_and_architectures_are_parsed() -> None:
    assert [props.arch for props in parse_archs(" sm_90a, sm_110a,sm_90a,")] == ["sm_90a", "sm_110a"]
    with pytest.raises(UnsupportedDeviceError):
        parse_archs("sm_90a,sm_90")
    with pytest.raises(ArgumentError, match="--arch"):
        parse_archs(" , ")
    scheme = Scheme(4, 128, "bfloat16")
    assert shape_weights(["256x64", "64X8"], 4, 128, "none", None, False) == [
        Weight(scheme, 256, 64, False),
        Weight(scheme, 64, 8, False),
    ]
    assert [w.bias for w in shape_weights(["256x64"], 8, -1, "integer", "float16", True)] == [False, True]
    assert shape_weights(["256x64"], 4, 128, "none", None, False, True)[0].scheme.act_order
    for text in ("0x64", "axb", "64x64x64", "-64x64"):
        with pytest.raises(ArgumentError, match="--shape"):
            shape_weights([text], 4, 128, "none", None, False)
    with pytest.raises(ArgumentError, match="group_size"):
        shape_weights(["64x64"], 4, 48, "none", None, False)


def test_a_checkpoint_gives_its_distinct_weights() -> None:
    (weight,) = checkpoint_weights(SHIPPED, None)
    assert (weight.k, weight.n, weight.bias) == (1536, 576, False)
    assert weight.scheme == Scheme(4, 64, "bfloat16", "none", act_order=True)
    (half,) = checkpoint_weights(SHIPPED, "float16")
    assert half.scheme.dtype == "float16"
    with pytest.raises(ArgumentError, match="--dtype=float32"):
        checkpoint_weights(SHIPPED, "float32")
    with pytest.raises(ArgumentError, match="folder"):
        checkpoint_weights(SHIPPED / "nothing", None)


def test_equal_kernels_are_requested_once(tiny_kernels: None) -> None:
    weights = shape_weights(["256x64", "256x64", "64x64"], 4, 64, "none", None, False)
    requests = kernel_requests(weights, parse_archs("sm_90a,sm_100a"))
    assert len(requests) == 2 * 2 * 2  # two shapes, two kernels, two architectures
    assert {arch for _, arch in requests} == {"sm_90a", "sm_100a"}


def test_compile_fills_the_cache_for_every_architecture(
    tiny_kernels: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compile", "--arch", "sm_90a,sm_110a", "--checkpoint", str(SHIPPED), "--shape", "256x64"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert default_cache().info().entries == 8 and "8 kernels in" in shown
    rows = [line for line in shown.splitlines() if line.strip().startswith("sm_")]
    assert len(rows) == 4 and sum("1536 x 576" in row for row in rows) == 2
    assert "int4 g64 bf16" in shown and "int4 g128 bf16" in shown
    forget_kernels()
    monkeypatch.setattr(KernelSource, "compile", lambda *_: pytest.fail("all of it is in the cache"))
    assert run(arguments) == 0


def test_a_kernel_that_does_not_compile_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = KernelSource('extern "C" __global__ void tiny() { oops; }', "tiny")
    monkeypatch.setattr("swordfish.dispatch.sources_for", lambda *_, **__: [broken])
    assert run(["compile", "--shape", "64x64", "--arch", "sm_90a"]) == 1
    assert "kernel tiny does not compile for sm_90a" in capsys.readouterr().err


def test_the_decode_kernels_compile_ahead_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The real ones, of one small weight, with the metadata that the table shows."""
    assert (
        run(["compile", "--shape", "256x64", "--arch", "sm_100a", "--bits", "8", "--group-size", "-1"]) == 0
    )
    shown = capsys.readouterr().out
    assert "int8 channelwise bf16" in shown and default_cache().info().entries > 0


def test_every_path_of_a_weight_is_built_with_no_gpu() -> None:
    """What any number of rows may launch on Blackwell: decode, prefill with its reduction, dense."""
    weights = shape_weights(["8192x1024"], 4, 128, "none", None, False)
    props = parse_archs("sm_100a")[0]
    built = {source for source, _ in kernel_requests(weights, [props])}
    paths = set()
    for m in (*range(1, 300, 7), *range(300, 9000, 333)):
        chosen = plan(m, 1024, 8192, weights[0].scheme, props)
        paths.add(chosen.path)
        assert built.issuperset(chosen.sources(weights[0].scheme, 8192, 1024)), m
    assert paths == {"decode", "prefill", "dense"}
    kinds = {s.module if isinstance(s, CuteSource) else s.entry for s in built}
    assert kinds >= {"swordfish.prefill.collective.kernel", "prefill_reduce", "gather_tokens"}


def test_kernels_of_an_expert_layer_are_built_with_no_gpu() -> None:
    """Whatever a layer launches for any number of tokens is among what is built ahead."""
    (layer,) = shape_experts(["8x512x256"], 4, 128, "none", None, False, top_k=2, activation="silu", ranks=1)
    assert layer.size == "8 of 512 x 512" and str(layer) == "int4 g128 bf16, silu"
    for props in parse_archs("sm_90a,sm_100a"):
        built = {source for source, _ in kernel_requests([layer], [props])}
        shape = layer_shape(layer.w13, layer.w2, None)
        for tokens in (1, 2, 3, 17, 100, 333, 1000, 3001, 8191):
            chosen = plan_experts(tokens, 2, shape, props)
            for wide_ids in (False, True):
                needed = layer_sources(chosen, layer.w13, layer.w2, ACTIVATIONS["silu"], wide_ids=wide_ids)
                assert built.issuperset(needed), (props.arch, tokens)


def test_expert_layers_given_by_shape() -> None:
    made = shape_experts(
        ["60x128x64"], 8, -1, "integer", "float16", True, top_k=4, activation="gelu", ranks=8
    )
    assert [layer.w13.bias_rows is not None for layer in made] == [False, True]
    assert {(layer.w13.experts, layer.global_experts) for layer in made} == {(8, 60)}
    assert str(made[1]) == "int8 channelwise f16, integer zeros, bias, gelu"
    for shapes, top_k, message in ((["8x64"], 2, "--experts"), (["8x64x64"], None, "--top-k")):
        with pytest.raises(ArgumentError, match=message):
            shape_experts(shapes, 4, 32, "none", None, False, top_k=top_k, activation="silu", ranks=1)


# --- cache


def test_cache_info_and_clear(
    tiny_kernels: None, capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    run(["compile", "--shape", "64x64", "--arch", "sm_90a"])
    capsys.readouterr()
    assert run(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert str(directory) in shown and "entries    2" in shown and "SWORDFISH_CACHE_DIR" in shown
    assert run(["cache", "clear"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert default_cache().info().entries == 0


def test_cache_info_of_an_unusable_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", "/proc/swordfish")
    assert run(["cache", "info"]) == 1
    assert "/proc cannot be written" in capsys.readouterr().out


# --- doctor


def findings(check: Any) -> list[Finding]:
    return list(check())


def test_doctor_prints_and_returns_by_the_worst(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("a", "ok", "fine"), Finding("b", "note", "limited", "mend [this]")]
    monkeypatch.setattr(doctor_module, "examine", lambda: iter(found))
    assert run(["doctor"]) == 0
    assert "-> mend [this]" in capsys.readouterr().out
    found.append(Finding("c", "problem", "broken"))
    assert run(["doctor"]) == 1
    assert "1 problem found" in capsys.readouterr().out


def test_doctor_finds_this_installation_in_order() -> None:
    """Everything the tests need is installed, so whatever is wrong here is the doctor."""
    found = {finding.subject: finding for finding in examine()}
    assert all(finding.status != "problem" for finding in found.values()), found
    assert "sm_110a" in found["NVRTC"].detail and "CUDA 13" in found["CuTe DSL"].detail
    assert set(found) >= {"swordfish", "torch", "cuda-core", "driver", "cache", "emulator"}


def test_doctor_tells_cuda_12_libraries_of_the_dsl(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, "4.8.1 12 9\n", "")
    monkeypatch.setattr(doctor_module.subprocess, "run", lambda *_, **__: answer)
    (finding,) = findings(doctor_module._cute)
    assert finding.status == "problem" and "sm_101a" in finding.detail
    assert "--force-reinstall --no-deps nvidia-cutlass-dsl-libs-cu13" in finding.remedy
    failed = subprocess.CompletedProcess(
        [], 1, "", "Traceback\nModuleNotFoundError: No module named 'cutlass'"
    )
    monkeypatch.setattr(doctor_module.subprocess, "run", lambda *_, **__: failed)
    (finding,) = findings(doctor_module._cute)
    assert finding.status == "problem" and finding.detail.startswith("ModuleNotFoundError")


def test_doctor_judges_driver_torch_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def statuses() -> dict[str, str]:
        return {finding.subject: finding.status for finding in findings(doctor_module._gpu)}

    monkeypatch.setattr(doctor_module, "_driver_version", lambda: None)
    assert statuses() == {"driver": "note"}
    monkeypatch.setattr(doctor_module, "_driver_version", lambda: 13010)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert statuses() == {"driver": "ok", "torch": "problem"}
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert statuses() == {"driver": "ok", "GPU": "problem"}
    monkeypatch.setattr(doctor_module, "_driver_version", lambda: 12080)
    assert statuses()["driver"] == "problem"

    properties = types.SimpleNamespace(major=12, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a gaming card")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    (finding,) = [f for f in findings(doctor_module._gpu) if f.subject == "cuda:0"]
    assert finding.status == "problem" and "compute capability 12.0" in finding.detail


def test_doctor_reports_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise CompileError("libnvrtc cannot be loaded")

    monkeypatch.setattr("swordfish.runtime.compile.compile_source", failing)
    (finding,) = findings(doctor_module._nvrtc)
    assert (
        finding.status == "problem" and "libnvrtc" in finding.detail and "nvidia-cuda-nvrtc" in finding.remedy
    )


def test_doctor_survives_a_check_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking() -> Iterator[Finding]:
        raise KeyError("surprise")
        yield

    for name in ("_versions", "_gpu", "_nvrtc", "_cute", "_emulator"):
        monkeypatch.setattr(doctor_module, name, breaking)
    found = list(examine())
    assert [finding.status for finding in found] == ["problem"] * 4 + ["ok", "problem"]
    assert "KeyError" in found[0].detail


# --- demo


def test_the_demo_checks_its_results(
    tiny_kernels: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU, with the emulator replaced by the reference: numbers, kernels of three architectures, exit
    code."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(demo_module.native, "build", lambda: None)
    monkeypatch.setattr(
        demo_module, "mm", lambda x, w: (x.double() @ demo_module.dequantize(w).double()).to(x.dtype)
    )
    assert run(["demo", "--rows", "3"]) == 0
    shown = capsys.readouterr().out
    assert "model.layers.0.mlp.down_proj" in shown and "all results are right" in shown
    assert shown.count("error") == 2 and "emulated sm_90a" in shown
    assert all(arch in shown for arch in ("sm_90a", "sm_100a", "sm_110a"))
    assert default_cache().info().entries == 6

    monkeypatch.setattr(demo_module, "mm", lambda x, w: torch.zeros(len(x), w.shape[1], dtype=x.dtype))
    assert run(["demo"]) == 1
    assert "a result is wrong" in capsys.readouterr().out


def test_the_demo_goes_on_without_an_emulator(
    tiny_kernels: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from swordfish.emulator import NoCompilerError

    def missing() -> None:
        raise NoCompilerError("found no compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(demo_module.native, "build", missing)
    assert run(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "the emulator is not available: found no compiler" in shown and "all results are right" in shown


def test_shares_of_the_columns_are_whole_blocks() -> None:
    assert [demo_module._shards(n) for n in (576, 64, 4096, 72, 8)] == [9, 1, 64, 1, 1]
