"""The launcher against a recorded stand-in for the driver, and the emulator as second backend."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from swordfish.emulator import Report, check_order
from swordfish.errors import ArgumentError, ArgumentTypeError, UnsupportedDeviceError
from swordfish.runtime import (
    Artifact,
    DeviceProps,
    DriverError,
    Kernel,
    KernelSource,
    LaunchConfig,
    TensorMap,
    active_emulation,
    device_props,
    emulate,
    torch_cuda,
)
from swordfish.runtime.arguments import ArgumentLayout
from swordfish.runtime.compile import compile_source

TEXT = """
struct __align__(64) Map { char bytes[128]; };
struct Pair { short first; char rest[4]; };
extern "C" __global__ void __launch_bounds__(256) mixed(
    const float *x, float *y, int n, float f, const __grid_constant__ Map map, unsigned long long big, Pair
    pair) { __shared__ float tile[64]; tile[threadIdx.x] = x[n] * f + map.bytes[n] + big + pair.rest[1];
    __syncthreads(); y[threadIdx.x] = tile[n];
}
"""
CONFIG = LaunchConfig(
    grid=(8, 2, 1), block=(64, 1, 1), cluster=(2, 1, 1), shared_bytes=100_000, programmatic=True
)


class FakeDriver:
    """Records what the launcher does; ``status`` answers launches, one each, then success."""

    class CUresult:
        CUDA_SUCCESS = 0

    class CUstreamCaptureMode:
        CU_STREAM_CAPTURE_MODE_RELAXED = 2

    class CUfunction_attribute:
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = "shared"
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = "cluster"
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = "carveout"

    class CUlaunchAttributeID:
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = "cluster"
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = "programmatic"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.launches: list[dict[str, Any]] = []
        self.status: list[int] = []
        self.bound: list[int] = []
        self.mode = 0
        self.device = 0
        self.sizes: list[int] = []

    def CUlaunchConfig(self) -> Any:
        return types.SimpleNamespace()

    def CUlaunchAttribute(self) -> Any:
        return types.SimpleNamespace(value=types.SimpleNamespace(clusterDim=types.SimpleNamespace()))

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[int, int]:
        previous, self.mode = self.mode, mode
        return 0, previous

    def cuLibraryLoadData(self, cubin: bytes, *rest: Any) -> tuple[int, str]:
        assert self.mode == 2, "loading is only allowed in relaxed capture mode"
        self.calls.append(("load", len(cubin)))
        return 0, "library"

    def cuLibraryGetKernel(self, library: str, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def cuKernelGetFunction(self, kernel: str) -> tuple[int, str]:
        self.calls.append(("function", self.device))
        return 0, f"{kernel}@{self.device}"

    def cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> tuple[int]:
        self.calls.append((function, attribute, value))
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: str, params: int, extra: int) -> tuple[int]:
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(params)
        values = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, self.sizes, strict=True)]
        launch = {"function": function, "device": self.device, "values": values, **vars(config)}
        self.launches.append(launch)
        return (self.status.pop(0) if self.status else 0,)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compile_source(KernelSource(TEXT, "mixed"), "sm_90a")


@pytest.fixture
def driver(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two sm_90a devices; a tensor counts as living on ``cuda:<first dimension - 10>``."""
    fake = FakeDriver()
    fake.sizes = list(artifact.metadata.param_sizes)

    def exchange(index: int) -> int:
        previous, fake.device = fake.device, index
        return previous

    for module in ("launch", "raw_launch"):
        monkeypatch.setattr(f"swordfish.runtime.{module}.bindings", lambda: fake)
        monkeypatch.setattr(f"swordfish.runtime.{module}.bind_context", fake.bound.append)
    monkeypatch.setattr(
        "swordfish.runtime.launch.device_props", lambda index: DeviceProps.for_target("sm_90a")
    )
    monkeypatch.setattr(torch_cuda, "current_device", lambda: fake.device)
    monkeypatch.setattr(torch_cuda, "exchange_device", exchange)
    monkeypatch.setattr(torch_cuda, "raw_stream", lambda index: 1000 + index)
    real = ArgumentLayout.device

    def device(layout: ArgumentLayout, args: Any) -> int:
        assert real(layout, args) == -1
        return int(args[0].shape[0]) - 10

    monkeypatch.setattr(ArgumentLayout, "device", device)
    monkeypatch.setattr(TensorMap, "encoded", bytes(range(128)))
    return fake


def arguments(device: int = 0) -> list[Any]:
    x, y = torch.zeros(10 + device), torch.zeros(64)
    tensor_map = TensorMap(torch.zeros(64, 64), "float32", (64, 64), (256,), (16, 4))
    return [x, y, np.int32(-5), np.float32(0.5), tensor_map, np.uint64(1 << 63), b"abcdef"]


# --- a launch on the GPU


def test_a_launch_passes_values_shape_attributes_and_stream(artifact: Artifact, driver: FakeDriver) -> None:
    args = arguments()
    Kernel(artifact).launch(CONFIG, args)
    (launch,) = driver.launches
    assert launch["values"] == [
        args[0].data_ptr().to_bytes(8, "little"),
        args[1].data_ptr().to_bytes(8, "little"),
        np.int32(-5).tobytes(),
        np.float32(0.5).tobytes(),
        bytes(range(128)),
        np.uint64(1 << 63).tobytes(),
        b"abcdef",
    ]
    assert (launch["gridDimX"], launch["gridDimY"], launch["gridDimZ"]) == (8, 2, 1)
    assert (launch["blockDimX"], launch["blockDimY"], launch["blockDimZ"]) == (64, 1, 1)
    assert launch["sharedMemBytes"] == 100_000 and launch["hStream"] == 1000 and launch["numAttrs"] == 2
    cluster, programmatic = launch["attrs"]
    assert cluster.id == "cluster" and vars(cluster.value.clusterDim) == {"x": 2, "y": 1, "z": 1}
    assert (
        programmatic.id == "programmatic" and programmatic.value.programmaticStreamSerializationAllowed == 1
    )
    assert (launch["function"], "carveout", 100) in driver.calls


def test_no_attributes_unless_asked_for(artifact: Artifact, driver: FakeDriver) -> None:
    Kernel(artifact).launch(LaunchConfig((1, 1, 1), (32, 1, 1)), arguments())
    assert driver.launches[0]["attrs"] == [] and driver.launches[0]["numAttrs"] == 0
    assert not any(call[-2] in ("shared", "carveout") for call in driver.calls)


def test_none_is_a_null_pointer_and_may_alternate_with_a_tensor(
    artifact: Artifact, driver: FakeDriver
) -> None:
    launch = Kernel(artifact).prepare(CONFIG)
    for with_y in (True, False, True):
        args = arguments()
        if not with_y:
            args[1] = None
        launch(args)
        expected = args[1].data_ptr() if with_y else 0
        assert int.from_bytes(driver.launches[-1]["values"][1], "little") == expected


def test_a_view_is_passed_by_the_address_of_its_first_element(artifact: Artifact, driver: FakeDriver) -> None:
    args = arguments()
    base = torch.zeros(100)
    args[1] = base[7:]
    Kernel(artifact).launch(CONFIG, args)
    assert int.from_bytes(driver.launches[0]["values"][1], "little") == base.data_ptr() + 28


def test_the_tensors_device_is_used_and_the_current_one_restored(
    artifact: Artifact, driver: FakeDriver
) -> None:
    """A kernel loads once for the process, gets a function for each device, and never moves the current
    device."""
    kernel = Kernel(artifact)
    for index in (1, 0, 1, 0):
        kernel.launch(CONFIG, arguments(index))
        assert driver.device == 0
    assert [launch["device"] for launch in driver.launches] == [1, 0, 1, 0]
    assert [launch["function"] for launch in driver.launches] == ["mixed@1", "mixed@0"] * 2
    assert [launch["hStream"] for launch in driver.launches] == [1001, 1000] * 2
    assert driver.calls.count(("load", len(artifact.cubin))) == 1
    assert [call for call in driver.calls if call[0] == "function"] == [("function", 1), ("function", 0)]
    assert driver.mode == 0, "the capture mode is restored"


def test_a_failing_launch_raises_at_once_and_restores_the_device(
    artifact: Artifact, driver: FakeDriver
) -> None:
    driver.status = [719]
    with pytest.raises(
        DriverError, match=r"cuLaunchKernelEx failed with 719 for Kernel\(mixed, sm_90a.*cuda:1"
    ):
        Kernel(artifact).launch(CONFIG, arguments(1))
    assert driver.device == 0


def test_a_thread_without_a_context_gets_one(artifact: Artifact, driver: FakeDriver) -> None:
    driver.status = [201]
    Kernel(artifact).launch(CONFIG, arguments(0))
    assert len(driver.launches) == 2 and driver.bound == [0, 0], "for loading, and again for the launch"


def test_a_raw_launch_passes_values_as_they_are(artifact: Artifact, driver: FakeDriver) -> None:
    """Also where a thread meets the device for the first time, and on each of two devices."""
    prepared = Kernel(artifact).prepare(CONFIG)
    floats = struct.unpack("i", struct.pack("f", 0.5))[0]
    values = (1 << 47, 0, -5, floats, bytes(range(128)), 1 << 40, b"abcdef")
    driver.status = [201]
    for device in (0, 1):
        driver.device = device
        prepared.raw(device)(77 + device, *values)
    first, again, other = driver.launches
    assert [launch["device"] for launch in driver.launches] == [0, 0, 1] and driver.bound == [0, 0, 1]
    assert (first["function"], other["function"]) == ("mixed@0", "mixed@1")
    assert (first["hStream"], other["hStream"]) == (77, 78) and first["attrs"] == again["attrs"] != []
    expected = struct.pack("<QQiiQ", 1 << 47, 0, -5, floats, 1 << 40)
    for launch in driver.launches:
        numbers = [value for i, value in enumerate(launch["values"]) if i not in (4, 6)]
        assert b"".join(numbers) == expected
        assert launch["values"][4] == values[4] and launch["values"][6] == values[6]


def test_a_failing_raw_launch_raises_at_once(artifact: Artifact, driver: FakeDriver) -> None:
    driver.status = [719]
    with pytest.raises(
        DriverError, match=r"cuLaunchKernelEx failed with 719 for Kernel\(mixed, .*cuda:0 with"
    ):
        Kernel(artifact).prepare(CONFIG).raw(0)(0, 0, 0, 0, 0, bytes(128), 0, bytes(6))


def test_a_number_without_room_is_refused(artifact: Artifact, driver: FakeDriver) -> None:
    launch = Kernel(artifact).prepare(CONFIG).raw(0)
    with pytest.raises(ArgumentError, match=r"args=.*4294967296.*fits the parameters of Kernel\(mixed"):
        launch(0, 0, 0, 1 << 32, 0, bytes(128), 0, bytes(6))
    assert not driver.launches
    launch(0, 0, 1, 0, 0, bytes(128), 0, bytes(6))
    assert len(driver.launches) == 1


def test_a_stream_may_be_given(artifact: Artifact, driver: FakeDriver) -> None:
    kernel = Kernel(artifact)
    kernel.launch(CONFIG, arguments(), stream=77)
    kernel.launch(CONFIG, arguments(), stream=types.SimpleNamespace(cuda_stream=78))
    kernel.launch(CONFIG, arguments(), stream=0)
    assert [launch["hStream"] for launch in driver.launches] == [77, 78, 0]


def test_large_shared_memory_is_allowed_once_and_raised_when_needed(
    artifact: Artifact, driver: FakeDriver
) -> None:
    kernel = Kernel(artifact)
    for shared in (1000, 60_000, 50_000, 200_000):
        kernel.launch(LaunchConfig((1, 1, 1), (64, 1, 1), shared_bytes=shared), arguments())
    allowed = [call[2] for call in driver.calls if len(call) == 3 and call[1] == "shared"]
    assert allowed == [60_000, 200_000]


def test_clusters_beyond_eight_are_allowed_explicitly(artifact: Artifact, driver: FakeDriver) -> None:
    Kernel(artifact).launch(LaunchConfig((16, 1, 1), (64, 1, 1), cluster=(16, 1, 1)), arguments())
    assert ("mixed@0", "cluster", 1) in driver.calls


def test_threads_never_share_a_parameter_buffer(artifact: Artifact, driver: FakeDriver) -> None:
    """Sixteen threads stop inside the launch together; each must still see its own arguments."""
    launch, barrier = Kernel(artifact).prepare(CONFIG), threading.Barrier(16)
    record = driver.cuLaunchKernelEx

    def meeting(*args: Any) -> tuple[int]:
        barrier.wait()
        return record(*args)

    driver.cuLaunchKernelEx = meeting  # type: ignore[method-assign]

    def one(n: int) -> None:
        args = arguments()
        args[2] = np.int32(n)
        launch(args)

    for _ in range(3):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(16)))
        seen = sorted(int.from_bytes(entry["values"][2], "little") for entry in driver.launches[-16:])
        assert seen == list(range(16))


def test_prepared_launches_are_kept_but_not_without_bound(artifact: Artifact) -> None:
    kernel = Kernel(artifact)
    first = kernel.prepare(CONFIG)
    assert kernel.prepare(CONFIG) is first
    for x in range(1, 2000):
        kernel.prepare(LaunchConfig((x, 1, 1), (32, 1, 1)))
    assert len(kernel._prepared) <= 256


# --- refused before any launch


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda a: a[:-1],
            ArgumentError,
            "args=6 arguments is not allowed: expected the 7 parameters of kernel mixed",
        ),
        (
            lambda a: [*a[:2], np.int64(5), *a[3:]],
            ArgumentError,
            r"args\[2\]=int64 of 8 bytes .* the 4 bytes",
        ),
        (lambda a: [*a[:6], b"abcde"], ArgumentError, r"args\[6\]=bytes of 5 bytes .* the 6 bytes"),
        (lambda a: [*a[:2], 5.0, *a[3:]], ArgumentTypeError, r"args\[2\]=float .* numpy scalar such as np.f"),
        (lambda a: [*a[:4], 5, *a[5:]], ArgumentError, r"args\[4\]=int of 8 bytes .* the 128 bytes"),
        (lambda a: [[1.0], *a[1:]], ArgumentTypeError, r"args\[0\]=list"),
    ],
)
def test_wrong_arguments_are_refused(
    artifact: Artifact, driver: FakeDriver, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Kernel(artifact).launch(CONFIG, change(arguments()))
    assert driver.launches == []


def test_opaque_bytes_of_another_length_are_refused_later_too(artifact: Artifact, driver: FakeDriver) -> None:
    launch = Kernel(artifact).prepare(CONFIG)
    launch(arguments())
    with pytest.raises(ArgumentError, match=r"args\[6\]=bytes of length 7"):
        launch([*arguments()[:6], b"abcdefg"])
    assert len(driver.launches) == 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"grid": (0, 1, 1)}, "grid"),
        ({"grid": (1, 65536, 1)}, "grid"),
        ({"grid": (2**31, 1, 1)}, "grid"),
        ({"block": (2048, 1, 1)}, "block"),
        ({"block": (512, 4, 1)}, "block"),
        ({"block": (1, 1, 65)}, "block"),
        ({"cluster": (0, 1, 1)}, "cluster"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, "cluster"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "grid"),
        ({"shared_bytes": -1}, "shared_bytes"),
    ],
)
def test_impossible_shapes_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}="):
        LaunchConfig(**{"grid": (1, 1, 1), "block": (32, 1, 1), **fields})


def test_a_cta_larger_than_compiled_for_is_refused(artifact: Artifact) -> None:
    with pytest.raises(ArgumentError, match=r"block=\(512, 1, 1\).*at most the 256 threads"):
        Kernel(artifact).prepare(LaunchConfig((1, 1, 1), (512, 1, 1)))


@pytest.mark.parametrize("limit_kib", [48, 64, 99, 163])
def test_more_shared_memory_than_the_device_has_is_refused(
    artifact: Artifact, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, limit_kib: int
) -> None:
    limit = limit_kib * 1024
    props = DeviceProps("sm_90a", 132, limit, 228 * 1024, 60 << 20)
    monkeypatch.setattr("swordfish.runtime.launch.device_props", lambda index: props)
    most = limit - artifact.metadata.shared_bytes
    kernel = Kernel(artifact)
    kernel.launch(LaunchConfig((1, 1, 1), (64, 1, 1), shared_bytes=most), arguments())
    with pytest.raises(ArgumentError, match=rf"shared_bytes={most + 1} .*at most {most}.*{limit} bytes"):
        kernel.launch(LaunchConfig((1, 1, 1), (64, 1, 1), shared_bytes=most + 1), arguments())
    assert len(driver.launches) == 1


def test_a_kernel_of_another_architecture_is_refused(driver: FakeDriver) -> None:
    other = compile_source(KernelSource(TEXT, "mixed"), "sm_100a")
    with pytest.raises(ArgumentError, match=r"device=cuda:0 \(sm_90a\).*sm_100a"):
        Kernel(other).launch(CONFIG, arguments())
    assert driver.launches == []


def test_cpu_tensors_without_emulation_are_refused(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWORDFISH_EMULATE", raising=False)
    with pytest.raises(ArgumentError, match=r"args=tensors on the CPU.*CUDA tensors.*swordfish\.emulate"):
        Kernel(artifact).launch(CONFIG, arguments())


def test_tensors_on_two_devices_are_refused(artifact: Artifact) -> None:
    """Every tensor is asked, tensor maps too, before anything is launched."""

    class Elsewhere(torch.Tensor):
        def get_device(self) -> int:
            return 1

    args = arguments()
    args[1] = torch.zeros(64).as_subclass(Elsewhere)
    with pytest.raises(ArgumentError, match="args=tensors on cpu and cuda:1 is not allowed"):
        Kernel(artifact).launch(CONFIG, args)


# --- the emulator as the second backend


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A stand-in for ``swordfish.emulator`` that records how it is called."""
    calls: list[tuple[Any, ...]] = []
    module = types.ModuleType("swordfish.emulator")

    def run(ptx: str, entry: str, args: Any, launch: Any, **keywords: Any) -> Report:
        calls.append((ptx, entry, list(args), launch, keywords))
        return Report((), len(calls), {}, (), (), (), 0, 0, 0, 0.0, keywords["seed"], "late")

    module.run, module.check_order = run, check_order  # type: ignore[attr-defined]
    module.TensorMap = lambda **fields: fields  # type: ignore[attr-defined]
    import swordfish

    monkeypatch.setitem(sys.modules, "swordfish.emulator", module)
    monkeypatch.setattr(swordfish, "emulator", module, raising=False)
    return calls


def test_cpu_tensors_go_to_the_emulator_with_the_same_arguments(
    artifact: Artifact, recorder: list[tuple[Any, ...]]
) -> None:
    args = arguments()
    with emulate("sm_90a", seed=7, policy="late") as emulation:
        Kernel(artifact).launch(CONFIG, args)
    ((ptx, entry, passed, launch, keywords),) = recorder
    assert (ptx, entry, launch) == (artifact.ptx, "mixed", CONFIG)
    assert keywords == {"arch": "sm_90a", "seed": 7, "policy": "late"}
    assert all(passed[i] is args[i] for i in (0, 1, 2, 3, 5, 6))
    assert passed[4]["tensor"] is args[4].tensor and passed[4]["box"] == (16, 4)
    assert [report.instructions for report in emulation.reports] == [1]


def test_wrong_arguments_are_refused_before_emulating(
    artifact: Artifact, recorder: list[tuple[Any, ...]]
) -> None:
    with emulate("sm_90a"), pytest.raises(ArgumentError, match="6 arguments"):
        Kernel(artifact).launch(CONFIG, arguments()[:-1])
    with emulate("sm_100a"), pytest.raises(ArgumentError, match="arch=sm_100a"):
        Kernel(artifact).launch(CONFIG, arguments())
    assert recorder == []


def test_emulation_nests_ends_and_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWORDFISH_EMULATE", raising=False)
    assert active_emulation() is None
    with pytest.raises(ArgumentError, match="device=cpu"):
        device_props("cpu")
    with emulate("sm_100a"):
        assert device_props("cpu").arch == "sm_100a"
        with emulate("sm_90a", seed=3) as inner:
            assert active_emulation() is inner and device_props("cpu").sm_count == 132
        assert device_props("cpu").arch == "sm_100a"
    assert active_emulation() is None
    monkeypatch.setenv("SWORDFISH_EMULATE", "sm_110a")
    assert device_props("cpu").sm_count == 20
    monkeypatch.setenv("SWORDFISH_EMULATE", "sm_42")
    with pytest.raises(UnsupportedDeviceError, match="sm_42"):
        active_emulation()


def test_a_thread_started_inside_does_not_inherit_unless_asked() -> None:
    with emulate("sm_90a"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(active_emulation).result() is None


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(UnsupportedDeviceError, match="sm_90"), emulate("sm_90"):
        pass
