"""What the repository says about itself holds: links, versions, the examples of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import swordfish as sf

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def links(page: Path) -> set[Path]:
    """Files that a page points to, whether they exist or not."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page in PAGES:
            reached.add(page)
            todo += links(page)
    assert sorted(page.name for page in set(PAGES) - reached) == []


def test_the_table_of_cases_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "cases.md").read_text()
    assert re.findall(r"^\| (C\d\d) \|", text, re.MULTILINE) == [f"C{i:02}" for i in range(1, 44)]
    tests = "".join(path.stem + path.read_text() for path in sorted((ROOT / "tests").glob("test_*.py")))
    assert [name for name in re.findall(r"`(test_\w+)`", text) if name not in tests] == []


def test_versions_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{sf.__version__}"\n' in project
    assert f"## {sf.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    pins = set(re.findall(r"ruff==[\d.]+", project + (ROOT / ".pre-commit-config.yaml").read_text()))
    assert len(pins) == 1


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with the layer shipped, and the second one on 64 columns of it."""
    use, emulate = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    use = use.replace("path/to/checkpoint", str(ROOT / "swordfish" / "data" / "demo")).replace("cuda", "cpu")
    names: dict[str, object] = {}
    exec(use, names)
    w, x, y = names["w"], names["x"], names["y"]
    assert isinstance(w, sf.PackedWeight) and isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    assert (tmp_path / "down_proj.safetensors").exists()
    part: dict[str, object] = {"sf": sf, "w": w.shard("n", 0, 9), "x": x[:1]}
    exec(emulate, part)
    assert isinstance(part["y"], torch.Tensor)
    torch.testing.assert_close(part["y"], y[:1, :64], rtol=2**-7, atol=2**-7)
