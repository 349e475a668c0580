"""The C++ core: found compilers, clear messages, one build for many processes."""

from __future__ import annotations

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
