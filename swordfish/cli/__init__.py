"""The ``swordfish`` command. Each subcommand imports what it needs when it is run."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script; ends the process with the command's exit code."""
    from swordfish.cli.app import run

    raise SystemExit(run())
