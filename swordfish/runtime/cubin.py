"""Facts about a kernel read from its cubin, an ELF file, so that no driver and no CUDA binary tool is needed.

``ptxas`` describes each kernel in ``.nv.info`` sections: a list of records ``(format: u8, attribute: u8,
value or size: u16, payload)``. Only the few attributes named below are read; the layout was worked out by
comparing cubins with what ``ptxas -v`` printed for them and is checked against it by the tests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["CubinInfo", "read_cubin"]

_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_FRAME_SIZE = 0x11
_KPARAM_INFO = 0x17
_REGCOUNT = 0x2F
_WITH_PAYLOAD = 4

# sm_90 and later keep the first KiB of shared memory for the system; .nv.shared.<kernel> counts it.
_RESERVED_SHARED = 1024


@dataclass(frozen=True)
class CubinInfo:
    """Resources of one kernel: registers a thread, local-memory bytes a thread (arrays and spills), static
    shared bytes a CTA, the largest CTA it may be launched with (0: not bounded), and the size in bytes of
    each parameter."""

    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int
    param_sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    data: bytes


def read_cubin(cubin: bytes, entry: str) -> CubinInfo:
    """Read the resources of kernel ``entry``.

    Raises:
        ValueError: ``cubin`` is not a 64-bit ELF file or holds no such kernel.
    """
    try:
        return _read(cubin, entry)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a well-formed cubin: {error}") from error


def _read(cubin: bytes, entry: str) -> CubinInfo:
    sections = {section.name: section for section in _sections(cubin)}
    if f".text.{entry}" not in sections:
        kernels = sorted(name[6:] for name in sections if name.startswith(".text."))
        raise ValueError(f"the cubin holds no kernel {entry!r}; it has {kernels}")
    symbols = _symbols(sections)
    registers = local_bytes = max_threads = 0
    for attribute, payload in _records(sections[".nv.info"].data):
        if attribute not in (_REGCOUNT, _FRAME_SIZE):
            continue
        symbol, value = struct.unpack_from("<II", payload)
        if symbols[symbol] == entry:
            if attribute == _REGCOUNT:
                registers = value
            else:
                local_bytes = value
    params: dict[int, int] = {}
    for attribute, payload in _records(sections[f".nv.info.{entry}"].data):
        if attribute in (_MAX_THREADS, _REQUIRED_THREADS):
            x, y, z = struct.unpack_from("<III", payload)
            max_threads = x * y * z
        elif attribute == _KPARAM_INFO:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", payload)
            params[ordinal] = packed >> 18  # the low 18 bits hold alignment, space and constant bank
    shared = sections.get(f".nv.shared.{entry}")
    return CubinInfo(
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=max(0, shared.size - _RESERVED_SHARED) if shared else 0,
        max_threads=max_threads,
        param_sizes=tuple(params[i] for i in range(len(params))),
    )


def _sections(elf: bytes) -> Iterator[_Section]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    for name, kind, _, _, offset, size, *_ in headers:
        start = names + name
        data = b"" if kind == 8 else elf[offset : offset + size]  # SHT_NOBITS has a size but no bytes
        yield _Section(elf[start : elf.index(b"\0", start)].decode(), offset, size, data)


def _symbols(sections: dict[str, _Section]) -> list[str]:
    table, strings = sections[".symtab"].data, sections[".strtab"].data
    starts = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [strings[start : strings.index(b"\0", start)].decode() for start in starts]


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _WITH_PAYLOAD:
            yield attribute, data[at : at + size]
            at += size
