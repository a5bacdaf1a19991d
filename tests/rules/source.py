"""The package as text and as syntax trees."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "posterity"


@cache
def modules() -> dict[str, ast.Module]:
    """Every Python file of the package by its path from the root; only to be read."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in files}


def papers() -> dict[str, list[Path]]:
    """The files of every method and wrapper by its name; the first has the docstring that sums up the paper."""
    found: dict[str, list[Path]] = {}
    for folder in (PACKAGE / "methods", PACKAGE / "methods" / "wrappers"):
        files = [p for p in folder.glob("*.py") if not p.name.startswith("_")]
        inits = [p for p in folder.glob("*/__init__.py") if p.parent.name != "wrappers"]
        found |= {p.stem: [p] for p in files}
        found |= {p.parent.name: [p, *sorted(set(p.parent.glob("*.py")) - {p})] for p in inits}
    return dict(sorted(found.items()))


def imported(tree: ast.AST, file: str) -> set[str]:
    """Absolute names of everything a file imports; `from a import b` gives a and a.b."""
    found: set[str] = set()
    package = file.removesuffix(".py").removesuffix("/__init__").split("/")
    inside = package if file.endswith("__init__.py") else package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = inside[: len(inside) - node.level + 1] if node.level else []
            name = ".".join([*start, *([node.module] if node.module else [])])
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def texts() -> dict[str, str]:
    """Every text file that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in sorted({n for n in listed.split("\0") if n}):
        try:
            found[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return found
