"""A model of the kernel's time: cycles that each resource needs for one 64-deep step of one tile. Nothing
is measured.

Rates per SM and clock: 8,192 dense 16-bit floating-point operations, 128 bytes of shared memory, 4 issued
warp instructions (CUDA C++ Programming Guide and CUTLASS documentation of tcgen05; Thor's data sheet gives
the same rate per SM: 2,070 sparse fp4 TFLOP/s on 20 SMs at 1.575 GHz). Memory: data-sheet bandwidth over
SMs and boost clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from swordfish.prefill.config import STEP_K, TILE_ROWS, PrefillConfig

__all__ = ["CLOCK_MHZ", "MEMORY_BYTES_PER_CLOCK", "StepCycles", "step_cycles", "transform_instructions"]

TENSOR_OPERATIONS_PER_CLOCK = 8192
SHARED_BYTES_PER_CLOCK = 128
LANES_PER_CLOCK = 128

CLOCK_MHZ = {"sm_100a": 1850.0, "sm_103a": 1850.0, "sm_110a": 1575.0}  # B200, B300, Thor
MEMORY_BYTES_PER_CLOCK = {
    "sm_100a": 8.0e6 / 148 / CLOCK_MHZ["sm_100a"],
    "sm_103a": 8.0e6 / 148 / CLOCK_MHZ["sm_103a"],
    "sm_110a": 0.273e6 / 20 / CLOCK_MHZ["sm_110a"],
}
"""Bytes of device memory per SM and clock."""


@dataclass(frozen=True)
class StepCycles:
    """Cycles of one CTA for one step, and ``memory_bytes``, what it fetches from L2 or memory."""

    mma: float
    transform: float
    shared: float
    weight_bytes: float
    token_bytes: float

    def bound(self) -> tuple[str, float]:
        """The resource inside the SM that needs most cycles, and how many."""
        cycles = {"MMA": self.mma, "Transform issue": self.transform, "shared memory": self.shared}
        name = max(cycles, key=lambda key: cycles[key])
        return name, cycles[name]


def transform_instructions(config: PrefillConfig) -> float:
    """SASS instructions of the Transform per weight, rounded up from counts (docs/prefill.md)."""
    s = config.scheme
    if config.scales_results:
        return 1.8 if (s.bits, s.dtype, s.zeros) == (8, "float16", "integer") else 1.5
    exact = s.dtype == "float16" or s.zeros == "integer"
    if s.bits == 8:
        base = 2.2 if s.dtype == "float16" else 1.9 if exact else 1.4
    else:
        base = 2.0 if exact else 1.6
    return base + 0.06 * (config.groups_per_stage - 1) * len(config.rows)


def step_cycles(config: PrefillConfig) -> StepCycles:
    """The model of one 64-deep step.

    Shared memory carries what TMA writes, what the Transform reads (twice over: a warp reaches 32 of the 64
    columns of a block, so its vectors lie at twice their size and conflict in pairs), operand B as the MMA
    reads it, and with operand A in shared memory 16 KB of ``stmatrix`` and 16 KB that the MMA reads.
    """
    packed = TILE_ROWS * STEP_K * config.scheme.bits / 8
    rows = config.rows_stage_bytes / 2
    tokens = config.token_step_bytes
    operand = 2 * config.operand_stage_bytes
    shared = packed + rows + tokens + 2 * packed + rows + tokens + operand
    operations = 2 * TILE_ROWS * config.tokens * STEP_K  # of this CTA's half
    return StepCycles(
        mma=operations / TENSOR_OPERATIONS_PER_CLOCK,
        transform=TILE_ROWS * STEP_K * transform_instructions(config) / LANES_PER_CLOCK,
        shared=shared / SHARED_BYTES_PER_CLOCK,
        weight_bytes=packed + rows,
        token_bytes=tokens,
    )
