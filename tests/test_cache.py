"""The disk cache: keys, damage, unusable directories, many processes at once, killed writers."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swordfish.errors import CompileError
from swordfish.runtime import (
    Artifact,
    KernelSource,
    cache_directory,
    compile_many,
    default_cache,
    forget_kernels,
    get_artifact,
    get_kernel,
    kernel_key,
    registry,
)
from swordfish.runtime.cache import ArtifactCache, content_key
from swordfish.runtime.compile import compile_source

TINY = KernelSource('extern "C" __global__ void tiny(int *out, int n) { out[threadIdx.x] = n; }\n', "tiny")


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_source(TINY, "sm_90a")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache directory that the default cache uses; no kernels held in memory."""
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path / "cache"))
    forget_kernels()
    yield tmp_path / "cache"
    forget_kernels()


def entries(directory: Path) -> list[Path]:
    return [path for path in (directory / "entries").rglob("*") if path.is_file()]


# --- keys


def test_every_input_changes_the_key() -> None:
    """Architecture with and without its suffix, compiler, options, text and entry all count; nothing
    collides."""
    base = TINY.identity()
    other_text = KernelSource(TINY.text + "\n", "tiny").identity()
    with_option = KernelSource(TINY.text, "tiny", (("max_register_count", 64),)).identity()
    other_entry = KernelSource(TINY.text + "// tiny2", "tiny2").identity()
    nvrtc = [{"nvrtc": "13.0.88"}, {"nvrtc": "13.1.0"}, {"nvrtc": "13.0.88", "library": "2"}]
    archs = [
        "sm_80",
        "sm_86",
        "sm_90",
        "sm_90a",
        "sm_100a",
        "sm_103a",
        "sm_110a",
        "sm_120",
        "sm_120a",
        "sm_121a",
    ]
    keys = [content_key(base, arch, tool) for arch in archs for tool in nvrtc]
    keys += [content_key(identity, "sm_90a", nvrtc[0]) for identity in (other_text, with_option, other_entry)]
    assert len(set(keys)) == len(keys) == 33


# --- ordinary use


def test_memory_then_disk_then_compiler(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counting(source: KernelSource, arch: str) -> Artifact:
        compiled.append(arch)
        return compile_source(source, arch)

    monkeypatch.setattr(KernelSource, "compile", counting)
    first = get_kernel(TINY, "sm_90a")
    assert get_kernel(TINY, "sm_90a") is first and compiled == ["sm_90a"]
    forget_kernels()
    assert get_kernel(TINY, "sm_90a").artifact == first.artifact and compiled == ["sm_90a"]
    default_cache().clear()
    forget_kernels()
    get_kernel(TINY, "sm_90a")
    assert compiled == ["sm_90a", "sm_90a"]


def test_threads_that_ask_together_share_one_build(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def slow(source: KernelSource, arch: str) -> Artifact:
        builds.append(arch)
        time.sleep(0.05)
        return compile_source(source, arch)

    monkeypatch.setattr(KernelSource, "compile", slow)
    barrier = threading.Barrier(8)

    def ask(_: int) -> object:
        barrier.wait()
        return get_kernel(TINY, "sm_90a")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert builds == ["sm_90a"]


def test_a_failed_build_is_not_remembered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(source: KernelSource, arch: str) -> Artifact:
        raise CompileError("no compiler today")

    with monkeypatch.context() as patch:
        patch.setattr(KernelSource, "compile", failing)
        with pytest.raises(CompileError, match="today"):
            get_kernel(TINY, "sm_90a")
    assert get_kernel(TINY, "sm_90a").artifact.metadata.entry == "tiny"


def test_compile_many_fills_the_cache_and_keeps_the_order(directory: Path) -> None:
    other = KernelSource(TINY.text.replace("tiny", "small"), "small")
    requests = [(other, "sm_100a"), (TINY, "sm_90a"), (other, "sm_90a"), (TINY, "sm_90a")]
    seen = []
    artifacts = compile_many(requests, workers=2, done=lambda source, arch, _: seen.append((source, arch)))
    found = [(artifact.metadata.entry, artifact.metadata.arch) for artifact in artifacts]
    assert found == [("small", "sm_100a"), ("tiny", "sm_90a"), ("small", "sm_90a"), ("tiny", "sm_90a")]
    assert seen == requests and len(entries(directory)) == 3


def test_size_is_bounded_least_recently_read_first(tmp_path: Path, artifact: Artifact) -> None:
    size = len(artifact.to_bytes())
    cache = ArtifactCache(tmp_path, max_bytes=4 * size + size // 2)
    keys = [bytes([i]) * 32 for i in range(6)]
    for key in keys[:4]:
        cache.put(key, artifact)
        time.sleep(0.002)
    assert cache.get(keys[0], arch="sm_90a") == artifact  # now the most recently read
    for key in keys[4:]:
        cache.put(key, artifact)
    held = [key for key in keys if cache.get(key, arch="sm_90a") is not None]
    assert cache.info().size_bytes <= cache.max_bytes
    assert keys[0] in held and keys[1] not in held and keys[5] in held


def test_info_and_clear(directory: Path) -> None:
    before = default_cache().info()
    assert (before.entries, before.size_bytes, before.writable, before.problem) == (0, 0, True, "")
    assert not directory.exists(), "asking must not create anything"
    get_artifact(TINY, "sm_90a")
    assert default_cache().info().entries == 1 and default_cache().info().size_bytes > 1000
    assert default_cache().clear() == 1 and default_cache().info().entries == 0
    assert default_cache().clear() == 0


# --- damage


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_or_foreign_entry_is_a_miss_and_is_rebuilt(directory: Path, damage: str) -> None:
    good = get_artifact(TINY, "sm_90a")
    (path,) = entries(directory)
    blob = path.read_bytes()
    if damage == "cut":
        path.write_bytes(blob[: len(blob) // 2])
    elif damage == "flip":
        middle = len(blob) // 2
        path.write_bytes(blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(compile_source(TINY, "sm_100a").to_bytes())
    again = get_artifact(TINY, "sm_90a")
    assert again.cubin == good.cubin and again.metadata.arch == "sm_90a"
    (path,) = entries(directory)
    assert Artifact.from_bytes(path.read_bytes()) == again


def test_stray_files_do_no_harm(directory: Path) -> None:
    """Temporary files of killed writers, lock files and folders in the way of nothing."""
    for name in ("tmp/entry-abc123", "entries/00/left.lock", "entries/stray", "lock"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half an entry")
    old = directory / "tmp" / "entry-abc123"
    os.utime(old, (1, 1))
    get_artifact(TINY, "sm_90a")
    assert not old.exists(), "leftovers older than an hour are swept"
    forget_kernels()
    assert default_cache().get(kernel_key(TINY, "sm_90a"), arch="sm_90a") is not None


# --- directories that cannot be used


@pytest.mark.parametrize("place", ["/proc/swordfish", "file/below"])
def test_an_unusable_directory_gives_one_warning_that_names_the_variable(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", place)
    forget_kernels()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert get_artifact(TINY, "sm_90a").metadata.entry == "tiny"
        assert get_artifact(TINY, "sm_100a").metadata.entry == "tiny"
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1 and place in messages[0] and "SWORDFISH_CACHE_DIR" in messages[0]
    info = default_cache().info()
    assert not info.writable and "SWORDFISH_CACHE_DIR" in info.problem
    registry.forget_kernels()


@pytest.mark.parametrize(
    "home", ["/proc", "/proc/nonexistent", "/dev/null"], ids=["read-only", "missing", "file"]
)
def test_an_unusable_home_gives_one_warning(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWORDFISH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    forget_kernels()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [get_artifact(TINY, arch).metadata.arch for arch in ("sm_90a", "sm_100a")]
    assert found == ["sm_90a", "sm_100a"]
    (message,) = [str(warning.message) for warning in caught]
    assert home in message and "SWORDFISH_CACHE_DIR" in message


def test_without_home_the_user_database_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "SWORDFISH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_directory() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "swordfish"


def test_a_full_disk_drops_the_entry_and_goes_on(directory: Path) -> None:
    """A file size limit makes every write fail as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    artifacts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        default_cache().put(b"k" * 32, compile_source(TINY, "sm_90a"))  # opens the directory
        default_cache().clear()
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
        try:
            artifacts = [get_artifact(TINY, arch) for arch in ("sm_90a", "sm_100a", "sm_90a")]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert artifacts[0].cubin == artifacts[2].cubin
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1 and str(directory) in messages[0] and "space" in messages[0]
    assert entries(directory) == [] and not any((directory / "tmp").iterdir())
    assert get_artifact(TINY, "sm_90a").metadata.arch == "sm_90a" and len(entries(directory)) == 1


def test_the_variable_wins_over_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("SWORDFISH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "swordfish"


# --- many processes, killed processes


def _build(index: int, folder: str, start: object, results: object) -> None:
    os.environ["SWORDFISH_CACHE_DIR"] = folder
    start.wait()  # type: ignore[attr-defined]
    artifact = get_artifact(TINY, "sm_90a")
    results.put((index, artifact.metadata.entry, artifact.cubin))  # type: ignore[attr-defined]


def test_32_processes_build_the_same_kernel_at_once(tmp_path: Path) -> None:
    """Forked so that start-up does not spread them out: all pass the barrier together with an empty
    directory."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(32), context.SimpleQueue()
    processes = [context.Process(target=_build, args=(i, str(tmp_path), start, results)) for i in range(32)]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert {index for index, _, _ in answers} == set(range(32))
    assert len({cubin for _, _, cubin in answers}) == 1, "the compiler is deterministic"
    (path,) = entries(tmp_path)
    assert Artifact.from_bytes(path.read_bytes()).cubin == answers[0][2]
    assert not any((tmp_path / "tmp").iterdir())


def _build_for_ever(folder: str) -> None:
    os.environ["SWORDFISH_CACHE_DIR"] = folder
    number = 0
    while True:
        number += 1
        get_artifact(KernelSource(TINY.text + f"// {number}\n", "tiny"), "sm_90a")


def test_killed_builders_leave_nothing_that_breaks_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at arbitrary moments of compiling and writing; then every entry left is whole and the next
    build works."""
    context = multiprocessing.get_context("fork")
    for delay in (0.15, 0.23, 0.31, 0.42):
        process = context.Process(target=_build_for_ever, args=(str(tmp_path),))
        process.start()
        time.sleep(delay)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    for path in entries(tmp_path):
        Artifact.from_bytes(path.read_bytes())
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path))
    began = time.perf_counter()
    assert get_artifact(TINY, "sm_90a").metadata.entry == "tiny"
    assert time.perf_counter() - began < 10, "nothing waits for a dead process"


def test_another_process_starts_warm_without_a_compiler(directory: Path, tmp_path: Path) -> None:
    """Same key whatever the hash seed, home and folder; and the warm path loads neither NVRTC nor the DSL."""
    get_artifact(TINY, "sm_90a")
    code = f"""
        import sys
        from swordfish.runtime import KernelSource, get_kernel
        kernel = get_kernel(KernelSource({TINY.text!r}, "tiny"), "sm_90a")
        assert "cutlass" not in sys.modules and "swordfish.runtime.compile" not in sys.modules
        assert not any("libnvrtc" in line or "cutlass" in line for line in open("/proc/self/maps"))
        print(kernel.artifact.metadata.entry)
    """
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "HOME": "/proc",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "tiny"
