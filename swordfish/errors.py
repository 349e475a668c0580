"""Exceptions raised by Swordfish.

Bad input raises before any launch; the first sentence names the argument, the value seen and what is allowed.
"""

from __future__ import annotations

__all__ = ["ArgumentError", "ArgumentTypeError", "CompileError", "SwordfishError", "UnsupportedDeviceError"]


class SwordfishError(Exception):
    """Base class of every exception that Swordfish raises on purpose."""


class ArgumentError(SwordfishError, ValueError):
    """An argument has a value that is not allowed.

    ``ArgumentError("group_size", 48, "-1 (channelwise) or a positive multiple of 32")`` reads
    ``group_size=48 is not allowed: expected -1 (channelwise) or a positive multiple of 32``.
    """

    def __init__(self, name: str, value: object, allowed: str, hint: str = "") -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(_message(name, value, allowed, hint))


class ArgumentTypeError(SwordfishError, TypeError):
    """An argument has a type or dtype that is not allowed. Same wording as :class:`ArgumentError`."""

    def __init__(self, name: str, value: object, allowed: str, hint: str = "") -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(_message(name, value, allowed, hint))


class UnsupportedDeviceError(SwordfishError, RuntimeError):
    """The GPU is of a family that no kernel here can run on; the message says what was found and needed."""


class CompileError(SwordfishError, RuntimeError):
    """A kernel did not compile; the message carries the compiler's log."""


def _message(name: str, value: object, allowed: str, hint: str) -> str:
    text = f"{name}={value!s} is not allowed: expected {allowed}"
    return f"{text}. {hint}" if hint else text
