"""Runs CuTe DSL programs on the emulator: the DSL's own host function runs, its launches come here.

The host function that the DSL compiles calls a small CUDA runtime library. :class:`Session` puts a
stand-in in its place (``cutedsl_runtime.c``, compiled at the first use), which hands every launch with the
raw bytes of its parameters and every tensor-map encoding to Python. Kernels whose host side is not ours
therefore run unchanged::

    with Session("sm_100a") as session:
        compiled = cute.compile(host_function, a, b, c)
        compiled(a, b, c)                       # runs on the emulator; findings raise
    launch = session.launches[0]
    launch.run(seed=3)                          # again, under another schedule

Tensors must be on the CPU. A kernel may touch the tensors that went through ``from_dlpack`` inside the
session, and those given to :meth:`Session.register`.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch

from swordfish.emulator import native
from swordfish.emulator.decode import decode
from swordfish.emulator.errors import EmulatorError
from swordfish.emulator.ptx import parse
from swordfish.emulator.report import Report
from swordfish.emulator.run import run
from swordfish.emulator.tensormap import SWIZZLES, TensorMap

__all__ = ["Launch", "Session"]

_RUNTIME = Path(__file__).with_name("cutedsl_runtime.c")
_MAP_HANDLE = b"SWFCUTE\x01"
# CUtensorMapDataType of the CUDA driver API, in order.
_DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float32_ftz",
    "tfloat32",
    "tfloat32_ftz",
    "16u4_align8b",
    "16u4_align16b",
    "16u6_align16b",
)

_U32P, _U64P = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    _U32P,
    _U32P,
    _U32P,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
)
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_uint64,
    _U64P,
    _U64P,
    _U32P,
    _U32P,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
)


@dataclass(frozen=True)
class _Shape:
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int


@dataclass(frozen=True)
class Launch:
    """One recorded launch: the PTX text, its kernel, the parameters and the launch shape."""

    ptx: str
    entry: str
    args: tuple[Any, ...]
    shape: _Shape
    regions: tuple[torch.Tensor, ...]
    arch: str

    def run(
        self,
        *,
        seed: int = 0,
        policy: str = "mixed",
        warp_policy: str = "random",
        checks: bool = True,
        ptx: str | None = None,
    ) -> Report:
        """Run the launch, on another schedule or with other PTX text (a mutant); writes the same tensors."""
        return run(
            ptx or self.ptx,
            self.entry,
            self.args,
            self.shape,
            arch=self.arch,
            seed=seed,
            policy=policy,
            warp_policy=warp_policy,
            checks=checks,
            regions=self.regions,
        )


class Session:
    """A region in which CuTe DSL programs run on the emulator. See the module's text.

    ``arch`` is a full name such as ``sm_100a``; ``on_launch`` replaces the default of running each launch
    once with ``seed`` and ``policy`` and raising on findings. ``sms`` is the number of SMs that host code
    sees.

    Raises ``EmulatorError`` on leaving a DSL call whose kernel has findings, ``NoCompilerError`` without a
    compiler.
    """

    def __init__(
        self,
        arch: str,
        *,
        seed: int = 0,
        policy: str = "mixed",
        sms: int = 4,
        on_launch: Callable[[Launch], None] | None = None,
    ) -> None:
        self.arch, self.seed, self.policy, self.sms = arch, seed, policy, sms
        self.launches: list[Launch] = []
        self.reports: list[Report] = []
        self._on_launch = on_launch or self._run_once
        self._modules: list[str] = []
        self._maps: list[TensorMap] = []
        self._regions: dict[int, torch.Tensor] = {}
        self._error: BaseException | None = None
        self._stack = ExitStack()

    def register(self, tensor: torch.Tensor) -> None:
        """Let kernels touch ``tensor``, for tensors that reach them as plain addresses."""
        self._regions[tensor.untyped_storage().data_ptr()] = tensor

    def _run_once(self, launch: Launch) -> None:
        self.reports.append(launch.run(seed=self.seed, policy=self.policy).raise_on_findings())

    # ---- what the stand-in library calls
    # -----------------------------------------------------------------------------
    def _launched(
        self, name: bytes, grid: Any, block: Any, cluster: Any, shared: int, _programmatic: int, args: Any
    ) -> int:
        try:
            entry = name.decode()
            ptx = next((p for p in reversed(self._modules) if f".entry {entry}" in p), None)
            if ptx is None:
                raise EmulatorError(f"no PTX text was kept for the kernel {entry}")
            params = decode(parse(ptx), entry, native.op_ids()).params
            values = tuple(
                self._parameter(ctypes.string_at(args[k], size)) for k, (_, size, _, _) in enumerate(params)
            )
            shape = _Shape(tuple(grid[:3]), tuple(block[:3]), tuple(cluster[:3]), shared)
            launch = Launch(ptx, entry, values, shape, tuple(self._regions.values()), self.arch)
            self.launches.append(launch)
            self._on_launch(launch)
        except (
            BaseException
        ) as e:  # a callback cannot raise through C: kept, and raised when the host function is back
            self._error = e
        return 0

    def _parameter(self, data: bytes) -> Any:
        if len(data) == 128 and data.startswith(_MAP_HANDLE):
            return self._maps[int.from_bytes(data[8:16], "little")]
        return data

    def _encoded(
        self,
        out: int,
        dtype: int,
        rank: int,
        address: int,
        dims: Any,
        strides: Any,
        box: Any,
        steps: Any,
        interleave: int,
        swizzle: int,
        fill: int,
    ) -> int:
        try:
            self._maps.append(
                TensorMap(
                    address,
                    _DTYPES[dtype],
                    tuple(dims[:rank]),
                    tuple(strides[: rank - 1]),
                    tuple(box[:rank]),
                    tuple(steps[:rank]),
                    SWIZZLES[swizzle],
                    ("none", "16", "32")[interleave],
                    "nan" if fill else "zero",
                )
            )
            handle = _MAP_HANDLE + (len(self._maps) - 1).to_bytes(8, "little") + bytes(112)
            ctypes.memmove(out, handle, 128)
        except BaseException as e:
            self._error = e
        return 0

    # ---- installation
    # --------------------------------------------------------------------------------------------------
    def __enter__(self) -> Session:
        from cutlass.base_dsl.jit_executor import JitExecutor
        from cutlass.cute.runtime import _Tensor as Tensor
        from cutlass.cutlass_dsl import CuTeDSL
        from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction as Compiled

        path = native.compile_c(_RUNTIME)
        library = ctypes.CDLL(str(path))
        self._callbacks = (_LAUNCH(self._launched), _ENCODE(self._encoded))
        library.swordfish_set_callbacks(*self._callbacks, self.sms, 232448)
        settings = CuTeDSL._get_dsl().envar
        enter = self._stack.enter_context
        dumps = enter(tempfile.TemporaryDirectory())
        for name, value in (
            ("shared_libs", str(path)),
            ("keep_ptx", True),
            ("arch", self.arch),
            ("dump_dir", dumps),
        ):
            enter(mock.patch.object(settings, name, value))
        to, init = Compiled.to, Tensor.__init__
        run_program = JitExecutor.run_compiled_program

        def load(compiled: Any, device: int | None = None) -> Any:
            self._modules.append(compiled.artifacts.PTX or "")
            return to(compiled, device)

        def execute(executor: Any, args: list[Any]) -> Any:
            result = run_program(executor, args)
            self.raise_error()
            return result

        def wrap(wrapper: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(tensor, torch.Tensor):
                self.register(tensor)
            init(wrapper, tensor, *args, **kwargs)

        enter(mock.patch.object(Compiled, "to", load))
        enter(mock.patch.object(JitExecutor, "run_compiled_program", execute))
        enter(mock.patch.object(Compiled, "num_devices", 1))
        enter(mock.patch.object(Tensor, "__init__", wrap))
        return self

    def raise_error(self) -> None:
        """Raise what a callback could not raise through the host function."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
