"""Compile the silicon suite, run it on a GPU, and keep what the GPU answered.

    python tests/silicon/record.py --build DIR                 # needs ptxas; writes one cubin for each kernel
    python tests/silicon/record.py --run DIR --out h200.xz    # needs numpy and a GPU of compute capability 9.0
    python tests/silicon/record.py --merge NEW.xz --out OLD.xz

``--run`` starts a child process that runs one case after the other. Where the child dies or stands still, the case it was
at is marked as failed and a new child goes on with the next one, so that an error which poisons a CUDA context costs
one case. ``--only PREFIX`` restricts either step. A recording holds, for each case, the outputs and a fingerprint of
the PTX and inputs they belong to.
"""

from __future__ import annotations

import argparse
import collections
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from silicon.case import Case
from silicon.recording import Recording
from silicon.suite import all_cases

_START_PATIENCE = 90.0
_CASE_PATIENCE = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, metavar="DIR")
    parser.add_argument("--run", type=Path, metavar="DIR")
    parser.add_argument("--child", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--merge", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="PREFIX")
    parser.add_argument("--ptxas", default="ptxas")
    options = parser.parse_args()
    if options.child:
        return _child(options.child, options.out)
    if options.merge:
        return _merge(options.merge, options.out)
    cases = {name: case for name, case in all_cases().items() if name.startswith(options.only)}
    if options.build:
        return _build(cases, options.build, options.ptxas)
    if options.run and options.out:
        return _run(cases, options.run, options.out)
    parser.error("give --build DIR, or --run DIR --out FILE, or --merge FILE --out FILE")
    return 2


def _build(cases: dict[str, Case], folder: Path, ptxas: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, case in cases.items():
        cubin = folder / f"{case.key}.cubin"
        if cubin.exists():
            continue
        source = folder / "kernel.ptx"
        source.write_text(case.ptx)
        done = subprocess.run(
            [ptxas, "-arch=sm_90a", str(source), "-o", str(cubin)], capture_output=True, text=True
        )
        if done.returncode:
            failed += 1
            print(f"{name}: {done.stderr.strip()}")
    print(
        f"{len(cases)} cases, {len({case.key for case in cases.values()})} kernels, {failed} did not compile"
    )
    return int(failed > 0)


def _run(cases: dict[str, Case], folder: Path, out: Path) -> int:
    begin = time.time()
    names = list(cases)
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch)
        position = 0
        while position < len(names):
            started, position, problem = _run_child(names, position, folder, results)
            if not started:
                print(f"no usable GPU: {problem}")
                return 1
            if problem:
                problems[names[position]] = problem
                position += 1
        recording = Recording()
        for index, name in enumerate(names):
            case, path = cases[name], results / f"{index}.npz"
            if case.faults and name in problems:
                recording.add(name, case.fingerprint(), [])
                recording.faults[name] = problems.pop(name).partition(": ")[2]
            elif case.faults:
                problems[name] = "ran without an error"
            elif path.exists():
                with np.load(path) as stored:
                    recording.add(name, case.fingerprint(), [stored[key] for key in sorted(stored.files)])
            if path.exists():
                with np.load(path) as stored:
                    recording.add(
                        name, cases[name].fingerprint(), [stored[key] for key in sorted(stored.files)]
                    )
        description = results / "device.txt"
        recording.device = description.read_text() if description.exists() else "none"
    recording.save(out)
    _report(cases, recording, problems, out, time.time() - begin)
    return int(bool(problems))


def _run_child(names: list[str], position: int, folder: Path, results: Path) -> tuple[bool, int, str]:
    """Run cases from ``position`` on: whether a GPU was found, where it stopped, and why (``""`` when all are done)."""
    listing = results / "names.txt"
    listing.write_text("\n".join(f"{i} {names[i]}" for i in range(position, len(names))))
    command = [sys.executable, __file__, "--child", str(folder), "--out", str(results)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(child, lines), daemon=True).start()
    started, last = False, ""
    while True:
        patience = _CASE_PATIENCE if started else _START_PATIENCE
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            child.kill()
            return started, position, f"no answer for {patience:.0f} s"
        if line is None:
            child.wait()
            return (
                started,
                position,
                "" if position == len(names) else last or f"child ended with {child.returncode}",
            )
        if line.startswith("ready"):
            started = True
        elif line.startswith("done "):
            position = int(line.split()[1]) + 1
        else:
            last = line.strip()


def _pump(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def _child(folder: Path, results: Path) -> int:
    from silicon.driver import CudaError, Device

    device = Device()
    (results / "device.txt").write_text(device.description)
    cases = all_cases()
    print("ready", flush=True)
    for entry in (results / "names.txt").read_text().splitlines():
        index, name = entry.split(" ", 1)
        try:
            outputs = device.run(cases[name], folder / f"{cases[name].key}.cubin")
        except (CudaError, OSError) as error:
            print(error, flush=True)
            # A failed launch poisons the context, so the parent starts afresh after this case.
            os._exit(1)
        np.savez(results / f"{index}.npz", **{f"{i:02d}": out for i, out in enumerate(outputs)})
        print("done", index, flush=True)
    return 0


def _report(
    cases: dict[str, Case], recording: Recording, problems: dict[str, str], out: Path, seconds: float
) -> None:
    total: collections.Counter[str] = collections.Counter(case.family for case in cases.values())
    good: collections.Counter[str] = collections.Counter(cases[name].family for name in recording.outputs)
    print(f"device: {recording.device}")
    for family, count in total.items():
        print(f"  {family:<12} {good[family]:>4} of {count}")
    for name, fault in recording.faults.items():
        print(f"  {name}: {fault}")
    for name, problem in problems.items():
        print(f"FAILED {name}: {problem}")
    print(f"{out}: {len(recording.outputs)} cases, {out.stat().st_size} bytes, {seconds:.1f} s")


def _merge(new: Path, old: Path) -> int:
    """Add the cases of ``new`` to ``old``; cases that the suite no longer has are dropped."""
    merged = Recording.load(old) if old.exists() else Recording()
    added = Recording.load(new)
    merged.device = added.device
    for name, outputs in added.outputs.items():
        merged.add(name, added.fingerprints[name], outputs)
        if name in added.faults:
            merged.faults[name] = added.faults[name]
    known = all_cases()
    for name in [name for name in merged.outputs if name not in known]:
        merged.drop(name)
    merged.save(old)
    print(f"{old}: {len(merged.outputs)} cases, {old.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
