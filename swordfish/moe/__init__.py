"""Mixtures of experts: packed weights of many experts, and a layer over them in few launches."""

from swordfish.moe.activation import ACTIVATIONS, Activation
from swordfish.moe.choose import ExpertPlan, plan_experts
from swordfish.moe.experts import ExpertWeights
from swordfish.moe.ops import moe, plan_layer

__all__ = ["ACTIVATIONS", "Activation", "ExpertPlan", "ExpertWeights", "moe", "plan_experts", "plan_layer"]
