"""Arrows of imports point one way: a method cannot reach an engine, an engine cannot reach a method."""

from __future__ import annotations

import ast

import pytest

from .source import imported, modules

ALLOWED = {
    "core": set(),
    "nn": {"core"},
    "models": {"core", "nn"},
    "data": {"core"},
    "methods": {"core", "nn", "models"},
    "engine": {"core", "data"},
    "evaluate": {"core"},
    "report": {"evaluate"},
    "flower": {"core", "engine"},
    "laws": {"core", "nn", "models", "data", "engine", "evaluate"},
    "experiment": {"core", "nn", "models", "data", "methods", "engine", "evaluate", "report", "flower", "laws"},
}
ALLOWED["cli"] = set(ALLOWED)  # and nothing imports cli
FILES = modules()


def wrong_arrows(file: str, tree: ast.AST) -> list[str]:
    parts = file.split("/")
    folder = parts[1] if len(parts) > 2 else ""
    others = {name.split(".")[1] for name in imported(tree, file) if name.startswith("posterity.")}
    if folder:
        others = (others & set(ALLOWED)) - ALLOWED[folder] - {folder}
    elif parts[-1] in ("cli.py", "__main__.py"):
        return []
    else:
        others &= {"cli"}
    return [f"{file} imports posterity.{other}" for other in sorted(others)]


def test_every_folder_has_a_rule():
    folders = {file.split("/")[1] for file in FILES if file.count("/") > 1}
    assert folders <= set(ALLOWED)


@pytest.mark.parametrize("file", FILES)
def test_imports_point_the_right_way(file):
    assert wrong_arrows(file, FILES[file]) == []


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("posterity/methods/a.py", "from posterity.engine import loop", True),
        ("posterity/methods/a.py", "from ..engine import loop", True),
        ("posterity/methods/a.py", "from posterity import engine", True),
        ("posterity/core/a.py", "def f():\n    import posterity.models", True),
        ("posterity/engine/a.py", "import posterity.methods.fedavg", True),
        ("posterity/experiment/a.py", "from posterity import cli", True),
        ("posterity/__init__.py", "from posterity.cli import main", True),
        ("posterity/methods/a.py", "from posterity.methods.fedprox import x", False),
        ("posterity/methods/wrappers/a.py", "from ..fedprox import x", False),
        ("posterity/laws/a.py", "from posterity import models", False),
        ("posterity/cli/app.py", "from posterity.experiment import run", False),
        ("posterity/__main__.py", "from posterity.cli import main", False),
    ],
)
def test_the_rule_itself(file, text, wrong):
    assert bool(wrong_arrows(file, ast.parse(text))) == wrong
