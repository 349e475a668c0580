"""Products whose plan, kernel and weight are known from an earlier call: a few checks, then the launch.

At one row most of a call's time is Python that works out again what the last call of the layer knew. Here a
weight is found by its tensor of words, and if nothing about it has changed the launch with its addresses is
there already.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from swordfish.decode.bound import BoundLaunch
from swordfish.runtime import torch_cuda
from swordfish.runtime.arguments import CPU_DEVICE

if TYPE_CHECKING:
    from swordfish.calls import DecodeCall
    from swordfish.dispatch import Overrides
    from swordfish.operators import Operands
    from swordfish.packed import PackedWeight

__all__ = ["forget", "keep", "product"]


class _Known:
    """A weight on a GPU as its calls have seen it; ``bound`` by number of rows."""

    __slots__ = (
        "bias",
        "bound",
        "device",
        "dtype",
        "optional",
        "perm",
        "scale_address",
        "scale_rows",
        "scheme",
        "wishes",
        "word_address",
        "words",
        "zero_rows",
    )

    def __init__(self, given: Operands, bias: torch.Tensor | None, wishes: Overrides) -> None:
        words, self.scale_rows, self.zero_rows, self.perm, *_ = given
        key, self.scheme, self.bias, self.wishes = id(words), given[4:], bias, wishes
        # The other tensors are held: an object that is gone cannot be mistaken for a new one. Words, by far
        # the largest, are not, and everything goes with them.
        self.words = weakref.ref(words, lambda _, pop=_known.pop: pop(key, None))  # type: ignore[misc]
        self.word_address, self.scale_address = words.data_ptr(), self.scale_rows.data_ptr()
        self.optional = [(t, t.data_ptr()) for t in (self.zero_rows, self.perm, bias) if t is not None]
        self.device, self.dtype = words.get_device(), self.scale_rows.dtype
        self.bound: dict[int, BoundLaunch] = {}

    def is_made_of(self, given: Operands, bias: torch.Tensor | None, wishes: Overrides) -> bool:
        """The same tensors in the same memory (``tensor.data = other`` changes it), understood and planned
        alike."""
        words, scale_rows = given[0], given[1]
        return (
            self.words() is words
            and self.scale_rows is scale_rows
            and self.zero_rows is given[2]
            and self.perm is given[3]
            and self.bias is bias
            and self.scheme == given[4:]
            and (self.wishes is wishes or self.wishes == wishes)
            and self.word_address == words.data_ptr()
            and self.scale_address == scale_rows.data_ptr()
            and not (self.optional and any(t.data_ptr() != at for t, at in self.optional))
        )


_ROWS_KEPT = 256
"""Row counts remembered of a weight, a kilobyte or two each; then it begins anew. A server of many layers
meets thousands."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
_known: dict[int, _Known] = {}
"""By ``id`` of the words."""


def product(
    x: torch.Tensor, given: Operands, bias: torch.Tensor | None, wishes: Overrides
) -> torch.Tensor | None:
    """``x @ W + bias`` for a weight as operators take it, or ``None``: not a call that :func:`keep` has seen
    before with another x.

    Nothing but the kernel may have to see the call because of x or where it is made. Weights that something
    else has to see, tensor subclasses, are not kept.
    """
    known = _known.get(id(given[0]))
    if known is None or not known.is_made_of(given, bias, wishes):
        return None
    k, n = given[4], given[5]
    shape, device = x.shape, known.device
    if (
        not shape
        or shape[-1] != k
        or x.dtype is not known.dtype
        or x.get_device() != device
        or not x.is_contiguous()
    ):
        return None
    m = shape[0] if len(shape) == 2 else x.numel() // k
    launch, x_address = known.bound.get(m), x.data_ptr()
    if launch is None or x_address % 16:
        return None
    out = torch_cuda.empty((m, n), (n, 1), known.dtype)
    if out.get_device() != device:  # it is on the current one
        return None
    if len(shape) == 2:
        launch(x, x_address, out, torch_cuda.raw_stream(device))
        return out
    launch(x.view(m, k), x_address, out, torch_cuda.raw_stream(device))
    return out.view(*shape[:-1], n)


def keep(
    call: DecodeCall,
    m: int,
    w: PackedWeight,
    given: Operands,
    bias: torch.Tensor | None,
    wishes: Overrides,
) -> None:
    """Remember the call for ``m`` rows of this weight, ``given`` as operators take it, if it is on a GPU, of
    tensors that are nothing else as well, and not every call is to be logged."""
    plain = all(type(t) in _PLAIN for t in (*given[:4], bias))
    if w.words.get_device() == CPU_DEVICE or wishes.log or not plain:
        return
    known = _known.get(id(w.words))
    if known is None or not known.is_made_of(given, bias, wishes):
        known = _known[id(w.words)] = _Known(given, bias, wishes)
    if m not in known.bound:
        if len(known.bound) >= _ROWS_KEPT:
            known.bound.clear()
        known.bound[m] = call.bind(w, bias)


def forget() -> None:
    """Forget all calls, because their plans are out of date."""
    _known.clear()
