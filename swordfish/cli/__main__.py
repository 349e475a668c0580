"""``python -m swordfish.cli``."""

from swordfish.cli import main

main()
