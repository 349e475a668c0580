"""Exceptions of the emulator."""

from __future__ import annotations

from swordfish.errors import SwordfishError

__all__ = ["EmulatorError", "NoCompilerError", "UnknownInstructionError"]


class EmulatorError(SwordfishError, RuntimeError):
    """PTX that cannot be read, or a launch that cannot be emulated."""


class UnknownInstructionError(EmulatorError):
    """An instruction that the emulator does not know; the message has its text and its PTX line."""


class NoCompilerError(EmulatorError):
    """The interpreter's C++ core could not be compiled because no C++ compiler was found."""
