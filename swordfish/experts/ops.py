"""``sf.moe``: validation, layout of the operands, and the launches that the plan asks for."""

from __future__ import annotations

import torch

from swordfish.dispatch import props_of
from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.experts.activation import Activation, activation_of
from swordfish.experts.choose import ExpertPlan
from swordfish.experts.operators import divide, operands, run_layer
from swordfish.experts.weights import ExpertWeights
from swordfish.operators import is_plain

__all__ = ["check_map_values", "check_weights", "moe", "plan_layer"]


def moe(
    x: torch.Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    activation: str | Activation = "silu",
    expert_map: torch.Tensor | None = None,
    weight_on_input: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A layer of gated MLP experts: the sum over a token's experts of
    ``router weight * (activation(x W_gate, x W_up) W_down)``.

    Args:
        x: ``[M, K]`` in the dtype of the weights, any strides.
        w13: gate and up of E experts, :meth:`ExpertWeights.stack_gated`.
        w2: down of the same experts, :meth:`ExpertWeights.stack`.
        topk_weights: ``[M, top_k]``, floating; used in fp32.
        topk_ids: ``[M, top_k]`` int32 or int64, global expert ids.
        activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"swiglu"`` (constants of gpt-oss) or an
            :class:`~swordfish.experts.Activation`.
        expert_map: int32 ``[global experts]``: place of an expert among the E here, -1 for one that is
            elsewhere. Without it ids are places.
        weight_on_input: router weights multiply x instead of the result; for ``top_k = 1``.
        out: ``[M, N]`` in the dtype of the weights to write into and return; any strides that do not overlap.

    Returns:
        ``[M, N]``. Sums are fp32 in a fixed order and rounded after the activation and at the end; where the
        rows of all pairs would exceed the L2, these are rounded, too. Many rows an expert
        multiply weights rounded to 16 bits, like the prefill and dense paths of :func:`swordfish.mm`.
        Pairs whose id is negative, beyond the experts or mapped to -1 add nothing; a token with no expert
        here gets zeros.

    CPU tensors are multiplied in fp64, or by the emulated kernels inside :func:`swordfish.emulate`;
    there, ids beyond the experts and maps that name an expert twice or beyond E raise. On a GPU they are
    not read back: what is out of range adds nothing.

    Raises:
        ArgumentError: shapes, devices or values that do not fit. ArgumentTypeError: a wrong dtype.
        UnsupportedDeviceError: a GPU without kernels.
    """
    check_weights(w13, w2)
    act = activation_of(activation)
    _check_operands(x, w13, topk_weights, topk_ids, expert_map)
    if weight_on_input and topk_ids.shape[1] != 1:
        raise ArgumentError(
            "weight_on_input", True, f"False with top_k={topk_ids.shape[1]}", "x would need several weights."
        )
    shape = (x.shape[0], w2.shape[1])
    if out is not None:
        _check_out(out, shape, x)
    if not is_plain(x):
        result: torch.Tensor = torch.ops.swordfish.moe(
            *operands(x, w13, w2, topk_weights, topk_ids, expert_map, act, weight_on_input)
        )
        return result if out is None else out.copy_(result)
    _check_values(topk_ids, expert_map, w13)
    target = out
    if out is None or (out.stride(1) != 1 and out.shape[1] > 1):
        target = torch.empty(shape, dtype=x.dtype, device=x.device)
    assert target is not None
    run_layer(x, w13, w2, topk_weights, topk_ids, expert_map, act, target, weight_on_input)
    return target if out is None or target is out else out.copy_(target)


def plan_layer(
    w13: ExpertWeights, w2: ExpertWeights, tokens: int, top_k: int, expert_map: torch.Tensor | None = None
) -> ExpertPlan:
    """What :func:`moe` would run for this many tokens and experts a token, or for each of the parts that it
    cuts them into, and why."""
    check_weights(w13, w2)
    return divide(tokens, top_k, w13, w2, expert_map, props_of(w13.device))[1]


def check_weights(w13: ExpertWeights, w2: ExpertWeights) -> None:
    """Raises ``ArgumentError`` or ``ArgumentTypeError`` when the two are not the halves of one layer."""
    for name, w, gated in (("w13", w13, True), ("w2", w2, False)):
        if not isinstance(w, ExpertWeights):
            raise ArgumentTypeError(name, type(w).__name__, "ExpertWeights")
        if w.gated != gated:
            made = "ExpertWeights.stack_gated" if gated else "ExpertWeights.stack"
            raise ArgumentError(f"{name}.gated", w.gated, f"{gated}: weights made by {made}")
    for name in ("experts", "dtype", "device"):
        if getattr(w2, name) != getattr(w13, name):
            raise ArgumentError(f"w2.{name}", getattr(w2, name), f"{getattr(w13, name)} like w13")
    if 2 * w2.shape[0] != w13.shape[1]:
        raise ArgumentError("w2.shape", w2.shape, f"K={w13.shape[1] // 2}, half of w13's N={w13.shape[1]}")


def _check_operands(
    x: torch.Tensor,
    w13: ExpertWeights,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
) -> None:
    for name, tensor in (("x", x), ("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, type(tensor).__name__, "a torch.Tensor")
        if tensor.device != w13.device:
            raise ArgumentError(f"{name}.device", tensor.device, f"{w13.device}, where the weights are")
    if x.dtype != w13.dtype:
        raise ArgumentTypeError("x.dtype", x.dtype, f"{w13.dtype}, for which the weights were packed")
    if x.ndim != 2 or x.shape[1] != w13.shape[0]:
        raise ArgumentError("x.shape", tuple(x.shape), f"[tokens, K={w13.shape[0]}]")
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError("topk_ids.dtype", topk_ids.dtype, "torch.int32 or torch.int64")
    if topk_ids.ndim != 2 or topk_ids.shape[0] != x.shape[0]:
        raise ArgumentError("topk_ids.shape", tuple(topk_ids.shape), f"[tokens={x.shape[0]}, top_k]")
    if not topk_weights.is_floating_point():
        raise ArgumentTypeError("topk_weights.dtype", topk_weights.dtype, "a floating-point dtype")
    if topk_weights.shape != topk_ids.shape:
        raise ArgumentError(
            "topk_weights.shape", tuple(topk_weights.shape), f"that of topk_ids, {tuple(topk_ids.shape)}"
        )
    if topk_ids.numel() >= 1 << 31:
        raise ArgumentError("topk_ids", f"{topk_ids.numel()} pairs", "less than 2**31")
    if expert_map is not None:
        check_map(expert_map, w13)
    if x.requires_grad and torch.is_grad_enabled():
        raise ArgumentError("x.requires_grad", True, "False: expert layers have no gradient", "Use no_grad.")


def _check_values(topk_ids: torch.Tensor, expert_map: torch.Tensor | None, w13: ExpertWeights) -> None:
    """What costs nothing to look at: values of tensors on the CPU."""
    if expert_map is not None and expert_map.device.type == "cpu":
        check_map_values(expert_map, w13.experts)
    if topk_ids.device.type == "cpu" and topk_ids.numel():
        everywhere = w13.experts if expert_map is None else expert_map.shape[0]
        highest = int(topk_ids.max())
        if highest >= everywhere:
            allowed = f"at most {everywhere - 1}, the last expert; -1 is nobody"
            raise ArgumentError("topk_ids", highest, allowed)


def check_map(expert_map: torch.Tensor, w13: ExpertWeights) -> None:
    """Raises on a map of wrong type, shape or device."""
    if not isinstance(expert_map, torch.Tensor):
        raise ArgumentTypeError("expert_map", type(expert_map).__name__, "a torch.Tensor or None")
    if expert_map.dtype != torch.int32:
        raise ArgumentTypeError("expert_map.dtype", expert_map.dtype, "torch.int32")
    if expert_map.ndim != 1 or expert_map.shape[0] < 1 or not expert_map.is_contiguous():
        raise ArgumentError("expert_map.shape", tuple(expert_map.shape), "[global experts], contiguous")
    if expert_map.device != w13.device:
        raise ArgumentError("expert_map.device", expert_map.device, f"{w13.device}, where the weights are")


def check_map_values(expert_map: torch.Tensor, experts: int) -> None:
    """Raises ``ArgumentError`` unless the map names each of ``experts`` at most once, else -1."""
    seen: set[int] = set()
    for place in expert_map.tolist():
        if not -1 <= place < experts:
            raise ArgumentError("expert_map", place, f"-1 or a place below the {experts} experts here")
        if place in seen:
            raise ArgumentError("expert_map", f"{place} twice", "every expert here at most once")
        if place >= 0:
            seen.add(place)


def _check_out(out: torch.Tensor, shape: tuple[int, int], x: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise ArgumentTypeError("out", type(out).__name__, "a torch.Tensor or None")
    if out.dtype != x.dtype:
        raise ArgumentTypeError("out.dtype", out.dtype, str(x.dtype))
    if tuple(out.shape) != shape:
        raise ArgumentError("out.shape", tuple(out.shape), str(shape))
    if out.device != x.device:
        raise ArgumentError("out.device", out.device, f"{x.device}, where x is")
    if out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and out.numel():
        raise ArgumentError("out", "memory of x", "memory of its own")
