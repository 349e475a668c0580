"""Kernel text, cubin facts, artifacts and compiling: everything before a driver is needed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from swordfish.errors import ArgumentError, ArgumentTypeError, CompileError, UnsupportedDeviceError
from swordfish.runtime import KernelSource, assemble
from swordfish.runtime.artifact import FORMAT_VERSION, Artifact, DamagedArtifactError
from swordfish.runtime.compile import compile_source
from swordfish.runtime.cubin import read_cubin

TINY = KernelSource('extern "C" __global__ void tiny(int *out, int n) { out[threadIdx.x] = n; }\n', "tiny")


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_source(TINY, "sm_100a")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package ``fakekernels`` with device files in two folders."""
    root = tmp_path / "fakekernels"
    for folder in (root / "device", root / "common"):
        folder.mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "common" / "ptx.cuh").write_text("#pragma once\n__device__ int one() { return 1; }\n")
    (root / "device" / "tile.cuh").write_text(
        '#include "../common/ptx.cuh"\n__device__ int two() { return one() + one(); }\n'
    )
    (root / "device" / "main.cu").write_text(
        '#include "tile.cuh"\n#include "fakekernels/common/ptx.cuh"\n'
        'extern "C" __global__ void main_kernel(int *out) { out[0] = two() + BITS; }\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fakekernels", raising=False)  # another test's copy
    return root


def test_assemble_pastes_each_include_once_and_writes_sorted_defines(package: Path) -> None:
    source = assemble(
        "fakekernels/device/main.cu", "main_kernel", {"TYPE": "float", "BITS": 4, "ASYM": False}
    )
    assert source.text.startswith("#define ASYM 0\n#define BITS 4\n#define TYPE float\n")
    assert source.text.count("int one()") == 1
    assert "#include" not in source.text and "pragma" not in source.text
    assert compile_source(source, "sm_90a").metadata.entry == "main_kernel"


def test_assemble_does_not_depend_on_the_order_of_defines_or_on_paths(package: Path) -> None:
    forwards = assemble("fakekernels/device/main.cu", "main_kernel", {"BITS": 4, "TYPE": "float"})
    backwards = assemble("fakekernels/device/main.cu", "main_kernel", {"TYPE": "float", "BITS": 4})
    assert forwards == backwards
    assert str(package.parent) not in forwards.text


def test_compiler_messages_point_at_the_packaged_file(package: Path) -> None:
    (package / "device" / "tile.cuh").write_text("\n\n__device__ int two() { return 1 }\n")
    with pytest.raises(CompileError, match=r"fakekernels/device/tile\.cuh\(3\)"):
        compile_source(assemble("fakekernels/device/main.cu", "main_kernel", {"BITS": 4}), "sm_90a")


def test_assemble_refuses_missing_files_and_bad_defines(package: Path) -> None:
    with pytest.raises(ArgumentError, match=r"fakekernels/device/none\.cu"):
        assemble("fakekernels/device/none.cu", "main_kernel", {})
    with pytest.raises(ArgumentError, match="macro names"):
        assemble("fakekernels/device/main.cu", "main_kernel", {"NOT A NAME": 1})
    with pytest.raises(ArgumentTypeError, match=r"defines\['BITS'\]=float"):
        assemble("fakekernels/device/main.cu", "main_kernel", {"BITS": 0.5})  # type: ignore[dict-item]
    (package / "device" / "main.cu").write_text('\n#include "gone.cuh"\nmain_kernel')
    with pytest.raises(ArgumentError, match=r"main\.cu:2 #include=gone\.cuh"):
        assemble("fakekernels/device/main.cu", "main_kernel", {})


def test_a_source_names_a_kernel_that_it_contains() -> None:
    with pytest.raises(ArgumentError, match="entry='other'"):
        KernelSource(TINY.text, "other")
    with pytest.raises(ArgumentError, match="entry='two words'"):
        KernelSource(TINY.text, "two words")


def test_one_compile_gives_cubin_ptx_and_metadata(artifact: Artifact) -> None:
    assert artifact.cubin.startswith(b"\x7fELF")
    assert ".target sm_100a" in artifact.ptx and ".visible .entry tiny(" in artifact.ptx
    metadata = artifact.metadata
    assert (metadata.entry, metadata.arch, metadata.param_sizes) == ("tiny", "sm_100a", (8, 4))
    assert 0 < metadata.registers < 32 and metadata.spill_bytes == 0 and metadata.local_bytes == 0
    assert set(metadata.toolchain) == {"nvrtc"}


def test_compile_options_reach_the_compiler_and_the_identity() -> None:
    body = "\n".join(f"float a{i} = in[{i} * n + threadIdx.x];" for i in range(64))
    total = " + ".join(f"a{i} * a{63 - i}" for i in range(64))
    body += f"__syncthreads(); in[threadIdx.x] = {total};"
    text = f'extern "C" __global__ void wide(float *in, int n) {{ {body} }}'
    free = compile_source(KernelSource(text, "wide"), "sm_90a").metadata
    tight_source = KernelSource(text, "wide", (("max_register_count", 32),))
    tight = compile_source(tight_source, "sm_90a").metadata
    assert free.registers > 32 and free.spill_bytes == 0
    assert tight.registers <= 32 and tight.spill_bytes > 0 and tight.local_bytes > 0
    assert tight_source.identity() != KernelSource(text, "wide").identity()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a", "sm_110a"])
def test_cubin_reader_agrees_with_ptxas(arch: str) -> None:
    """The ELF fields are undocumented, so they are held to what ``ptxas -v`` prints for the same cubin."""
    from cuda.core import Program, ProgramOptions

    text = """
    struct __align__(64) Map { char bytes[128]; };
    extern "C" __global__ void __launch_bounds__(384, 1)
    k(int *a, short b, const __grid_constant__ Map m, double d) {
        __shared__ int s[700];
        float local[100];
        for (int i = 0; i < 100; ++i) local[i] = a[i * b];
        s[threadIdx.x] = a[0] + m.bytes[a[1]];
        __syncthreads();
        a[0] = s[a[1]] + local[a[2]] + d;
    }"""
    log = io.StringIO()
    program = Program(text, "c++", ProgramOptions(arch=arch, std="c++17", ptxas_options=["-v"]))
    info = read_cubin(program.compile("cubin", logs=log).code, "k")
    assert f"Used {info.registers} registers" in log.getvalue()
    assert f"{info.local_bytes} bytes stack frame" in log.getvalue() and info.local_bytes == 400
    assert f"{info.shared_bytes} bytes smem" in log.getvalue() and info.shared_bytes == 2800
    assert info.max_threads == 384 and info.param_sizes == (8, 2, 128, 8)


def test_cubin_reader_refuses_other_files(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF"):
        read_cubin(b"not an ELF file at all", "tiny")
    with pytest.raises(ValueError, match=r"no kernel 'huge'; it has \['tiny'\]"):
        read_cubin(artifact.cubin, "huge")
    with pytest.raises(ValueError, match=r"well-formed|ELF|kernel"):
        read_cubin(artifact.cubin[:200], "tiny")


def test_artifact_survives_the_round_trip(artifact: Artifact) -> None:
    assert Artifact.from_bytes(artifact.to_bytes()) == artifact


def test_any_damage_is_noticed(artifact: Artifact) -> None:
    blob = artifact.to_bytes()
    step = len(blob) // 97
    for at in [*range(64), *range(64, len(blob), step), len(blob) - 1]:
        damaged = bytearray(blob)
        damaged[at] ^= 0x10
        with pytest.raises(DamagedArtifactError):
            Artifact.from_bytes(bytes(damaged))
    for size in (0, 1, 63, len(blob) // 2, len(blob) - 1):
        with pytest.raises(DamagedArtifactError):
            Artifact.from_bytes(blob[:size])


def test_another_format_version_is_refused(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swordfish.runtime.artifact.FORMAT_VERSION", FORMAT_VERSION + 1)
    newer = artifact.to_bytes()
    monkeypatch.undo()
    with pytest.raises(DamagedArtifactError, match="version"):
        Artifact.from_bytes(newer)


def test_metadata_with_other_fields_is_refused(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and with the right checksum, but written by a version that knew other facts."""
    fields = asdict(artifact.metadata)
    for changed in ({**fields, "colour": "blue"}, {k: v for k, v in fields.items() if k != "registers"}):
        monkeypatch.setattr("swordfish.runtime.artifact.asdict", lambda _, changed=changed: changed)
        with pytest.raises(DamagedArtifactError, match="not what this version writes"):
            Artifact.from_bytes(artifact.to_bytes())


def test_compile_errors_carry_the_log() -> None:
    with pytest.raises(
        CompileError, match=r"(?s)kernel broken does not compile for sm_90a.*undeclared_thing"
    ):
        compile_source(
            KernelSource('extern "C" __global__ void broken() { undeclared_thing(); }', "broken"), "sm_90a"
        )
    # The text mentions the entry, but no kernel of that name comes out.
    with pytest.raises(CompileError, match="no kernel 'absent'"):
        compile_source(KernelSource(TINY.text + "// absent", "absent"), "sm_90a")


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_120a", "compute_90a", ""])
def test_only_full_known_architectures_compile(arch: str) -> None:
    with pytest.raises(UnsupportedDeviceError, match="sm_90a, sm_100a, sm_103a, sm_110a"):
        compile_source(TINY, arch)


def test_missing_nvrtc_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class DynamicLibNotFoundError(RuntimeError):
        pass

    def program(*args: object) -> None:
        raise DynamicLibNotFoundError("libnvrtc.so.13 not found in site-packages, conda, CUDA_HOME")

    monkeypatch.setattr("cuda.core.Program", program)
    with pytest.raises(CompileError, match=r"(?s)libnvrtc.*pip install nvidia-cuda-nvrtc.*site-packages"):
        compile_source(TINY, "sm_90a")


def test_tools_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    """No nvcc, ptxas or compiler on PATH, no toolkit: NVRTC from the wheel is enough."""
    environment = {
        **os.environ,
        "PATH": str(tmp_path),
        "CUDA_HOME": "/nowhere",
        "SWORDFISH_CACHE_DIR": str(tmp_path),
    }
    code = (
        "from swordfish.runtime import KernelSource, get_artifact\n"
        f"print(get_artifact(KernelSource({TINY.text!r}, 'tiny'), 'sm_110a').metadata.registers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_build_time_is_metadata_and_not_identity(artifact: Artifact) -> None:
    again = replace(artifact.metadata, build_seconds=artifact.metadata.build_seconds + 1)
    assert again.build_seconds != artifact.metadata.build_seconds
    assert "build_seconds" not in TINY.identity()
