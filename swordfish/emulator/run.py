"""The entry point: run one kernel of a PTX text on the CPU."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from swordfish.emulator import native
from swordfish.emulator.arguments import Marshalled, map_fields, marshal
from swordfish.emulator.decode import CLASSES, Program, decode
from swordfish.emulator.errors import EmulatorError
from swordfish.emulator.ptx import Module, parse
from swordfish.emulator.report import Finding, LineAccess, Report, Touched
from swordfish.errors import ArgumentError

__all__ = ["POLICIES", "WARP_POLICIES", "run"]

POLICIES = ("late", "eager", "mixed", "heavy")
"""When asynchronous operations execute: as late as possible, at once, a mixture, or with a heavy-tailed
delay."""
WARP_POLICIES = ("random", "greedy", "round_robin")
SHARED_LIMIT = {"sm_90": 232448, "sm_100": 232448, "sm_103": 232448, "sm_110": 232448}
"""Largest shared memory of a CTA in bytes, by architecture (CUDA C++ programming guide, technical
specifications)."""
LIVELOCK_STEPS = 5_000_000
"""Warp-instructions without a store, arrival or completion after which the warps are said to spin for
ever."""


class LaunchLike(Protocol):
    """What ``run`` reads of a launch configuration; ``grid`` counts CTAs."""

    @property
    def grid(self) -> Sequence[int]: ...
    @property
    def block(self) -> Sequence[int]: ...
    @property
    def cluster(self) -> Sequence[int]: ...
    @property
    def shared_bytes(self) -> int: ...


@functools.lru_cache(maxsize=64)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


@functools.lru_cache(maxsize=64)
def _decoded(ptx: str, entry: str) -> Program:
    return decode(_parsed(ptx), entry, native.op_ids())


def _triple(v: Any, name: str) -> list[int]:
    t = [int(v)] if isinstance(v, int) else [int(x) for x in v]
    t += [1] * (3 - len(t))
    if len(t) != 3 or min(t) < 1:
        raise ArgumentError(name, v, "one to three positive integers")
    return t


def _launch_sizes(
    p: Program, launch: LaunchLike, arch: str
) -> tuple[list[int], list[int], list[int], int, int]:
    grid, block = _triple(launch.grid, "launch.grid"), _triple(launch.block, "launch.block")
    cluster = _triple(launch.cluster or (1, 1, 1), "launch.cluster")
    if p.required_cluster and cluster == [1, 1, 1]:
        cluster = list(p.required_cluster)
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise ArgumentError("launch.grid", tuple(grid), f"a multiple of the cluster {tuple(cluster)}")
    if np.prod(block) > 1024:
        raise ArgumentError("launch.block", tuple(block), "at most 1024 threads")
    if np.prod(cluster) > 16:
        raise ArgumentError("launch.cluster", tuple(cluster), "at most 16 CTAs")
    shared = p.static_smem + int(launch.shared_bytes)
    m = re.match(r"sm_\d+", arch)
    limit = SHARED_LIMIT.get(m[0] if m else "")
    if limit is None:
        raise ArgumentError("arch", arch, "sm_90a, sm_100a, sm_103a or sm_110a")
    return grid, block, cluster, shared, limit


def run(
    ptx: str,
    entry: str,
    args: Sequence[Any],
    launch: LaunchLike,
    *,
    arch: str,
    seed: int = 0,
    policy: str = "mixed",
    checks: bool = True,
    tcgen05_fences: bool = False,
    cluster_start: bool = False,
    warp_policy: str = "random",
    regions: Sequence[Any] = (),
) -> Report:
    """Run kernel ``entry`` of ``ptx``; results appear in the arguments' memory, as on a device.

    ``args`` follow the kernel's parameters (see :func:`swordfish.emulator.arguments.marshal`); ``launch`` has
    ``grid`` (in CTAs), ``block``, ``cluster`` and ``shared_bytes`` (dynamic). ``arch`` is a full name such as
    ``sm_90a``. The same ``seed``, ``policy`` and ``warp_policy`` give the same schedule. ``regions`` lists
    tensors that the kernel reaches by addresses inside opaque arguments. ``tcgen05_fences`` also
    reports missing tcgen05 fences around tensor memory, ``cluster_start`` accesses to a CTA of the cluster
    that no ``barrier.cluster`` has shown to be running: the ISA asks for both, and working kernels often
    leave them out.

    Raises ``UnknownInstructionError`` for an instruction that the emulator does not know, ``EmulatorError``
    for PTX that cannot be read, ``ArgumentError`` for arguments that do not fit. Defects of the kernel do not
    raise: they are findings of the report (see ``Report.raise_on_findings``)."""
    if policy not in POLICIES:
        raise ArgumentError("policy", policy, ", ".join(POLICIES))
    if warp_policy not in WARP_POLICIES:
        raise ArgumentError("warp_policy", warp_policy, ", ".join(WARP_POLICIES))
    lib = native.library()
    p = _decoded(ptx, entry)
    grid, block, cluster, shared, limit = _launch_sizes(p, launch, arch)
    if shared > limit:
        text = f"{shared} bytes of shared memory ({p.static_smem} static), {arch} has {limit} for a CTA"
        finding = Finding("resources", text, _parsed(ptx).functions[entry].line, -1, -1, -1, 0, 1)
        return Report((finding,), 0, {}, (), (), (), 0, 0, 0, 0.0, seed, policy)
    held = marshal(p, args, regions)
    core = lib.sf_new()
    try:
        started = time.perf_counter()
        _load(lib, core, p, held, shared)
        sizes = [np.asarray(v, np.int32) for v in (grid, block, cluster)]
        params = np.frombuffer(bytes(held.params) or b"\0", np.uint8)
        number = int(re.sub(r"\D", "", arch))
        level = int(checks) | 2 * int(checks and tcgen05_fences) | 4 * int(checks and cluster_start)
        lib.sf_launch(core, *(v.ctypes.data for v in sizes), int(launch.shared_bytes), number,
                      POLICIES.index(policy), WARP_POLICIES.index(warp_policy), level, seed & (1 << 64) - 1,
                      LIVELOCK_STEPS, params.ctypes.data, len(held.params))  # fmt: skip
        lib.sf_run(core)
        results = json.loads(lib.sf_results(core).decode())
        return _report(ptx, results, time.perf_counter() - started, seed, policy)
    finally:
        lib.sf_free(core)


def _load(lib: Any, core: int, p: Program, held: Marshalled, shared: int) -> None:
    imms = list(p.imms)
    buffers: dict[str, Any] = {}
    for index, name, offset in p.symbols:
        imms[index] = _variable(p, held, buffers, name) + offset
    arrays = [np.asarray(v, np.int32) for v in (p.ops, p.starts, p.operands, p.guards, p.flags, p.mods)]
    imm, lines = np.asarray(imms, np.int64), np.asarray(p.lines, np.int32)
    consts, sregs = np.frombuffer(bytes(p.consts) or b"\0", np.uint8), np.asarray(p.sregs, np.int32)
    a = [v.ctypes.data for v in arrays]
    lib.sf_program(core, len(p.ops), a[0], a[1], len(p.operands), *a[2:], imm.ctypes.data, lines.ctypes.data,
                   len(p.consts), consts.ctypes.data, len(p.sregs) // 2, sregs.ctypes.data, p.reg_bytes,
                   -(-p.local_bytes // 16) * 16, shared)  # fmt: skip
    for lo, size, writable, name in held.regions:
        lib.sf_region(core, lo, size, int(writable), name.encode())
    for _, t in held.maps:
        base, fields = map_fields(t)
        rank = len(t.dims)
        dims, strides = np.asarray(t.dims, np.uint64), np.asarray((0, *t.strides), np.uint64)
        box = np.asarray(t.box, np.uint32)
        step = np.asarray(t.element_strides or (1,) * rank, np.uint32)
        f = np.asarray(fields, np.int32)
        lib.sf_tensor_map(core, base, rank, *(v.ctypes.data for v in (f, dims, strides, box, step)))


def _variable(p: Program, held: Marshalled, buffers: dict[str, Any], name: str) -> int:
    """Host address of a ``.global`` or ``.const`` variable, made at its first use with its initial value."""
    if name not in buffers:
        v = p.variables[name]
        data = np.zeros(v.size + 64, np.uint8)
        buffers[name] = data
        held.keep.append(data)
        at = -(-data.ctypes.data // max(v.align, 16)) * max(v.align, 16) - data.ctypes.data
        if v.init:
            data[at : at + len(v.init)] = np.frombuffer(v.init, np.uint8)
        held.regions.append((data.ctypes.data + at, v.size, v.space != "const", name))
        buffers[name] = data.ctypes.data + at
        for offset, other in v.symbols:
            if other not in p.variables:
                raise EmulatorError(
                    f"variable {name} is initialised with the address of {other!r}, which is not known"
                )
            address = _variable(p, held, buffers, other)
            data[at + offset : at + offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    return int(buffers[name])


def _report(ptx: str, r: dict[str, Any], seconds: float, seed: int, policy: str) -> Report:
    source = ptx.splitlines()
    findings = []
    for f in r["findings"]:
        line = f["line"]
        findings.append(Finding(**f, source=source[line - 1].strip() if 0 < line <= len(source) else ""))
    by_warp = tuple(
        {CLASSES[k]: n for k, n in enumerate(row) if n and CLASSES[k] != "address"}
        for row in r["class_by_warp"]
    )
    classes: dict[str, int] = {}
    for row in by_warp:
        for name, n in row.items():
            classes[name] = classes.get(name, 0) + n
    merged: dict[int, list[int]] = {}
    for line, *numbers in r["lines"]:
        merged[line] = [a + b for a, b in zip(merged.get(line, [0, 0, 0, 0]), numbers, strict=True)]
    shared = tuple(LineAccess(line, *numbers) for line, numbers in sorted(merged.items()))
    return Report(
        findings=tuple(findings),
        instructions=sum(classes.values()),
        classes=classes,
        by_warp=by_warp,
        barrier_waits=tuple(r["waits_by_warp"]),
        shared=shared,
        tma_load_bytes=r["tma_load_bytes"],
        tma_store_bytes=r["tma_store_bytes"],
        async_ops=r["async_ops"],
        seconds=seconds,
        seed=seed,
        policy=policy,
        touched=tuple(_touched(r["regions"])),
        releases_early=r["released_early"],
    )


def _touched(regions: list[dict[str, Any]]) -> Iterator[Touched]:
    """Those that were used and that a kernel could write."""
    for region in regions:
        fields = dict(region, read=bool(region["read"]), written=bool(region["written"]))
        if region["name"] != "kernel parameters" and (fields["read"] or fields["written"]):
            yield Touched(**fields)
