"""The floor: a kernel that streams a weight's packed bytes once from cold memory and does nothing else.

Two ways of reading, each in several sizes: 128-bit loads into registers, and bulk copies into shared memory.
The floor of a shape is the fastest of them on that many bytes (:func:`choose`), so it errs on the hard side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bench.adapters.base import Adapter
from bench.data import Weight
from bench.harness import Backend, Contender, estimate_us, launches_per_graph, measure, rotation_count
from bench.shapes import Problem
from swordfish.runtime import Kernel, KernelSource, LaunchConfig, device_props, get_kernel

__all__ = ["READERS", "SOURCE", "Floor", "Reader", "choose"]

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ void let_dependents_start() {
#if PROGRAMMATIC
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The write to `sink` is what a dependent kernel could read, so it comes after the wait.
__device__ __forceinline__ void wait_for_previous() {
#if PROGRAMMATIC
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// 128-bit loads, DEPTH of them in flight a thread. The sum keeps the compiler from dropping them.
extern "C" __global__ void __launch_bounds__(THREADS) read_registers(const uint4* data, u64 bytes, u32* sink)
{
  let_dependents_start();
  const u64 count = bytes / 16, stride = (u64)gridDim.x * THREADS;
  u32 sum = 0;
  for (u64 base = (u64)blockIdx.x * THREADS + threadIdx.x; base < count; base += stride * DEPTH) {
    uint4 v[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
      v[d] = base + d * stride < count ? load_once(data + base + d * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) sum ^= v[d].x ^ v[d].y ^ v[d].z ^ v[d].w;
  }
  wait_for_previous();
  if (sum == 0x5f3759dfu) *sink = sum;
}

__device__ __forceinline__ void wait_parity(u32 barrier, u32 parity) {
  asm volatile("{\n.reg .pred done;\nretry:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra retry;\n}" :: "r"(barrier), "r"(parity) : "memory");
}

// Bulk copies of CHUNK bytes into a ring of DEPTH slots, issued by one thread; nobody looks at the data.
extern "C" __global__ void __launch_bounds__(THREADS) read_bulk(const char* data, u64 bytes, u32* sink) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ __align__(8) u64 full[DEPTH];
  let_dependents_start();
  if (threadIdx.x != 0) return;
  const u32 ring_at = (u32)__cvta_generic_to_shared(ring), full_at = (u32)__cvta_generic_to_shared(full);
  for (int slot = 0; slot < DEPTH; ++slot)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full_at + 8 * slot) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  u32 issued = 0;
  for (u64 at = (u64)blockIdx.x * CHUNK; at < bytes; at += (u64)gridDim.x * CHUNK, ++issued) {
    const u32 slot = issued % DEPTH, size = bytes - at < CHUNK ? (u32)(bytes - at) : CHUNK;
    if (issued >= DEPTH) wait_parity(full_at + 8 * slot, (issued / DEPTH - 1) & 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(full_at + 8 * slot), "r"(size) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(ring_at + slot * CHUNK), "l"(data + at), "r"(size), "r"(full_at + 8 * slot) :
                 "memory");
  }
  for (u32 i = issued > DEPTH ? issued - DEPTH : 0; i < issued; ++i)
    wait_parity(full_at + 8 * (i % DEPTH), (i / DEPTH) & 1);
  wait_for_previous();
  if (bytes == 0) *sink = 0;
}
"""


@dataclass(frozen=True)
class Reader:
    """One way of reading: ``depth`` loads a thread, or ``depth`` ring slots of ``chunk`` bytes a CTA."""

    entry: str
    threads: int
    ctas_per_sm: int
    depth: int
    chunk: int = 0

    @property
    def label(self) -> str:
        """A short name for tables."""
        if self.chunk:
            return f"bulk {self.depth}x{self.chunk >> 10}K, {self.ctas_per_sm}/SM"
        return f"loads x{self.depth}, {self.ctas_per_sm}x{self.threads}/SM"

    def source(self, programmatic: bool) -> KernelSource:
        """The kernel's text, specialised."""
        defines = {
            "THREADS": self.threads,
            "DEPTH": self.depth,
            "CHUNK": self.chunk or 16,
            "PROGRAMMATIC": int(programmatic),
        }
        lines = [f"#define {name} {value}" for name, value in defines.items()]
        return KernelSource("\n".join([*lines, SOURCE]), self.entry)

    def launch_config(self, sms: int, programmatic: bool) -> LaunchConfig:
        """CTAs for a device with that many SMs."""
        return LaunchConfig(
            grid=(sms * self.ctas_per_sm, 1, 1),
            block=(self.threads, 1, 1),
            shared_bytes=self.chunk * self.depth,
            programmatic=programmatic,
        )


_ROUNDS = 7

READERS = (
    Reader("read_registers", 1024, 2, 2),
    Reader("read_registers", 512, 4, 4),
    Reader("read_registers", 512, 2, 8),
    Reader("read_registers", 256, 8, 4),
    Reader("read_bulk", 32, 1, 48, 4 << 10),
    Reader("read_bulk", 32, 1, 24, 8 << 10),
    Reader("read_bulk", 32, 1, 12, 16 << 10),
    Reader("read_bulk", 32, 2, 12, 8 << 10),
    Reader("read_bulk", 32, 4, 6, 8 << 10),
)


class Floor(Adapter):
    """Reads a buffer as long as the packed weight. With ``programmatic``, consecutive launches overlap (*pdl
    floor*)."""

    computes = False

    def __init__(self, programmatic: bool = False) -> None:
        self.name = "pdl-floor" if programmatic else "floor"
        self._programmatic = programmatic
        self._kernels: dict[Reader, Kernel] = {}
        self._chosen: dict[int, Reader] = {}

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA device"
        major = torch.cuda.get_device_capability()[0]
        return None if major >= 9 else "bulk copies need compute capability 9.0"

    def choose_reader(self, packed_bytes: int, reader: Reader) -> None:
        """Use this reader for buffers of this many bytes from now on."""
        self._chosen[_padded(packed_bytes)] = reader

    def prepare(self, weight: Weight) -> dict[str, torch.Tensor]:
        return self.buffer(weight.problem.packed_bytes, weight.codes.device)

    def buffer(self, packed_bytes: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """The state: random bytes, rounded up to 16, and the word that is never written."""
        words = _padded(packed_bytes) // 4
        data = torch.randint(-(1 << 31), (1 << 31) - 1, (words,), dtype=torch.int32, device=device)
        return {"data": data, "sink": torch.zeros(1, dtype=torch.int32, device=device)}

    def run(self, state: dict[str, torch.Tensor], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.read(self._chosen.get(state["data"].numel() * 4, READERS[0]), state)
        return out

    def read(self, reader: Reader, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """One launch of one reader; returns the word that it may write."""
        data = state["data"]
        props = device_props(data.device)
        if reader not in self._kernels:
            self._kernels[reader] = get_kernel(reader.source(self._programmatic), props.arch)
        size = np.uint64(data.numel() * data.element_size())
        config = reader.launch_config(props.sm_count, self._programmatic)
        self._kernels[reader].launch(config, [data, size, state["sink"]])
        return state["sink"]

    def describe(self, problem: Problem, m: int) -> str:
        return self._chosen.get(_padded(problem.packed_bytes), READERS[0]).label


def _padded(size: int) -> int:
    return -(-size // 16) * 16


def choose(
    floor: Floor,
    packed_bytes: int,
    backend: Backend,
    l2_bytes: int,
    *,
    device: torch.device | str = "cuda",
    sample: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Time every reader on this many cold bytes, keep the fastest, and return microseconds by label."""
    buffers = [floor.buffer(packed_bytes, device) for _ in range(rotation_count(packed_bytes, l2_bytes))]
    repeats = launches_per_graph(len(buffers), estimate_us(packed_bytes, 0)) // len(buffers)
    contenders = []
    for reader in READERS:
        calls = [functools.partial(floor.read, reader, state) for state in buffers]
        graph, _ = backend.capture(calls, repeats)
        contenders.append(Contender(reader.label, graph, repeats * len(buffers)))
    timings = measure(contenders, backend, rounds=_ROUNDS, sample=sample)
    times = {name: timing.median_us for name, timing in timings.items()}
    best = min(READERS, key=lambda reader: times[reader.label])
    floor.choose_reader(packed_bytes, best)
    return times
