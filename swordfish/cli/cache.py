"""``swordfish cache info`` and ``swordfish cache clear``."""

from __future__ import annotations

from rich.console import Console

from swordfish.runtime.cache import CACHE_DIR_VARIABLE, default_cache

__all__ = ["clear", "info"]


def info() -> int:
    """Print the state of the cache; 1 if it cannot be written."""
    state = default_cache().info()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"directory  {state.directory}   (set {CACHE_DIR_VARIABLE} to change it)")
    console.print(f"entries    {state.entries}")
    console.print(
        f"size       {state.size_bytes / 2**20:.1f} MiB of at most {state.max_bytes / 2**20:.0f} MiB"
    )
    if state.problem:
        console.print(f"problem    {state.problem}")
    return 0 if state.writable else 1


def clear() -> int:
    """Empty the cache."""
    cache = default_cache()
    print(f"removed {cache.clear()} entries from {cache.directory}")
    return 0
