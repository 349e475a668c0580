"""Which of the three paths a call takes: thresholds in M, as a function of shape, scheme and device
properties, each with its reason."""

from __future__ import annotations

from swordfish.prefill import unsupported
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme

__all__ = ["MANY_SMS", "PATHS", "choose_path", "prefill_rows"]

PATHS = ("decode", "prefill", "dense")

MANY_SMS = 100
"""Devices with so many SMs have bandwidth and tensor cores in another proportion than small ones."""

_NEVER = 1 << 62


def choose_path(
    m: int, n: int, k: int, scheme: Scheme, props: DeviceProps, wanted: str | None = None
) -> tuple[str, str]:
    """``"decode"``, ``"prefill"`` or ``"dense"`` for ``m`` rows of a ``[k, n]`` weight, and why.

    ``wanted`` is taken if it can serve the call: every path serves every shape but prefill, see
    :func:`swordfish.prefill.unsupported`.
    """
    refused = unsupported(n, k, scheme, props)
    if wanted == "prefill" and refused is not None:
        path, reason = choose_path(m, n, k, scheme, props)
        return path, f"{reason} (not prefill: {refused})"
    if wanted is not None:
        return wanted, "asked for"
    dense, why = _dense_rows(n, k, scheme, props, refused is None)
    if m >= dense:
        return "dense", f"M >= {dense}: {why}"
    if refused is None:
        prefill, why = prefill_rows(n, k, props)
        if m >= prefill:
            return "prefill", f"M >= {prefill}: {why}"
    return "decode", f"M < {dense if refused is not None else min(dense, prefill)}"


def prefill_rows(n: int, k: int, props: DeviceProps) -> tuple[int, str]:
    """Fewest rows for prefill where its kernel exists; the published kernel's thresholds on B200 and Thor."""
    if n >= 128 * props.sm_count:
        return 56, "a 128-column tile for every SM"
    if k >= 2 * n and n < 128 * (props.sm_count // 4):
        return 128, "long K and few column tiles: decode splits K over more CTAs"
    return 96, "the tensor core is the limit"


def _dense_rows(n: int, k: int, scheme: Scheme, props: DeviceProps, prefill: bool) -> tuple[int, str]:
    """Fewest rows for which dequantising once and cuBLAS win. docs/dispatch.md has the measurements."""
    if props.arch == "sm_90a":
        # Where dense has 0.9 of cuBLAS on an H200; decode has no more there. int8: dense has 0.89 at 2,561
        # rows and 0.91 at 3,072, decode nine tenths of that on 4096 x 4096 and as much on larger layers.
        return (2561 if scheme.bits == 4 else 3072), "cuBLAS makes up for dequantising"
    many = props.sm_count >= MANY_SMS
    if not prefill:
        # By data sheet, not measured: bytes of the dequantised weight over memory bandwidth, against the
        # rates of mma.sync and tcgen05.
        return (256 if many else 512), "no prefill kernel, and cuBLAS has the faster instructions"
    if not many:
        if scheme.bits == 4:
            return _NEVER, ""
        return (8192 if k >= 2 * n else 2048), "two bytes a weight instead of one, once"
    if scheme.act_order and n <= 2 * k:
        return 512, "act-order costs nothing in the addresses of dequantised rows"
    return (4096 if scheme.bits == 4 else 1024), "the plain product makes up for dequantising"
