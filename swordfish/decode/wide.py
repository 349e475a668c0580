"""Host side of ``device/wide.cu``: decode for 16 to 128 tokens; weight columns are the tile's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import gcd
from typing import ClassVar

import torch

from swordfish.decode.bound import BoundLaunch, WeightTensors, address
from swordfish.decode.defines import scheme_defines
from swordfish.errors import ArgumentError
from swordfish.runtime.arguments import Argument
from swordfish.runtime.counters import COUNTERS, counters
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.launch import LaunchConfig
from swordfish.runtime.raw_launch import RawLaunch
from swordfish.runtime.source import KernelSource, assemble
from swordfish.runtime.tensor_map import TensorMap
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["PART_TOKENS", "WideConfig", "wgmma_defines"]

PART_TOKENS = 96
"""Tokens up to which a tile of a warpgroup can have registers for two parts of its sums; halves of so few
gain little."""

_REGISTER_FILE = 65536
_PRODUCER_REGISTERS = 24
_MOST_REGISTERS = 240
"""Of a thread; above it the compiler's 255 would be rounded up to 256."""

_ENCODED_KEPT = 4096
_BOUND_KEPT = 8
_encoded: dict[tuple[object, ...], bytes] = {}
"""Tensor maps by everything they depend on: encoding one costs tens of microseconds, a launch needs four. A
bound launch keeps a few of x by address alone."""


@dataclass(frozen=True)
class WideConfig:
    """How the wide kernel is cut. Every field is a compile-time constant of the kernel.

    ``tokens``        columns of the tensor-core tile, a multiple of 8 from 8 to 256: rows of x in a tile.
    ``tiles``         m64 tiles a warpgroup owns: 1, 2 or 4. Two tiles fold one while the other multiplies.
    ``warpgroups``    warpgroups of a CTA, side by side along N; they share the staged tokens.
    ``stage_k``       k a stage covers: 64, 128, 256 or 512.
    ``slots``         stages of tokens and weights in the ring, 2 or more.
    ``scale_rows``    rows of scales that one copy brings: ``stage_k / group_size`` if that is whole, else 1.
    ``split``         CTAs of a cluster, each with its range of K; sums meet in distributed shared memory.
    ``min_ctas``      CTAs per SM the register allocation must leave room for.
    ``overlay``       partial sums reuse the rings' shared memory, at the price of a cluster barrier.
    ``wgmma``         products by wgmma (sm_90a) instead of mma.sync.
    ``in_place``      one set of sums, kept in units of the running scale (``device/wide_sums.cuh``).
    ``ctas``          Stream-K: so many CTAs share the units (stages of output tiles) evenly; 0: a cluster
                      for each tile.
    ``span``          stages after which the tensor cores pause: products in flight cannot go round a loop.
                      What is left of a range at the end goes stage by stage. 1 to 16, with wgmma.

    Raises ``ArgumentError`` on a value outside these sets.
    """

    gather: ClassVar[bool] = False
    """Tokens are expected in packed order, see ``RingConfig.gather``."""

    tokens: int
    tiles: int = 2
    warpgroups: int = 1
    stage_k: int = 128
    slots: int = 4
    split: int = 1
    min_ctas: int = 1
    overlay: bool = False
    wgmma: bool = True
    in_place: bool = False
    scale_rows: int = 1
    ctas: int = 0
    span: int = 1

    def __post_init__(self) -> None:
        if self.tokens not in range(8, 257, 8):
            raise ArgumentError("tokens", self.tokens, "a multiple of 8 from 8 to 256")
        if self.tiles not in (1, 2, 4):
            raise ArgumentError("tiles", self.tiles, "1, 2 or 4")
        if self.warpgroups not in range(1, 9):
            raise ArgumentError("warpgroups", self.warpgroups, "1 to 8")
        if self.stage_k not in (64, 128, 256, 512):
            raise ArgumentError("stage_k", self.stage_k, "64, 128, 256 or 512")
        if self.wgmma and self.tiles * self.stage_k < 128:
            raise ArgumentError(
                "stage_k",
                self.stage_k,
                "128 or more with one tile",
                "Fragments alternate between two buffers.",
            )
        if self.slots < 2:
            raise ArgumentError("slots", self.slots, "2 or more: a stage ends when the next one has arrived")
        if self.split not in range(1, 17):
            raise ArgumentError("split", self.split, "1 to 16, the largest cluster")
        if self.ctas not in range(65536):
            raise ArgumentError("ctas", self.ctas, "0 to 65535")
        if self.ctas and (self.split > 1 or self.overlay):
            raise ArgumentError("ctas", self.ctas, f"0 with split={self.split}, overlay={self.overlay}")
        if self.span not in (range(1, 17) if self.wgmma else (1,)):
            raise ArgumentError("span", self.span, "1 to 16, or 1 without wgmma")
        if self.min_ctas not in range(1, 17):
            raise ArgumentError("min_ctas", self.min_ctas, "1 to 16")
        if self.threads * self.min_ctas > 2048:
            raise ArgumentError(
                "min_ctas", self.min_ctas, f"at most {2048 // self.threads} CTAs of {self.threads} threads"
            )

    def __str__(self) -> str:
        return f"wide({', '.join(f'{f.name}={getattr(self, f.name)}' for f in fields(self))})"

    @property
    def threads(self) -> int:
        """Threads of a CTA: the warpgroups that multiply and one that fills the ring."""
        return 128 * self.warpgroups + 128

    @property
    def columns(self) -> int:
        """Weight columns of a CTA."""
        return 64 * self.tiles * self.warpgroups

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies when ``min_ctas`` CTAs share an SM: a CTA is launched with as
        many for all of its threads, and its producers give theirs to the others."""
        return self.registers_beside(_PRODUCER_REGISTERS)

    def registers_beside(self, producers: int) -> int:
        """The same where a thread that copies keeps ``producers``."""
        launched = min(255, _REGISTER_FILE // (self.threads * self.min_ctas)) // 8 * 8
        kept = launched * self.threads - 128 * producers
        return min(_MOST_REGISTERS, kept // (128 * self.warpgroups) // 8 * 8)

    def shared_bytes(self, scheme: Scheme) -> int:
        """Dynamic shared memory of a CTA in bytes; the kernel asserts that it computes the same."""
        channelwise = self._channel_rows(scheme)
        row_kinds = 1 if scheme.zeros == "none" else 2
        segments = 0 if channelwise else self._segments(scheme)
        row = 2 * self.columns
        tokens = self.tokens * self.stage_k * 2
        slot = tokens + self.columns * self.stage_k * scheme.bits // 8 + row_kinds * segments * row
        ring = self.slots * -(-slot // 1024) * 1024
        slices = self.tiles * self.tokens // 8
        exchange = 0 if self.split == 1 else self.warpgroups * self.split * -(-slices // self.split) * 2048
        staged = max(ring, exchange) if self.overlay else ring + exchange
        return staged + row_kinds * row * channelwise + 8 * (2 * self.slots + self.warpgroups)

    def _channel_rows(self, scheme: Scheme) -> bool:
        """Whether a CTA keeps the one scale row of a channelwise weight. Stream-K, whose CTAs go from tile to
        tile, stages it like the row of a group."""
        return scheme.group_size == CHANNELWISE and not self.ctas

    def _turns(self, scheme: Scheme) -> tuple[int, int]:
        """Parts of the sums of a single tile and parts of its tokens that take turns: one is folded while the
        other multiplies. Two parts of the sums need their registers, besides 90 for all else."""
        two_sets = not (self.in_place or self._channel_rows(scheme) or scheme.zeros == "offset")
        if self.tiles > 1 or self.span == 1 or not two_sets:
            return 1, 1
        if 3 * self.tokens // 2 + 90 <= self.registers:
            return 2, 1
        return (1, 2) if self.tokens > PART_TOKENS and self.tokens % 16 == 0 else (1, 1)

    def _segments(self, scheme: Scheme) -> int:
        """Runs of k in a stage that have a scale of their own."""
        if scheme.group_size == CHANNELWISE:
            return 1
        return self.stage_k // gcd(scheme.group_size, self.stage_k)

    def _group(self, scheme: Scheme, k: int) -> int:
        """``SF_GROUP``: 0 for one scale row that a CTA keeps. Otherwise the group of a channelwise weight
        ends with a stage."""
        if self._channel_rows(scheme):
            return 0
        if scheme.group_size == CHANNELWISE:
            return -(-k // self.stage_k) * self.stage_k
        return scheme.group_size

    def check(self, scheme: Scheme, k: int, props: DeviceProps) -> None:
        """Raises ``ArgumentError`` when the configuration does not fit the device or the shape."""
        need = self.shared_bytes(scheme)
        if need > props.smem_per_cta:
            allowed = f"at most {props.smem_per_cta} bytes of shared memory per CTA"
            raise ArgumentError("WideConfig", self, allowed, f"It needs {need}.")
        if self.scale_rows > 1 and self.scale_rows * scheme.group_size != self.stage_k:
            allowed = f"1, or stage_k={self.stage_k} over group_size={scheme.group_size}"
            raise ArgumentError("WideConfig.scale_rows", self.scale_rows, allowed)
        if self.in_place and scheme.zeros == "offset" and scheme.group_size != CHANNELWISE:
            raise ArgumentError(
                "WideConfig.in_place", True, "False with offsets", "They are added in plain units."
            )
        stages = -(-k // self.stage_k)
        if self.split > stages:
            raise ArgumentError("WideConfig.split", self.split, f"no more than the {stages} stages of K={k}")
        if self.ctas * 4 * self.warpgroups > COUNTERS:
            allowed = f"at most {COUNTERS // (4 * self.warpgroups)} with {self.warpgroups} warpgroups"
            raise ArgumentError("WideConfig.ctas", self.ctas, allowed)

    def units(self, k: int, n: int) -> int:
        """Stages of all column tiles: what Stream-K deals out for each tile of rows."""
        return -(-n // self.columns) * -(-k // self.stage_k)

    def source(self, scheme: Scheme, k: int, n: int, *, bias: bool) -> KernelSource:
        """The kernel for weights of shape ``[k, n]``; with act-order, x comes with permuted columns."""
        defines = scheme_defines(scheme, k, n, bias=bias) | self.defines(scheme, k)
        defines["SF_CTAS"] = min(self.ctas, self.units(k, n))
        return assemble("swordfish/decode/device/wide.cu", "decode_wide", defines)

    def defines(self, scheme: Scheme, k: int) -> dict[str, int | str]:
        """What ``device/wide_shape.cuh`` and the products need besides the scheme."""
        defines: dict[str, int | str] = {
            "SF_GROUP": self._group(scheme, k),
            "SF_TOKENS": self.tokens,
            "SF_TILES": self.tiles,
            "SF_WARPGROUPS": self.warpgroups,
            "SF_STAGE_K": self.stage_k,
            "SF_SLOTS": self.slots,
            "SF_SCALE_ROWS": self.scale_rows,
            "SF_SPLIT": self.split,
            "SF_CTAS": self.ctas,
            "SF_OVERLAY": int(self.overlay),
            "SF_MIN_CTAS": self.min_ctas,
            "SF_SHARED_BYTES": self.shared_bytes(scheme),
            "SF_USE_WGMMA": int(self.wgmma),
            "SF_IN_PLACE": int(self.in_place),
            "SF_SPAN": self.span,
            "SF_REGISTERS": self.registers,
            "SF_PRODUCER_REGISTERS": _PRODUCER_REGISTERS,
        }
        parts, halves = self._turns(scheme)
        defines |= {"SF_PARTS": parts, "SF_HALVES": halves}
        if self.wgmma:
            defines |= wgmma_defines(self.tokens // halves, scheme)
        return defines

    def launch_config(self, scheme: Scheme, m: int, k: int, n: int) -> LaunchConfig:
        """Launch for ``m`` rows: a cluster for each tile of ``tokens`` rows and ``columns`` columns, or the
        CTAs of Stream-K."""
        ctas, tiles = min(self.ctas, self.units(k, n)), -(-n // self.columns) * -(-m // self.tokens)
        return LaunchConfig(
            grid=(ctas, 1, 1) if ctas else (self.split, tiles, 1),
            block=(self.threads, 1, 1),
            cluster=(self.split, 1, 1),
            shared_bytes=self.shared_bytes(scheme),
            programmatic=True,
        )

    def arguments(
        self,
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        x: torch.Tensor,
        perm: torch.Tensor | None,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> tuple[Argument, ...]:
        """Kernel arguments, in order. ``x`` and ``out`` are 2-D with unit inner stride. Rows of ``x`` are
        16-byte aligned, in packed order and padded to blocks of 64; rows of ``out`` 4-byte aligned if N is
        even."""
        partials, counts = self.workspace(x.device)
        maps = self.maps(words, scales, zeros, x)
        return (*maps, bias, out, partials, counts, x.shape[0], out.stride(0))

    def bind(self, launch: RawLaunch, weight: WeightTensors, shape: tuple[int, int, int]) -> BoundLaunch:
        """A launch with this weight for ``(M, row pitch of x, N)``; what of the tensors it needs is looked up
        now, maps of x when one comes."""
        m, _, n = shape
        words, scales, zeros, _, bias = weight
        b, weight_maps = address(bias), self._weight_maps(words, scales, zeros)
        maps_of_x: dict[int, Argument] = {}

        def run(x: torch.Tensor, x_address: int, out: torch.Tensor, stream: int) -> None:
            x_map = maps_of_x.get(x_address)
            if x_map is None:
                if len(maps_of_x) >= _BOUND_KEPT:
                    maps_of_x.clear()
                x_map = maps_of_x[x_address] = self._token_map(x)
            partials, counts = self.workspace(x.device)
            sums = address(partials), address(counts)
            launch(stream, *weight_maps, x_map, b, out.data_ptr(), *sums, m, n)

        return run

    def workspace(self, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """What Stream-K needs: room for a piece of each CTA, and counters that are zero."""
        if not self.ctas:
            return None, None
        partials = torch.empty(self.ctas * self.columns * self.tokens, dtype=torch.float32, device=device)
        return partials, counters(device, self.ctas * 4 * self.warpgroups)

    def maps(
        self, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, x: torch.Tensor
    ) -> tuple[Argument, ...]:
        """Tensor maps of words ``[N blocks, K blocks, words]``, rows of scales, rows of zero points and
        tokens."""
        return (*self._weight_maps(words, scales, zeros), self._token_map(x))

    def _weight_maps(
        self, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
    ) -> tuple[Argument, Argument, Argument]:
        blocks, depth = self.columns // 64, self.stage_k // 64
        scale_map = _map(scales, _rows, blocks, self.scale_rows)
        return (
            _map(words, _words, depth * words.shape[2] // 512, blocks),
            scale_map,
            scale_map if zeros is None else _map(zeros, _rows, blocks, self.scale_rows),
        )

    def _token_map(self, x: torch.Tensor) -> Argument:
        return _map(x, _tokens, self.tokens, self.stage_k // 64)


def _map(
    tensor: torch.Tensor, describe: Callable[[torch.Tensor, int, int], TensorMap], *box: int
) -> TensorMap | bytes:
    """The map of a tensor; encoded once for a CUDA tensor of this address and shape."""
    if not tensor.is_cuda:
        return describe(tensor, *box)
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(0), tensor.dtype, describe, box)
    encoded = _encoded.get(key)
    if encoded is None:
        if len(_encoded) >= _ENCODED_KEPT:
            _encoded.clear()
        encoded = _encoded[key] = describe(tensor, *box).encoded
    return encoded


def _tokens(x: torch.Tensor, rows: int, depth: int) -> TensorMap:
    """``x`` as panels of 64 k: ``depth`` of them in a box, each with ``rows`` swizzled rows of 128 bytes."""
    m, k = x.shape
    dtype, dims = str(x.dtype).removeprefix("torch."), (64, m, k // 64)
    return TensorMap(
        x, dtype, dims, (x.stride(0) * 2, 128), (64, rows, depth), swizzle="128", l2_promotion="256"
    )


def _words(words: torch.Tensor, depth: int, blocks: int) -> TensorMap:
    """Packed words as pieces of 2 KB: ``depth`` along K and ``blocks`` of 64 columns in a box."""
    n_blocks, k_blocks, block = words.shape
    pieces = k_blocks * (block // 512)
    return TensorMap(
        words,
        "uint64",
        (256, pieces, n_blocks),
        (2048, pieces * 2048),
        (256, depth, blocks),
        l2_promotion="256",
    )


def _rows(scales: torch.Tensor, blocks: int, rows: int) -> TensorMap:
    """Scale or zero rows as blocks of 64 columns; the rows are padded to whole blocks."""
    groups, n = scales.shape
    dims, strides = (64, -(-n // 64), groups), (128, scales.stride(0) * 2)
    return TensorMap(scales, str(scales.dtype).removeprefix("torch."), dims, strides, (64, blocks, rows))


def wgmma_defines(tokens: int, scheme: Scheme, *, shared_a: bool = False) -> dict[str, int | str]:
    """The instruction of ``device/wgmma.cuh`` for one token count: its accumulators are operands 0 to
    ``tokens/2 - 1``. ``shared_a``: both operands are read from shared memory."""
    d, dtype = tokens // 2, "bf16" if scheme.dtype == "bfloat16" else "f16"
    accumulators = ", ".join(f"%{i}" for i in range(d))
    if shared_a:
        last, a, transposed = d + 2, f"%{d}, %{d + 1}", "0, 0"
    else:
        last, a, transposed = d + 5, f"{{%{d}, %{d + 1}, %{d + 2}, %{d + 3}}}, %{d + 4}", "0"
    text = (
        f"{{\\n\\t.reg .pred accumulate;\\n\\tsetp.ne.b32 accumulate, %{last}, 0;\\n\\t"
        f"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{dtype}.{dtype} "
        f"{{{accumulators}}}, {a}, accumulate, 1, 1, {transposed};\\n\\t}}"
    )
    defines: dict[str, int | str] = {
        "SF_WGMMA": f'"{text}"',
        "SF_WGMMA_TOKENS": tokens,
        "SF_WGMMA_ACCUMULATORS": ", ".join(f'"+f"(d[{i}])' for i in range(d)),
    }
    return defines | {"SF_SHARED_A": 1} if shared_a else defines
