"""The compile-time constants that kernels take from a scheme and a shape."""

from __future__ import annotations

from swordfish.scheme import Scheme

__all__ = ["scheme_defines", "value_defines"]

_ZERO_KINDS = {"none": 0, "integer": 1, "offset": 2}
"""Values of ``SF_ZEROS_*`` in device/dequant.cuh."""


def value_defines(scheme: Scheme) -> dict[str, int | str]:
    """``SF_BITS``, ``SF_BF16``, ``SF_ZEROS``: how a code becomes a value."""
    return {
        "SF_BITS": scheme.bits,
        "SF_BF16": int(scheme.dtype == "bfloat16"),
        "SF_ZEROS": _ZERO_KINDS[scheme.zeros],
    }


def scheme_defines(scheme: Scheme, k: int, n: int, *, bias: bool) -> dict[str, int | str]:
    """``SF_BITS``, ``SF_BF16``, ``SF_ZEROS``, ``SF_K``, ``SF_N``, ``SF_BIAS``; no groups."""
    return value_defines(scheme) | {"SF_K": k, "SF_N": n, "SF_BIAS": int(bias)}
