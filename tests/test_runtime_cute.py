"""A CuTe DSL kernel on the common path: worker process, artifact, cache; and what happens when the worker
fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swordfish.errors import CompileError
from swordfish.runtime import (
    CuteSource,
    compile_many,
    default_cache,
    forget_kernels,
    get_artifact,
    kernel_key,
)
from swordfish.runtime.cute import _idle, keep_workers
from swordfish.runtime.cute_worker import launch_shared_bytes

KERNELS = "tests.runtime_cute_kernel"


def source(function: str = "build_scale", **config: Any) -> CuteSource:
    return CuteSource.of(KERNELS, function, {"factor": 3.0, "threads": 128, **config}, packages=(KERNELS,))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path))
    forget_kernels()
    yield tmp_path
    forget_kernels()


def test_cute_kernels_become_ordinary_artifacts(directory: Path) -> None:
    requests = [(source(), "sm_100a"), (source(threads=64), "sm_110a")]
    before = set(sys.modules)  # other tests of this process may have imported the DSL
    for artifact, (_, arch), threads in zip(
        compile_many(requests, workers=1), requests, (128, 64), strict=True
    ):
        metadata = artifact.metadata
        assert artifact.cubin.startswith(b"\x7fELF") and f".target {arch}" in artifact.ptx
        assert metadata.entry in artifact.ptx and metadata.param_sizes == (8, 8, 4)
        assert metadata.dynamic_shared_bytes == 4 * threads and metadata.max_threads == threads
        assert metadata.spill_bytes == 0 and 0 < metadata.registers < 64
        assert metadata.toolchain["nvidia-cutlass-dsl"] != "none"
    assert default_cache().info().entries == 2 and _idle == []
    assert "cutlass" not in set(sys.modules) - before, "only the worker imports the DSL"
    assert list(directory.glob("*.ptx")) == [] and list(Path.cwd().glob("*.cubin")) == []
    assert get_artifact(*requests[0]).metadata.dynamic_shared_bytes == 512


def test_a_kernel_that_does_not_build_reports_the_reason_and_the_worker_serves_on(directory: Path) -> None:
    with keep_workers():
        with pytest.raises(
            CompileError, match=r"build_nothing for sm_100a(?s:.*)cannot tile 128 threads on sm_100a"
        ):
            get_artifact(source("build_nothing"), "sm_100a")
        with pytest.raises(CompileError, match=r"process ended with code 23(?s:.*)about to stop"):
            get_artifact(source("build_crash"), "sm_100a")
    assert _idle == [] and default_cache().info().entries == 0


def test_configuration_architecture_and_source_text_are_in_the_key(tmp_path: Path, monkeypatch: Any) -> None:
    keys = {
        kernel_key(source(threads=threads), arch) for threads in (64, 128) for arch in ("sm_100a", "sm_103a")
    }
    assert len(keys) == 4
    assert kernel_key(source(), "sm_100a") == kernel_key(source(), "sm_100a")
    identities = []
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("cutekernel_a", "x = 1\n"), ("cutekernel_b", "x = 2\n"), ("cutekernel_c", "x = 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "roles.py").write_text(text)
        identities.append(CuteSource.of(f"{name}.roles", "build", {}).identity()["text"])
    assert identities[0] == identities[2] != identities[1], "the text counts, not where it lies"
    with pytest.raises(CompileError, match="'no_such_package'"):
        CuteSource.of("no_such_package.roles", "build", {}).identity()


def test_shared_memory_is_read_from_the_launch_and_from_nothing_else() -> None:
    config = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
    launch = (
        "llvm.func @other() {{\n%8 = llvm.mlir.constant(7 : i64) : i64\n"
        "llvm.store %8, %1 : i64, !llvm.ptr\n}}\n"
        "llvm.func @host() {{\n%8 = {value}\n"
        f"%9 = llvm.getelementptr %5[0, 2] : (!llvm.ptr) -> !llvm.ptr, {config}\n"
        "llvm.store %8, %9 : i64, !llvm.ptr\n}}\n"
    )
    constant = launch.format(value="llvm.mlir.constant(116004 : i64) : i64")
    assert launch_shared_bytes(constant) == 116004
    with pytest.raises(ValueError, match="not a constant"):
        launch_shared_bytes(launch.format(value="llvm.mul %arg0, %1 : i64"))
    with pytest.raises(ValueError, match="found 2"):
        launch_shared_bytes(constant + constant)
    with pytest.raises(ValueError, match="found 0"):
        launch_shared_bytes("llvm.func @host()")
