"""Mixtures of experts: packed weights of many experts, and a layer over them in few launches."""

from swordfish.experts.activation import ACTIVATIONS, Activation
from swordfish.experts.choose import ExpertPlan, plan_experts
from swordfish.experts.load import load_experts
from swordfish.experts.module import MoE
from swordfish.experts.ops import moe, plan_layer
from swordfish.experts.weights import ExpertWeights

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "ExpertPlan",
    "ExpertWeights",
    "MoE",
    "load_experts",
    "moe",
    "plan_experts",
    "plan_layer",
]
