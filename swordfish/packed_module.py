"""What modules over packed weights share: buffers that keep their dtypes, a description in the state_dict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from swordfish.errors import ArgumentError

__all__ = ["PackedModule"]


class PackedModule(nn.Module):
    """A module whose buffers are packed weights."""

    def _register(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        """Buffers by name, in place of those of the same names. Absent ones go last: torch.export numbers
        buffers by their place among all and skips the absent."""
        for name in sorted(tensors, key=lambda name: tensors[name] is None):
            self._buffers.pop(name, None)
            self.register_buffer(name, tensors[name])

    def get_extra_state(self) -> torch.Tensor:
        """Format version, scheme and shape as JSON text in a uint8 tensor, stored with the state_dict."""
        text = json.dumps(self._description()).encode()
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Checks what :meth:`get_extra_state` stored. Raises ``ArgumentError`` when it describes another
        layer."""
        found: dict[str, Any] = json.loads(bytes(state.cpu().numpy()))
        for name, expected in self._description().items():
            if found.get(name) != expected:
                wanted = f"{expected}, which this layer was made for"
                raise ArgumentError(f"state_dict {name}", found.get(name), wanted)

    def _description(self) -> dict[str, Any]:
        """Plain values that tell what the buffers are."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> PackedModule:
        """Device moves apply; dtype changes do not (nn.Module offers no narrower hook for floating
        buffers)."""

        def keep_dtype(t: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(t)
            return moved if moved.dtype == t.dtype else t.to(moved.device)

        super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]
        return self
