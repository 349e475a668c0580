"""docs/format.md says what the code does, and its figures can be drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from swordfish.layouts.format import block_layout
from swordfish.packed import FORMAT, FORMAT_VERSION

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "format.md").read_text()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_page_states_the_layout(bits: int) -> None:
    assert f"int{bits}   {block_layout(bits)}\n" in PAGE


def test_the_page_states_the_file_format() -> None:
    assert f"| `format` | `{FORMAT}` |\n| `version` | `{FORMAT_VERSION}` |" in PAGE


@pytest.mark.slow
def test_figures_are_drawn_and_all_of_them_shown(tmp_path: Path) -> None:
    runpy.run_path(str(DOCS / "draw_format.py"))["draw"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == set(re.findall(r"\(images/(format-[\w-]+\.png)\)", PAGE))
    assert drawn == {path.name for path in (DOCS / "images").glob("format-*")}
