"""Advice of `make check`: which files and functions have grown too long to be read in one go.

It never fails: mathematics that belongs together stays together, however long it is. `test_*.py` next to this file are
the rules that do fail.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "posterity"
FILE, FUNCTION = 500, 40  # lines


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    size, first = (function.end_lineno or 0) - function.lineno + 1, function.body[0]
    text = ast.get_docstring(function, clean=False)
    return size if text is None else size - ((first.end_lineno or 0) - first.lineno + 1)


def advice(package: Path = PACKAGE) -> list[str]:
    """One line for every file and every function that is longer than it should be."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(package.parent).as_posix()
        if (size := len(text.splitlines())) > FILE:
            found.append(f"{name}: {size} lines (at most {FILE})")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (size := lines(node)) > FUNCTION:
                found.append(f"{name}:{node.lineno}: {node.name} has {size} lines (at most {FUNCTION})")
    return found


if __name__ == "__main__":
    print("\n".join(advice()) or "Every file and function is short.")
