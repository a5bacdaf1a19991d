"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

import pytest

from .source import PACKAGE, ROOT, modules

FILE, FUNCTION, METHOD = 300, 40, (40, 210)
FILES = modules()
METHODS = [p.name for p in sorted((PACKAGE / "methods").glob("*.py")) if not p.name.startswith("_")]


def length(path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    size, first = (function.end_lineno or 0) - function.lineno + 1, function.body[0]
    text = ast.get_docstring(function, clean=False)
    return size if text is None else size - ((first.end_lineno or 0) - first.lineno + 1)


@pytest.mark.parametrize("file", FILES)
def test_files_are_short(file):
    assert length(ROOT / file) <= FILE


@pytest.mark.parametrize("file", FILES)
def test_functions_are_short(file):
    functions = [n for n in ast.walk(FILES[file]) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = {f"{n.name} (line {n.lineno})": lines(n) for n in functions}
    assert {name: size for name, size in sizes.items() if size > FUNCTION} == {}


@pytest.mark.parametrize("file", METHODS)
def test_a_method_is_one_readable_file(file):
    assert METHOD[0] <= length(PACKAGE / "methods" / file) <= METHOD[1]
