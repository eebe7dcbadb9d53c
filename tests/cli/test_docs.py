"""What the README and the docs show runs as it is."""

import importlib
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES[1:] if PYTHON.search(p.read_text(encoding="utf-8"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_python_examples_run_as_printed(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, page.name, "exec"), names)
    assert capsys.readouterr().out


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", PYTHON.findall(README), ids=range(len(PYTHON.findall(README))))
def test_each_python_block_of_the_readme_runs_alone(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_the_readme_is_short():
    assert len(README.split()) <= 700


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


ROW = re.compile(r"^\| `([\w/]+)\.py` \| `([\w.]+)` \|", re.M)
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("module", "names"), ROW.findall(ARCHITECTURE))
def test_functions_of_the_walks_exist(module, names):
    found = importlib.import_module(f"codauc.{module.replace('/', '.')}")
    for name in names.split("."):
        found = getattr(found, name)
    assert callable(found)


def test_files_and_packages_of_the_architecture_exist():
    source = ROOT / "src/codauc"
    for name in re.findall(r"`([\w/]+\.py)`", ARCHITECTURE):
        assert (source / name).exists() or (ROOT / name).exists(), name
    table = set(re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.M))
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    picture = (ROOT / "docs/packages.svg").read_text(encoding="utf-8")
    assert table == packages == set(re.findall(r">(\w+)</text>", picture))
