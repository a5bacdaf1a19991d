"""`posterity.core` has what a method needs under one roof, and methods take it from there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from posterity import methods

ROOT = Path(methods.__file__).parent
FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]  # which is the registry


def imports(path: Path) -> list[ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_method_has_one_import_line_from_core(file):
    """`from posterity import core`, or the names where they fit into a line."""
    found = [n for n in imports(file) if f"{n.module}.".startswith("posterity.core.")]
    whole = [n for n in imports(file) if n.module == "posterity" and n.names[0].name == "core"]
    assert [n.module for n in found] in ([], ["posterity.core"])
    assert len(found) + len(whole) <= 1
    assert all(n.lineno == n.end_lineno for n in found)
