"""Decode kernels: few rows, memory-bound, mma.sync on every supported GPU."""

from swordfish.decode.choose import ROW_BUCKETS, Choice, choose
from swordfish.decode.ring import MAX_ROWS, RingConfig
from swordfish.decode.tokens import gather_source
from swordfish.runtime.device import DeviceProps
from swordfish.runtime.source import KernelSource
from swordfish.scheme import Scheme

__all__ = ["MAX_ROWS", "ROW_BUCKETS", "Choice", "RingConfig", "choose", "sources_for"]


def sources_for(
    scheme: Scheme, k: int, n: int, props: DeviceProps, *, bias: bool = False
) -> list[KernelSource]:
    """Every kernel that decode may launch for a weight of ``k`` packed rows and ``n`` columns, for
    ahead-of-time builds."""
    kernels = [choose(m, n, k, scheme, props).config.source(scheme, k, n, bias=bias) for m in ROW_BUCKETS]
    return [*kernels, gather_source()]
