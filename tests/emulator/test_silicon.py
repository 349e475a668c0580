"""The emulator against recorded outputs of a GPU of compute capability 9.0, bit for bit.

``tests/silicon/record.py`` makes the recording. A case whose PTX or inputs changed since is noticed by its
fingerprint.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

import numpy as np
import pytest

import swordfish.emulator as emulator
from swordfish.emulator.run import POLICIES
from swordfish.runtime import LaunchConfig
from tests.silicon.case import Arg, Array, Case, TensorMapSpec
from tests.silicon.compare import differences, ulp_distance
from tests.silicon.recording import Recording
from tests.silicon.suite import all_cases

CASES = all_cases()
PATH = Path(__file__).parents[1] / "silicon" / "recorded" / "h200.xz"

FINDINGS = {
    "tma/store.2d.negative_row": "out of bounds",
    "fault/misaligned.ld.global": "misaligned",
    "fault/misaligned.st.shared": "misaligned",
    "fault/misaligned.ldmatrix": "misaligned",
    "fault/shared.beyond": "out of bounds",
    "fault/trap": "trap",
    "fault/mbarrier.misaligned": "misaligned",
    "fault/bulk.size": "misaligned",
    "fault/tma.load.inner_coordinate": "misaligned",
    "fault/tma.load.tile_address": "misaligned",
    "fault/tma.store.negative_inner_coordinate": "out of bounds",
}
"""What the checkers say of the kernels that the GPU stopped with an error."""


@functools.lru_cache(maxsize=1)
def recording() -> Recording:
    return Recording.load(PATH)


def _argument(arg: Arg, args: list[Arg]) -> object:
    if not isinstance(arg, TensorMapSpec):
        return arg
    return emulator.TensorMap(
        tensor=args[arg.buffer],
        dtype=arg.dtype.lower(),
        dims=arg.dims,
        strides=arg.strides,
        box=arg.box,
        element_strides=arg.element_strides,
        swizzle=str(arg.swizzle) if arg.swizzle else "none",
        fill="nan" if arg.nan_fill else "zero",
    )


def run(case: Case, args: list[Arg], passed: list[object]) -> emulator.Report:
    """Emulate under a schedule that belongs to the case."""
    launch = LaunchConfig(case.grid, case.block, case.cluster, case.shared_bytes)
    seed = zlib.crc32(case.name.encode())
    return emulator.run(
        case.ptx,
        case.entry,
        passed,
        launch,
        arch="sm_90a",
        seed=seed,
        policy=POLICIES[seed % len(POLICIES)],
        regions=[a for a in args if isinstance(a, np.ndarray)],
    )


def arguments(case: Case) -> list[Arg]:
    return [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in case.inputs()]


def emulate(case: Case) -> list[Array]:
    """The output buffers of a case; a finding of the checkers raises."""
    args = arguments(case)
    run(case, args, [_argument(a, args) for a in args]).raise_on_findings()
    return [np.asarray(args[i]) for i in case.outputs]


def test_recording_belongs_to_this_suite() -> None:
    stored = recording()
    assert set(stored.outputs) == set(CASES)
    stale = [name for name, case in CASES.items() if stored.fingerprints[name] != case.fingerprint()]
    assert stale == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.faults])
def test_agrees_with_silicon(name: str) -> None:
    case = CASES[name]
    recorded = recording().outputs[name][: len(case.outputs)]
    assert differences(case, recorded, emulate(case)) == []


def test_every_faulting_case_has_its_finding() -> None:
    assert set(FINDINGS) == {name for name, case in CASES.items() if case.faults}


@pytest.mark.parametrize("name", FINDINGS)
def test_what_faults_on_silicon_is_found(name: str) -> None:
    assert recording().faults[name].startswith("CUDA_ERROR")
    case = CASES[name]
    args = arguments(case)
    assert FINDINGS[name] in run(case, args, [_argument(a, args) for a in args]).kinds()


def _has_map(case: Case) -> bool:
    return not case.faults and any(isinstance(a, TensorMapSpec) for a in case.inputs())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if _has_map(case)])
def test_reads_the_drivers_tensor_maps(name: str) -> None:
    """The 128 bytes that the driver encoded, with the address put back, do what the description does."""
    case = CASES[name]
    recorded = recording().outputs[name]
    args = arguments(case)
    passed: list[object] = list(args)
    (at,) = [i for i, a in enumerate(args) if isinstance(a, TensorMapSpec)]
    spec = args[at]
    assert isinstance(spec, TensorMapSpec)
    buffer = args[spec.buffer]
    assert isinstance(buffer, np.ndarray)
    passed[at] = buffer.ctypes.data.to_bytes(8, "little") + recorded[-1][8:].tobytes()
    run(case, args, passed).raise_on_findings()
    assert differences(case, recorded[: len(case.outputs)], [np.asarray(args[i]) for i in case.outputs]) == []


def test_comparison_sees_one_bit() -> None:
    case = CASES["convert/f32.half.near"]
    recorded = recording().outputs[case.name]
    changed = [recorded[0].copy()]
    changed[0][3, 17] ^= 1
    assert len(differences(case, recorded, changed)) == 1
    assert differences(case, recorded, recorded) == []


def test_ulp_distance() -> None:
    a = np.array([0x3F800000, 0x00000001, 0x7FC00000, 0x7FC00000], dtype=np.uint32)
    b = np.array([0x3F800002, 0x80000001, 0x7F800001, 0x3F800000], dtype=np.uint32)
    assert ulp_distance(a, b).tolist() == [2, 2, 0, 1 << 40]
