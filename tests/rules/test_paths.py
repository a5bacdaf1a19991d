"""Files that prose names are there: in the pages, in README and CONTRIBUTING, and in docstrings."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from .source import ROOT

HEADS = "posterity|tests|benchmarks|docs|examples|recipes"
PATH = re.compile(rf"(?<![\w/.:{{<>-])((?:{HEADS})(?:/[\w.-]++)+|(?:\w++/)+\w++\.py)(?![*<{{…])")
BARE = re.compile(r"(?<![\w/.{<>-])(\w++\.py)\b")
ROOTS = (".", "posterity", "tests", "docs")  # `engine/client.py` is short for `posterity/engine/client.py`
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
]
SCRIPTS = sorted(p for head in HEADS.split("|") for p in (ROOT / head).rglob("*.py"))
YOURS = {"NAME", "NAME.py", "foo.py", "name.py", "test_name.py", "on_NAME.py", "torch.py"}  # what a reader makes


@cache
def names_of(root: Path) -> set[str]:
    return {p.name for head in HEADS.split("|") for p in (root / head).rglob("*.py")}


def missing_paths(text: str, root: Path, beside: Path) -> list[str]:
    """Paths of which there is no file, no folder and no module: from the root, in the package, or beside the text."""
    found = []
    for path in dict.fromkeys(match[1].rstrip(".") for match in PATH.finditer(text)):
        places = [*(root / place / path for place in ROOTS), beside / path]
        there = any(one.exists() or one.with_name(f"{one.name}.py").exists() for one in places)
        if not there and Path(path).name not in YOURS:
            found.append(path)
    return found


def missing_names(text: str, root: Path) -> list[str]:
    """Names of Python files, without a folder, that no folder has."""
    return sorted({m[1] for m in BARE.finditer(text)} - names_of(root) - YOURS)


def docstrings(text: str) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(ast.get_docstring(n) or "" for n in ast.walk(ast.parse(text)) if isinstance(n, kinds))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_that_pages_name_are_there(page):
    assert missing_paths(page.read_text(encoding="utf-8"), ROOT, page.parent) == []


def test_files_that_docstrings_name_are_there():
    wrong = []
    for path in SCRIPTS:
        text = docstrings(path.read_text(encoding="utf-8"))
        for name in [*missing_paths(text, ROOT, path.parent), *missing_names(text, ROOT)]:
            wrong.append(f"{path.relative_to(ROOT)} names {name}")
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `core/random.py` and posterity/core/random.py", []),
        ("in `tests/core/test_random.py`, beside tests/core", []),
        ("posterity/core and posterity/core/random are there.", []),
        ("see [`lenet.py`](models/lenet.py)", ["models/lenet.py"]),
        ("posterity/attic/ and (posterity/core/attic.py)", ["posterity/attic", "posterity/core/attic.py"]),
        ("`core/dice.py`.", ["core/dice.py"]),
        ("core/*.py, posterity/attic-*.toml, runs/<name>.py, posterity/core/NAME.py", []),
        ("https://example.org/posterity/attic.py", []),
    ],
)
def test_the_rule_itself(tmp_path, text, missing):
    for file in ("posterity/core/random.py", "tests/core/test_random.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert missing_paths(text, tmp_path, tmp_path) == missing


def test_the_rule_of_names_itself(tmp_path):
    (tmp_path / "posterity").mkdir()
    (tmp_path / "posterity" / "random.py").touch()
    assert missing_names("`random.py`, `dice.py`; core/cards.py and *.py", tmp_path) == ["dice.py"]
