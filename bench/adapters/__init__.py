"""One module per implementation; :func:`make` builds adapters by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bench.adapters.base import Adapter
from bench.adapters.humming import Humming
from bench.adapters.machete import Machete
from bench.adapters.marlin import Marlin
from bench.adapters.paths import PATHS, Path
from bench.adapters.swordfish import Swordfish
from bench.adapters.torch_dense import TorchDense

__all__ = ["ADAPTERS", "Adapter", "make"]

ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "swordfish": Swordfish,
    **{f"swordfish-{path}": functools.partial(Path, path) for path in PATHS},
    "humming": Humming,
    "humming-pdl": lambda: Humming(pdl=True),
    "marlin": Marlin,
    "machete": Machete,
    "torch": TorchDense,
}


def make(names: Sequence[str]) -> list[Adapter]:
    """Adapters by name. Raises ``ValueError`` on an unknown one."""
    unknown = [name for name in names if name not in ADAPTERS]
    if unknown:
        raise ValueError(f"impl={','.join(unknown)} is not allowed: expected some of {', '.join(ADAPTERS)}")
    return [ADAPTERS[name]() for name in dict.fromkeys(names)]
