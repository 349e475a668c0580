"""Runs PTX text on the CPU, with asynchronous operations completing at adversarial moments and checkers
switched on.

The entry point is :func:`run`. The interpreter's C++ core is compiled at the first use and cached.
"""

from __future__ import annotations

from swordfish.emulator.errors import EmulatorError, NoCompilerError, UnknownInstructionError
from swordfish.emulator.order import check_order
from swordfish.emulator.report import Finding, Report
from swordfish.emulator.run import run
from swordfish.emulator.tensormap import TensorMap

__all__ = [
    "EmulatorError",
    "Finding",
    "NoCompilerError",
    "Report",
    "TensorMap",
    "UnknownInstructionError",
    "check_order",
    "run",
]
