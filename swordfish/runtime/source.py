"""Kernel text: packaged device files and a flat configuration become one self-contained string.

Compilation takes nothing but this string, so the same source compiles in a worker process, ahead of time or
at first use, and hashing it is enough to name the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.runtime.toolchain import nvrtc_toolchain

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from swordfish.runtime.artifact import Artifact

__all__ = ["KernelSource", "assemble"]

OptionValue: TypeAlias = "int | str | bool"

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"\s*(?://.*)?$')
_PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\s*$")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class KernelSource:
    """Self-contained CUDA C++ (with inline PTX) of one kernel.

    ``text`` needs no include path and no macro from outside; ``entry`` is the name of an ``extern "C"
    __global__`` function in it; ``options`` are (name, value) pairs of ``cuda.core.ProgramOptions`` fields,
    such as ``(("max_register_count", 128),)``, and part of the kernel's identity.
    """

    text: str
    entry: str
    options: tuple[tuple[str, OptionValue], ...] = ()

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.entry):
            raise ArgumentError("entry", repr(self.entry), 'the name of an extern "C" kernel')
        if self.entry not in self.text:
            raise ArgumentError("entry", repr(self.entry), "a function that the kernel text defines")

    def identity(self) -> dict[str, Any]:
        """Everything that the code depends on besides architecture and compiler."""
        return {"kind": "cuda", "text": self.text, "entry": self.entry, "options": self.options}

    def toolchain(self) -> dict[str, str]:
        """The compiler that :meth:`compile` would use, and its version."""
        return nvrtc_toolchain()

    def compile(self, arch: str) -> Artifact:
        """See :func:`swordfish.runtime.compile.compile_source`."""
        from swordfish.runtime.compile import compile_source

        return compile_source(self, arch)

    def __repr__(self) -> str:
        return f"KernelSource(entry={self.entry!r}, {len(self.text)} characters, options={self.options!r})"


def assemble(
    package_files: str | Sequence[str],
    entry: str,
    defines: Mapping[str, int | str],
) -> KernelSource:
    """Build a :class:`KernelSource` from files inside an installed package.

    Args:
        package_files: one path or several, each starting with the package
            (``"swordfish/decode/device/ring.cu"``), joined in the order given. ``#include "x.cuh"`` is
            looked up beside the including file, then from the package root (``#include
            "swordfish/decode/device/ptx.cuh"``); every file is pasted once, so include guards are not needed.
            ``#include <...>`` is left to the compiler.
        entry: the kernel's name.
        defines: macro name -> integer or literal text; written in sorted order above everything else.

    Raises:
        ArgumentError: a file or an include does not exist, or a macro name is not an identifier.
        ArgumentTypeError: a macro value is neither ``int`` nor ``str``.
    """
    files = [package_files] if isinstance(package_files, str) else list(package_files)
    lines = [_define(name, defines[name]) for name in sorted(defines)]
    seen: set[str] = set()
    for file in files:
        path = _normal(PurePosixPath(file))
        node = _find(path)
        if node is None:
            raise ArgumentError("package_files", file, "files of an installed package")
        _paste(path, node, lines, seen)
    return KernelSource("\n".join(lines) + "\n", entry)


def _define(name: str, value: int | str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        raise ArgumentError("defines", name, "macro names that are C identifiers")
    if isinstance(value, str):
        return f"#define {name} {value}"
    if isinstance(value, int):
        return f"#define {name} {int(value)}"
    raise ArgumentTypeError(f"defines[{name!r}]", type(value).__name__, "int or str")


def _paste(path: PurePosixPath, node: Traversable, lines: list[str], seen: set[str]) -> None:
    """Append the file's lines, includes expanded; ``#line`` keeps compiler messages pointing at the packaged
    file."""
    if str(path) in seen:
        return
    seen.add(str(path))
    lines.append(f'#line 1 "{path}"')
    for number, line in enumerate(node.read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append("" if _PRAGMA_ONCE.match(line) else line)
            continue
        for candidate in (_normal(path.parent / include[1]), _normal(PurePosixPath(include[1]))):
            found = _find(candidate)
            if found is not None:
                break
        else:
            raise ArgumentError(
                f"{path}:{number} #include", include[1], "a file beside it or below a package root"
            )
        _paste(candidate, found, lines, seen)
        lines.append(f'#line {number + 1} "{path}"')


def _normal(path: PurePosixPath) -> PurePosixPath:
    """Fold ``..`` so that one file has one name."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def _find(path: PurePosixPath) -> Traversable | None:
    package, *rest = path.parts
    if not rest or not package.isidentifier():
        return None
    try:
        node = resources.files(package).joinpath(*rest)
    except (ModuleNotFoundError, TypeError):
        return None
    return node if node.is_file() else None
