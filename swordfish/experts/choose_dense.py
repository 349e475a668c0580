"""When an expert layer dequantises its weights first: a pure function of shape, scheme and device."""

from __future__ import annotations

from collections.abc import Sequence

from swordfish.experts.choose_grouped import ProductShape
from swordfish.experts.dense import ExpertDense
from swordfish.experts.kernels import SHORT_K
from swordfish.runtime.device import DeviceProps

__all__ = ["choose_dense", "dense_rows", "no_dense"]


def no_dense(props: DeviceProps) -> str | None:
    """Why a device does not multiply dequantised weights of experts; ``None`` if it does."""
    return None if props.arch == "sm_90a" else f"the kernel needs wgmma, which {props.arch} does not have"


def dense_rows(products: Sequence[ProductShape]) -> tuple[int, str]:
    """Fewest expected rows of an expert for dequantising first, and why. docs/moe.md has the measurements.

    With a short K (of down) the wide kernel has more to begin and to store for what it multiplies. int8 gains
    earlier: its words take more of the wide kernel's time and hardly more of dequantising.
    """
    eight = any(scheme.bits == 8 for _, _, scheme in products)
    if any(k < SHORT_K for k, _, _ in products):
        return (1500 if eight else 1600), "they make up for dequantising, with a short K sooner"
    return (2900 if eight else 4600), "they make up for dequantising"


def choose_dense(props: DeviceProps) -> ExpertDense:
    """The tiles, the same for every shape: blocks of 128 to 176 rows differ by up to 4 % either way, and the
    largest leave more of themselves empty."""
    return ExpertDense(160, 4, props.sm_count)
