"""What stands between gate_up and down: ``h = activation(gate, up)``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from swordfish.errors import ArgumentError

__all__ = ["ACTIVATIONS", "Activation", "activation_of"]

_KINDS = ("silu", "gelu", "gelu_tanh", "swiglu")
"""By the values of ``SF_ACTIVATION`` in device/activation.cuh."""


@dataclass(frozen=True)
class Activation:
    """A gated activation.

    ============= ==================================================================================
    ``silu``      ``gate * sigmoid(gate) * up``
    ``gelu``      ``gate * (1 + erf(gate / sqrt(2))) / 2 * up``
    ``gelu_tanh`` its approximation by tanh
    ``swiglu``    ``gate * sigmoid(alpha * gate) * (up + beta)``, ``gate`` clamped from above and ``up`` on
                  both sides to ``limit`` first
    ============= ==================================================================================

    ``alpha``, ``beta`` and ``limit`` belong to ``swiglu``; their defaults are those of gpt-oss. Raises
    ``ArgumentError`` on another kind, or a ``limit`` that is not positive.
    """

    kind: str
    alpha: float = 1.702
    beta: float = 1.0
    limit: float = 7.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ArgumentError("activation", repr(self.kind), " or ".join(map(repr, _KINDS)))
        if not self.limit > 0:
            raise ArgumentError("limit", self.limit, "a positive number, infinity for no limit")
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise ArgumentError(name, getattr(self, name), "a finite number")

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """``h`` by torch, elementwise, in the dtype of the operands."""
        if self.kind == "silu":
            return torch.nn.functional.silu(gate) * up
        if self.kind != "swiglu":
            approximate = "tanh" if self.kind == "gelu_tanh" else "none"
            return torch.nn.functional.gelu(gate, approximate=approximate) * up
        gate = gate.clamp(max=self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up.clamp(-self.limit, self.limit) + self.beta)

    def defines(self) -> dict[str, int | str]:
        """Constants of device/activation.cuh."""
        defines: dict[str, int | str] = {"SF_ACTIVATION": _KINDS.index(self.kind)}
        if self.kind == "swiglu":
            for name in ("alpha", "beta", "limit"):
                value = float(getattr(self, name))
                defines[f"SF_{name.upper()}"] = f"{value!r}f" if math.isfinite(value) else "(1.0f / 0.0f)"
        return defines


ACTIVATIONS = {kind: Activation(kind) for kind in _KINDS}
"""By name; ``swiglu`` with the constants of gpt-oss."""


def activation_of(activation: str | Activation) -> Activation:
    """The activation of that name, or itself. Raises ``ArgumentError``."""
    if isinstance(activation, Activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ArgumentError(
            "activation", repr(activation), f"{' or '.join(map(repr, _KINDS))}, or an Activation"
        )
    return ACTIVATIONS[activation]
