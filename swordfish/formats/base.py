"""What a checkpoint format is, and the registry of the formats that Swordfish reads.

Adding a format is one subclass of :class:`CheckpointFormat` and one :func:`register`; loading, the ``from_*``
functions and the tests find it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from swordfish.errors import ArgumentError
from swordfish.weights import QuantizedWeight

__all__ = [
    "FORMATS",
    "CheckpointFormat",
    "Config",
    "LayerParams",
    "Tensors",
    "get_format",
    "register",
    "select_format",
]

Tensors = Mapping[str, torch.Tensor]
"""The tensors of one layer by the last part of their name: ``qweight``, ``scales``, ..."""

Config = Mapping[str, Any]
"""A quantisation config as parsed from JSON."""


@dataclass(frozen=True)
class LayerParams:
    """How one layer of a checkpoint is quantised, after its per-layer overrides.

    ``group_size`` is ``-1`` for channelwise and ``None`` when the config does not say, in which case it is
    read off the shape of the scales. ``act_order`` is ``None`` when the config does not say; the ``g_idx``
    tensor decides.
    """

    bits: int
    group_size: int | None = None
    symmetric: bool = True
    act_order: bool | None = None


class CheckpointFormat(ABC):
    """One checkpoint format: reading, reference dequantisation, config parsing and shape rules.

    Subclasses hold no state; one instance is registered.
    """

    name: ClassVar[str]
    """Key in :data:`FORMATS`."""
    quant_method: ClassVar[str]
    """``quant_method`` of the configs that this format belongs to."""
    variants: ClassVar[tuple[str, ...]]
    """Values of :meth:`variant` that mean this format."""
    bits: ClassVar[tuple[int, ...]]
    required: ClassVar[tuple[str, ...]]
    """Names of the tensors that a layer must have; the first one marks a layer as quantised."""
    optional: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def variant(self, config: Config) -> str:
        """The sub-format that ``config`` (of this class's ``quant_method``) declares."""

    @abstractmethod
    def layer_params(self, config: Config, layer: str) -> LayerParams | None:
        """Parameters of ``layer`` under ``config``; ``None`` when the config excludes the layer from
        quantisation.

        Raises ``ArgumentError`` on a value that is not supported or a list whose meaning is not clear.
        """

    @abstractmethod
    def shape(self, tensors: Tensors, params: LayerParams) -> tuple[int, int]:
        """``(K, N)`` of the layer. Raises ``ArgumentError`` or ``ArgumentTypeError`` on a tensor of wrong
        shape or dtype.
        """

    @abstractmethod
    def read(self, tensors: Tensors, params: LayerParams) -> QuantizedWeight:
        """The layer in canonical form. Its codes are unpacked a range of columns at a time, when they are
        packed.
        """

    @abstractmethod
    def dequantize(self, tensors: Tensors, params: LayerParams) -> torch.Tensor:
        """Reference: float32 ``[K, N]`` from the format's own formula, each code taken from its bit
        position.
        """


FORMATS: dict[str, CheckpointFormat] = {}
"""Every registered format by name."""


def register(cls: type[CheckpointFormat]) -> type[CheckpointFormat]:
    """Class decorator that adds a format to :data:`FORMATS`. Raises ``ValueError`` when the name is taken."""
    if cls.name in FORMATS:
        raise ValueError(f"format {cls.name!r} is already registered")
    FORMATS[cls.name] = cls()
    return cls


def get_format(name: str) -> CheckpointFormat:
    """The format called ``name``. Raises ``ArgumentError`` listing the known names."""
    if name not in FORMATS:
        raise ArgumentError("format", name, " or ".join(FORMATS))
    return FORMATS[name]


def select_format(config: Config) -> CheckpointFormat:
    """The format that a quantisation config describes.

    Raises ``ArgumentError`` naming ``quant_method`` or the sub-format when none matches.
    """
    method = str(config.get("quant_method") or config.get("method") or "").lower()
    candidates = [f for f in FORMATS.values() if f.quant_method == method]
    if not candidates:
        raise ArgumentError(
            "quant_method", method or None, _listed({f.quant_method for f in FORMATS.values()})
        )
    variant = candidates[0].variant(config)
    for candidate in candidates:
        if variant in candidate.variants:
            return candidate
    raise ArgumentError(f"{method} format", variant, _listed({v for f in candidates for v in f.variants}))


def _listed(names: set[str]) -> str:
    return " or ".join(repr(name) for name in sorted(names))
