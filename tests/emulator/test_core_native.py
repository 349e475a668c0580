"""The C++ core: found compilers, clear messages, one build for many processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swordfish import emulator
from swordfish.emulator import native


def test_no_compiler_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(emulator.NoCompilerError, match=r"c\+\+, g\+\+ and clang\+\+ on PATH. Install one"):
        native.find_compiler()


def test_compiler_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mycxx"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert native.find_compiler() == str(mine)


def test_failed_compile_shows_the_compilers_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bad.cpp").write_text("int main( { return 0; }\n")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(emulator.EmulatorError, match=r"bad\.cpp:1"):
        native.build()
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_build_is_cached_by_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int answer() { return 41; }\n')
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path / "cache"))
    first = native.build()
    stamp = first.stat().st_mtime_ns
    assert native.build() == first and first.stat().st_mtime_ns == stamp
    source.write_text('extern "C" int answer() { return 42; }\n')
    assert native.build() != first


def test_core_works_with_a_runtime_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some compilers link libstdc++ into every library; the process has another one, whose locale would meet
    the numbers of this one's streams."""
    found = native.find_compiler()
    archive = subprocess.check_output([found, "-print-file-name=libstdc++.a"], text=True)
    if not Path(archive.strip()).is_absolute():
        pytest.skip("the compiler has no static libstdc++")
    compiler = tmp_path / "static"
    compiler.write_text(f'#!/bin/sh\nexec {found} -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    (tmp_path / "one.cpp").write_text(
        "#include <sstream>\n"
        'extern "C" unsigned long sf_digits(unsigned long v) {\n'
        "  std::ostringstream o;\n  o << v << 0.5;\n  return o.str().size();\n}\n"
    )
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("SWORDFISH_CACHE_DIR", str(tmp_path / "cache"))
    use = "import ctypes, sys, torch; print(ctypes.CDLL(sys.argv[1]).sf_digits(12345))"
    done = subprocess.run(
        [sys.executable, "-c", use, str(native.build())], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "8\n")
