"""Reading PTX: scopes, calls, tables, variables, and errors that name the line. Real compiler output runs as
it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from swordfish import emulator
from swordfish.emulator.literals import literal
from swordfish.emulator.ptx import parse, split_operands
from swordfish.errors import ArgumentError, ArgumentTypeError
from tests.emulator.conftest import HEADER, Launch, Run, nvrtc


@pytest.mark.parametrize(
    ("text", "width", "bits"),
    [
        ("0x10", 4, 16),
        ("-1", 4, 0xFFFFFFFF),
        ("010", 4, 8),
        ("0b101U", 8, 5),
        ("0f3F800000", 4, 0x3F800000),
        ("0f3F800000", 8, 0x3FF0000000000000),
        ("0d3FF0000000000000", 8, 0x3FF0000000000000),
        ("1.5", 4, 0x3FC00000),
        ("WARP_SZ", 4, 32),
        ("(3 + 4 * 2)", 4, 11),
        ("%r1", 4, None),
    ],
)
def test_literals(text: str, width: int, bits: int | None) -> None:
    assert literal(text, width) == bits


def test_operands_split_outside_brackets() -> None:
    assert split_operands("{%r1, %r2}, [map, {%r3, 4}], 7") == ["{%r1, %r2}", "[map, {%r3, 4}]", "7"]


def test_parameters_are_aligned() -> None:
    module = parse(
        ".version 8.6\n.target sm_90a\n.address_size 64\n"
        ".visible .entry k(.param .u32 a, .param .align 64 .b8 m[128], .param .u64 p)\n{ ret; }"
    )
    assert [q.offset for q in module.functions["k"].params] == [0, 64, 192]


def test_unknown_instruction_names_itself_and_its_line() -> None:
    body = HEADER + "\n\nfrobnicate.sync.b32 %r1, %r2;\nret;\n}"
    line = next(k for k, t in enumerate(body.splitlines(), 1) if "frobnicate" in t)
    with pytest.raises(
        emulator.UnknownInstructionError,
        match=rf"PTX line {line}: unknown instruction `frobnicate.sync.b32 %r1, %r2`",
    ):
        emulator.run(body, "k", [None, None], Launch(), arch="sm_90a")


@pytest.mark.parametrize(
    "line", ["ld.shared.b32 %r1, [nothing];", "add.u32 %r1, %q, 1;", "bra NOWHERE;", "@%p99x bra X; X:"]
)
def test_unreadable_operands(ptx_run: Run, line: str) -> None:
    with pytest.raises(emulator.EmulatorError, match="PTX line"):
        ptx_run(line)


def test_bad_arguments(ptx_run: Run) -> None:
    with pytest.raises(ArgumentError, match=r"args=1 values"):
        ptx_run("", [None])
    with pytest.raises(ArgumentTypeError, match=r"args\[1\]"):
        ptx_run("", [None, "text"])
    with pytest.raises(ArgumentError, match="policy"):
        ptx_run("", policy="never")
    with pytest.raises(ArgumentError, match="arch"):
        ptx_run("", arch="sm_80")
    with pytest.raises(ArgumentError, match="multiple of the cluster"):
        ptx_run("", grid=3, cluster=2)
    with pytest.raises(emulator.EmulatorError, match="no kernel 'nothing'; it has: k"):
        emulator.run(HEADER + "ret;\n}", "nothing", [None, None], Launch(), arch="sm_90a")


def test_scopes_hide_names(ptx_run: Run) -> None:
    out = np.zeros(32, np.int32)
    body = """
    mov.u32 %r1, 1;
    { .reg .b32 %r1; mov.u32 %r1, 5; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;
      mov.u32 %r2, %r1; }
    { L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4; @%p1 bra L; }
    mad.lo.u32 %r3, %r2, 100, %r1;
    mul.wide.u32 %rd1, tid, 4; add.u64 %rd1, %rd1, b; st.global.b32 [%rd1], %r3;
    """
    ptx_run(body, [None, out]).raise_on_findings()
    assert (out == 904).all()


def test_a_source_register_wider_than_its_type(ptx_run: Run) -> None:
    """``cvt.s64.s32 %rd, %rd`` takes the low half of every lane's register, not neighbouring words."""
    out = np.zeros((32, 2), np.int64)
    body = """
    { .reg .b64 %w; .reg .f32 %g; cvt.u64.u32 %w, tid; sub.s64 %w, %w, 5; or.b64 %w, %w, 0x700000000;
      cvt.s64.s32 %rd2, %w; cvt.rn.f32.s32 %g, %w; cvt.rzi.s64.f32 %rd3, %g; }
    mul.wide.u32 %rd1, tid, 16; add.u64 %rd1, %rd1, b; st.global.v2.b64 [%rd1], {%rd2, %rd3};
    """
    ptx_run(body, [None, out]).raise_on_findings()
    np.testing.assert_array_equal(out, np.repeat(np.arange(32)[:, None] - 5, 2, axis=1))


SOURCE = (Path(__file__).parent / "kernels" / "language.cu").read_text()


def test_compiler_output_with_calls_tables_and_local_memory(cuda_run: Run) -> None:
    n = 200
    x = torch.rand(n, generator=torch.Generator().manual_seed(0)) * 20 - 4
    y, z = torch.zeros(2 * n + 1), torch.zeros(n + 1, dtype=torch.int32)
    cuda_run(SOURCE, [x, y, z, np.int32(n)], grid=2, block=128, shared=512, seed=3).raise_on_findings()
    table = [0.5, 1.5, -2.0, 4.0]
    total = torch.zeros(1)
    expected = torch.zeros(256)
    for i in range(256):
        t, v = i % 128, float(x[i]) if i < n else 0.0
        if i < n:
            w, steps = np.float32(v), 0
            while w > 1 and steps < 50:
                w, steps = np.float32(w * np.float32(0.7)), steps + 1
            assert int(z[i]) == steps + t * (t % 6 + 1)
        kind = t % 7
        if kind == 5:
            s = 0.0
            for j in range(4):
                s = s * v + table[j]
            v = min(s, 100.0)
        else:
            v = [v + 1, v * 2, v - 3, -v, abs(v) ** 0.5, v, v][kind]
        expected[i] = v
    assert torch.allclose(y[:n], expected[:n], rtol=1e-5, atol=1e-5)
    total = expected.sum()
    assert torch.allclose(y[2 * n], total, rtol=1e-4)
    assert int(z[n]) == 128 + 40


def test_global_variables_start_afresh_in_each_run(cuda_run: Run) -> None:
    source = """extern "C" { __device__ int seen = 7;
    __global__ void k(int* out) { out[0] = atomicAdd(&seen, 5); out[1] = seen; } }"""
    for _ in range(2):
        out = np.zeros(2, np.int32)
        cuda_run(source, [out], block=1).raise_on_findings()
        assert out.tolist() == [7, 12]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a", "sm_110a"])
def test_every_architecture_compiles_and_runs(arch: str) -> None:
    source = """extern "C" __global__ void k(const float* a, float* b) {
      b[threadIdx.x] = fmaf(a[threadIdx.x], 2.0f, 1.0f); }"""
    a = torch.arange(64, dtype=torch.float32)
    b = torch.zeros(64)
    emulator.run(nvrtc(source, arch), "k", [a, b], Launch(block=(64,)), arch=arch).raise_on_findings()
    assert torch.equal(b, a * 2 + 1)


def test_bytes_and_scalars_by_value(cuda_run: Run) -> None:
    source = """struct S { int a; float b; long long c; };
    extern "C" __global__ void k(S s, double d, short h, float* out) {
      out[0] = s.a; out[1] = s.b; out[2] = (float)s.c; out[3] = (float)d; out[4] = h; }"""
    packed = np.zeros(1, np.dtype([("a", np.int32), ("b", np.float32), ("c", np.int64)]))
    packed[0] = (3, 1.25, -9)
    out = torch.zeros(5)
    cuda_run(source, [packed.tobytes(), np.float64(0.75), np.int16(-4), out], block=1).raise_on_findings()
    assert out.tolist() == [3, 1.25, -9, 0.75, -4]
