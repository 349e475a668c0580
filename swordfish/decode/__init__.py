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
    """Every kernel that decode may launch for a weight of ``k`` packed rows and ``n`` columns, whatever the
    number of rows, for ahead-of-time builds."""
    # Beyond the buckets a call takes whole row tiles; the rules ask whether there are more tiles than SMs.
    most = props.sm_count // -(-n // 64) + 1
    counts = [*ROW_BUCKETS, *(MAX_ROWS * tiles for tiles in range(2, most + 1))]
    paddings = (False, True) if scheme.act_order else (False,)
    configs = [choose(m, n, k, scheme, props, padded_rows=p).config for p in paddings for m in counts]
    kernels = dict.fromkeys(config.source(scheme, k, n, bias=bias) for config in dict.fromkeys(configs))
    return [*kernels, gather_source()]
