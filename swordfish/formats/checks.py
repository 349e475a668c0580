"""Checks shared by the formats: configuration values and tensors, each error naming value and expectation."""

from __future__ import annotations

import warnings

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.scheme import CHANNELWISE

__all__ = [
    "FLOATS",
    "as_bits",
    "as_flag",
    "as_group_size",
    "canonical",
    "check_shape",
    "check_tensor",
    "group_of_row",
    "resolve_group_size",
    "resolve_groups",
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes that scales and biases have in checkpoints."""


def as_bits(value: object, supported: tuple[int, ...] = (4, 8)) -> int:
    """A bit width: ``4``, ``4.0`` and ``"4"`` all mean 4. Raises ``ArgumentError`` outside ``supported``."""
    number = _whole(value)
    if number not in supported:
        raise ArgumentError("bits", value, " or ".join(str(b) for b in supported))
    return number


def as_group_size(value: object) -> int:
    """A group size: -1 or ``None`` is channelwise, else a positive whole number. Raises ``ArgumentError``."""
    if value is None:
        return CHANNELWISE
    number = _whole(value)
    if number is None or (number != CHANNELWISE and number <= 0):
        raise ArgumentError("group_size", value, "-1 (channelwise) or a positive multiple of 32")
    return number


def as_flag(name: str, value: object) -> bool:
    """A JSON boolean. Raises ``ArgumentTypeError`` on anything else: the string "false" is not false."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(name, repr(value), "true or false")
    return value


def check_tensor(name: str, tensor: torch.Tensor, ndim: int, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raises ``ArgumentTypeError`` on another dtype and ``ArgumentError`` on another rank."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(name, type(tensor).__name__, "a torch.Tensor")
    if tensor.dtype not in dtypes:
        seen = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise ArgumentTypeError(name, seen, " or ".join(str(dtype) for dtype in dtypes))
    if tensor.ndim != ndim:
        raise ArgumentError(f"{name}.shape", tuple(tensor.shape), f"{ndim} dimension{'s' * (ndim > 1)}")


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...], why: str) -> None:
    """Raises ``ArgumentError`` unless ``tensor.shape == expected``; ``why`` says where the expectation is
    from.
    """
    if tuple(tensor.shape) != expected:
        raise ArgumentError(f"{name}.shape", tuple(tensor.shape), f"{expected} ({why})")


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with the strides of its shape, copied if need be: a dimension of 1 may have any stride."""
    return tensor.reshape(-1).view(tensor.shape)


def resolve_group_size(group_size: int | None, k: int, groups: int) -> int:
    """Group size that agrees with ``groups`` scale rows of ``k`` inputs in natural order; ``None`` reads it
    off those.

    A single group of a number of inputs that is no multiple of 32 becomes channelwise, which means the
    same. Raises ``ArgumentError`` when the scale rows contradict the group size (a wrong group size is
    never used in silence) and on a last group that is neither whole nor a multiple of 32 inputs (a row of
    ``qweight`` is missing).
    """
    if group_size is None:
        if groups == 1:
            return CHANNELWISE
        if groups < 1 or k % groups:
            raise ArgumentError(
                "scale rows", groups, f"a divisor of K={k}, since the config gives no group_size"
            )
        return k // groups
    expected = 1 if group_size == CHANNELWISE else -(-k // group_size)
    if groups != expected:
        raise ArgumentError("scale rows", groups, f"{expected} (K={k}, group_size={group_size})")
    if groups == 1 and k % 32:
        return CHANNELWISE
    if group_size != CHANNELWISE and k % group_size and k % 32:
        raise ArgumentError("K", k, f"a multiple of group_size={group_size} or of 32")
    return group_size


def resolve_groups(
    g_idx: torch.Tensor | None,
    k: int,
    groups: int,
    *,
    group_size: int | None,
    act_order: bool | None,
    name: str,
) -> tuple[torch.Tensor | None, int]:
    """Row order and group size of a layer: ``g_idx``, or ``None`` when it says natural order (or, all -1,
    nothing).

    ``act_order`` is what the config says: true without a ``g_idx`` tensor raises, false with one that
    reorders warns and uses it, because it is what the codes were made with. ``name`` is the tensor's. With
    act-order a layer may have more scale rows than its inputs need (a shard that keeps the whole table).
    Packing checks the entries.
    """
    if g_idx is None:
        if act_order and groups > 1:
            raise ArgumentError(
                name, None, f"int32 [K={k}], the group of each input, since the config says act-order"
            )
        return None, resolve_group_size(group_size, k, groups)
    check_tensor(name, g_idx, 1, (torch.int32, torch.int64, torch.int16))
    size = resolve_group_size(None, k, groups) if group_size is None else group_size
    natural = group_of_row(None, k, size, g_idx.device)
    if bool((g_idx == -1).all()) or (g_idx.shape == natural.shape and bool((g_idx == natural).all())):
        return None, resolve_group_size(group_size, k, groups)
    if act_order is False:
        warnings.warn(
            f"the config says no act-order but {name} reorders the groups: {name} is used", stacklevel=4
        )
    return g_idx, size


def group_of_row(g_idx: torch.Tensor | None, k: int, group_size: int, device: torch.device) -> torch.Tensor:
    """The scale row of each of ``k`` inputs, int64 ``[K]`` on ``device``."""
    if g_idx is not None:
        return g_idx.long()
    return torch.arange(k, device=device) // (k if group_size == CHANNELWISE else group_size)


def _whole(value: object) -> int | None:
    """``value`` as an int if it is a whole number written as int, float or decimal string."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    return None
