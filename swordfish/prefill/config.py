"""What one prefill kernel is: a checked tile, and everything that follows from it.

The kernel computes ``y[M, N] = x[M, K] @ W[K, N]`` with the operands swapped: a *tile* is ``128 * ctas``
columns of W (rows of the tensor-core instruction) by ``tokens`` rows of x (its columns).
``docs/prefill.md`` describes the design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Literal

from swordfish.errors import ArgumentError
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import CHANNELWISE, Scheme

__all__ = ["ARCHITECTURES", "STAGE_K", "STEP_K", "TILE_ROWS", "PrefillConfig", "serves_groups"]

ARCHITECTURES = ("sm_100a", "sm_103a", "sm_110a")
"""Those with tcgen05."""
TILE_ROWS = 128
"""Weight columns of one CTA: the rows of its half of the instruction."""
STEP_K = 64
"""K depth of one stage of dequantised weights (operand A)."""
STAGE_K = 128
"""K depth of one stage of packed weights, scales and tokens: two steps."""


TMEM_COLUMNS = 512
EPILOGUE_WARPS = 4
EPILOGUE_TOKENS = 32
EPILOGUE_BUFFERS = 2
SHARED_LIMIT = 227 * 1024
"""Bytes a CTA may have on every tcgen05 architecture (CUDA C++ Programming Guide, compute capabilities 10.x
and 11.0)."""

_OPERAND_COLUMNS = STEP_K // 2  # TMEM columns of 32 bits hold two 16-bit values
_MAX_STAGES = 8
_MAX_TURN = 8
_LEAST_STAGES = 3


GROUPS_SERVED = "32, 64, a multiple of 128 or -1"


def serves_groups(group_size: int) -> bool:
    """Whether a stage holds whole groups, or a group whole stages."""
    return group_size in (32, 64, CHANNELWISE) or group_size % STAGE_K == 0


@dataclass(frozen=True)
class PrefillConfig:
    """One kernel: the scheme it reads and the tile it computes.

    ``scheme``   how codes become values; group size 32, 64, a multiple of 128 or channelwise.
    ``tokens``   rows of x in a tile: a multiple of 32 from 32 to 256.
    ``ctas``     2: a pair of CTAs shares an instruction of 256 weight columns; 1: 128 columns.
    ``home``     where dequantised weights live: ``"tmem"`` or ``"shared"`` memory.
    ``slices``   cuts K into so many slices at most (split-K): each writes fp32 sums to a workspace, which a
                 second kernel adds up. One kernel serves every number above 1.
    ``grouped``  the product of a layer's experts (``swordfish/experts/grouped.py``): tiles are blocks of
                 rows of one expert, and results leave from registers.

    Everything else is derived: stages, warps, TMEM columns, barriers and shared memory.

    Raises:
        ArgumentError: a value outside these sets, or a tile that fits neither shared memory nor TMEM.
    """

    scheme: Scheme
    tokens: int = 192
    ctas: int = 2
    home: Literal["tmem", "shared"] = "tmem"
    slices: int = 1
    grouped: bool = False

    def __post_init__(self) -> None:
        if not serves_groups(self.scheme.group_size):
            raise ArgumentError(
                "group_size", self.scheme.group_size, f"{GROUPS_SERVED} for the prefill kernel"
            )
        if self.tokens not in range(32, 257, 32):
            raise ArgumentError("tokens", self.tokens, "a multiple of 32 from 32 to 256")
        if self.ctas not in (1, 2):
            raise ArgumentError("ctas", self.ctas, "1 or 2")
        if self.home not in ("tmem", "shared"):
            raise ArgumentError("home", repr(self.home), "'tmem' or 'shared'")
        if self.slices < 1:
            raise ArgumentError("slices", self.slices, "1 or more")
        if self.grouped and self.slices > 1:
            raise ArgumentError("slices", self.slices, "1 for a grouped product")
        if self.input_stages < _LEAST_STAGES:
            need = self._shared_bytes(_LEAST_STAGES)
            raise ArgumentError(
                "tokens",
                self.tokens,
                f"a tile whose {_LEAST_STAGES} input stages fit {SHARED_LIMIT} bytes of shared memory",
                f"ctas={self.ctas}, home={self.home!r} and {self.scheme.bits}-bit weights need {need}.",
            )

    def __str__(self) -> str:
        return f"tile(tokens={self.tokens}, ctas={self.ctas}, home={self.home!r}, slices={self.slices})"

    def refused_by(self, props: DeviceProps) -> str | None:
        """Why a device cannot run the kernel; ``None`` if it can."""
        if props.arch not in ARCHITECTURES:
            return f"{props.arch} has no tcgen05 instructions"
        if props.sm_count < self.ctas:
            return f"a cluster of {self.ctas} CTAs needs at least {self.ctas} SMs, not {props.sm_count}"
        if props.smem_per_cta < self.shared_bytes:
            return f"a CTA needs {self.shared_bytes} bytes of shared memory, more than {props.smem_per_cta}"
        return None

    @property
    def partial(self) -> bool:
        """Whether the kernel writes partial sums to a workspace instead of y."""
        return self.slices > 1

    # -- stages
    # --------------------------------------------------------------------------------------------------

    @property
    def accumulators(self) -> int:
        """Accumulator stages in TMEM: 2 where they fit, so that the epilogue overlaps the next tile."""
        operand = 2 * _OPERAND_COLUMNS if self.home == "tmem" else 0
        return 2 if 2 * self.tokens + operand <= TMEM_COLUMNS else 1

    @property
    def operand_stages(self) -> int:
        """Stages of dequantised weights, one per 64-deep step; an even number."""
        if self.home == "shared":
            return 4
        return min(8, (TMEM_COLUMNS - self.accumulators * self.tokens) // (2 * _OPERAND_COLUMNS) * 2)

    @property
    def operand_column(self) -> int:
        """First TMEM column of the operand stages, behind the accumulators."""
        return self.accumulators * self.tokens

    @property
    def tmem_columns(self) -> int:
        """TMEM columns in use (all 512 are allocated: one CTA owns the SM)."""
        operand = self.operand_stages * _OPERAND_COLUMNS if self.home == "tmem" else 0
        return self.operand_column + operand

    @property
    def input_stages(self) -> int:
        """Stages of packed weights, and of tokens: the most that fit and that repeat within 8 units of work.

        The Transform is unrolled over one *turn*, after which every ring is back at its first stage.
        """
        for stages in range(_MAX_STAGES, 0, -1):
            if self._shared_bytes(stages) <= SHARED_LIMIT and self._turn(stages) <= _MAX_TURN:
                return stages
        return 0

    @property
    def turn(self) -> int:
        """Input stages after which input ring, operand ring and Transform groups all start over."""
        return self._turn(self.input_stages)

    def _turn(self, stages: int) -> int:
        return lcm(stages, self.operand_stages // 2)

    def _groups(self, stages: int) -> int:
        return 2 if stages % 2 == 0 and self.operand_stages % 4 == 0 else 1

    # -- warps
    # ---------------------------------------------------------------------------------------------------

    @property
    def transform_groups(self) -> int:
        """Groups of four Transform warps; they take input stages in turn, so both rings hold whole rounds
        of them."""
        return self._groups(self.input_stages)

    @property
    def first_transform_warp(self) -> int:
        return EPILOGUE_WARPS

    @property
    def weight_warp(self) -> int:
        return EPILOGUE_WARPS + 4 * self.transform_groups

    @property
    def token_warp(self) -> int:
        return self.weight_warp + 1

    @property
    def mma_warp(self) -> int:
        return self.weight_warp + 2

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * (self.weight_warp + 3)

    # -- shared memory
    # -------------------------------------------------------------------------------------------

    @property
    def block_bytes(self) -> int:
        """Bytes of a packed 64 x 64 block."""
        return 512 * self.scheme.bits

    @property
    def weight_stage_bytes(self) -> int:
        """Packed bytes of a stage: 2 x 2 blocks."""
        return 4 * self.block_bytes

    @property
    def groups_per_stage(self) -> int:
        """Groups of a stage; 1 also where a group spans several stages."""
        return STAGE_K // self.scheme.group_size if 0 < self.scheme.group_size < STAGE_K else 1

    def group_stages(self, k_stages: int) -> int:
        """Stages of a group, at least 1; ``k_stages`` of a channelwise weight."""
        return max(
            1, k_stages if self.scheme.group_size == CHANNELWISE else self.scheme.group_size // STAGE_K
        )

    @property
    def scales_results(self) -> bool:
        """Whether the epilogue multiplies by the scales, and the Transform makes exact integers.

        True of channelwise weights, but for those with offsets, which no factor of the result can express.
        """
        return self.scheme.group_size == CHANNELWISE and self.scheme.zeros != "offset"

    @property
    def rows(self) -> tuple[str, ...]:
        """Which rows travel with the packed weights: ``"scales"``, ``"zeros"``, both or none."""
        scales = () if self.scales_results else ("scales",)
        return scales if self.scheme.zeros == "none" else (*scales, "zeros")

    @property
    def row_stage_bytes(self) -> int:
        """Bytes of a stage's rows of one kind."""
        return self.groups_per_stage * TILE_ROWS * 2

    @property
    def rows_stage_bytes(self) -> int:
        """Bytes of all rows of a stage."""
        return len(self.rows) * self.row_stage_bytes

    @property
    def cta_tokens(self) -> int:
        """Token rows that one CTA holds: its half of operand B."""
        return self.tokens // self.ctas

    @property
    def token_step_bytes(self) -> int:
        """Bytes of a CTA's tokens for one 64-deep step: rows of 128 bytes."""
        return self.cta_tokens * STEP_K * 2

    @property
    def operand_stage_bytes(self) -> int:
        """Bytes of dequantised weights in shared memory for one 64-deep step; 0 when they live in TMEM."""
        return TILE_ROWS * STEP_K * 2 if self.home == "shared" else 0

    @property
    def output_bytes(self) -> int:
        """Bytes of the epilogue's staging buffers."""
        direct = self.partial or self.grouped
        return 0 if direct else EPILOGUE_WARPS * EPILOGUE_BUFFERS * 32 * EPILOGUE_TOKENS * 2

    @property
    def barriers(self) -> int:
        """mbarriers: a full and an empty one for each stage of each ring."""
        return 2 * (2 * self.input_stages + self.operand_stages + self.accumulators)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA in bytes."""
        return self._shared_bytes(self.input_stages)

    def _shared_bytes(self, stages: int) -> int:
        inputs = 2 * self.token_step_bytes + self.weight_stage_bytes + self.rows_stage_bytes
        barriers = 2 * (2 * stages + self.operand_stages + self.accumulators)
        operand = self.operand_stages * self.operand_stage_bytes
        return stages * inputs + operand + self.output_bytes + 8 * barriers + 4

    # -- numbers
    # -------------------------------------------------------------------------------------------------

    @property
    def fold(self) -> int:
        """Dequantised weights are ``2**-fold`` times their values; the epilogue multiplies it back (exact).

        bf16 weights without integer zero points are made by one fused multiply-add whose factor is the
        scale times 2**133. Folding 2**-32 into it admits scales below 2**27, and leaves those from 2**-94
        exact. Without a scale the factor is 2**127, the largest power of two.
        """
        if self.scheme.dtype == "float16":
            return 0
        if self.scales_results:
            return 6
        return 0 if self.scheme.zeros == "integer" else 32

    # -- plain values
    # --------------------------------------------------------------------------------------------

    def for_scheme(self, scheme: Scheme) -> PrefillConfig:
        """The same tile for another scheme."""
        return replace(self, scheme=scheme)

    def flat(self) -> dict[str, int | str | bool]:
        """What the kernel is compiled from, as plain values.

        :meth:`from_flat` is the inverse, up to the number of slices: the kernel knows only whether there are
        several. Groups of whole stages are all alike to it.
        """
        s = self.scheme
        return {
            "bits": s.bits,
            "group_size": CHANNELWISE if self.scales_results else STAGE_K // self.groups_per_stage,
            "dtype": s.dtype,
            "zeros": s.zeros,
            "tokens": self.tokens,
            "ctas": self.ctas,
            "home": self.home,
            "partial": self.partial,
            "grouped": self.grouped,
        }

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> PrefillConfig:
        """See :meth:`flat`."""
        scheme = Scheme(values["bits"], values["group_size"], values["dtype"], values["zeros"])
        slices = 2 if values["partial"] else 1
        return cls(
            scheme, values["tokens"], values["ctas"], values["home"], slices, grouped=values["grouped"]
        )
