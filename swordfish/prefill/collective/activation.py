"""What stands between gate_up and down, on fp32 sums; the arithmetic of
``swordfish/experts/device/activation.cuh``."""

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute


@dataclass(frozen=True)
class Gate:
    """An activation, see :class:`swordfish.experts.Activation`; the constants are those of ``swiglu``."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0
    limit: float = 0.0

    def __call__(self, gate: Any, up: Any) -> Any:
        if self.kind == "silu":
            return gate * sigmoid(gate) * up
        if self.kind == "gelu":
            return 0.5 * gate * (1.0 + cute.math.erf(gate * 0.70710678118654752)) * up
        if self.kind == "gelu_tanh":
            return gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        gate = cute.arch.fmin(gate, self.limit)
        up = cute.arch.fmin(cute.arch.fmax(up, -self.limit), self.limit)
        return gate * sigmoid(self.alpha * gate) * (up + self.beta)


def sigmoid(x):
    """``1 / (1 + e^-x)`` with the fast exponential and reciprocal: far below one rounding to 16 bits."""
    return cute.arch.rcp_approx(1.0 + cute.math.exp2(x * -1.4426950408889634, fastmath=True))
