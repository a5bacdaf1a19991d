"""Arrows of imports point one way: a method cannot reach an engine, an engine cannot reach a method."""

from __future__ import annotations

import ast
import graphlib
import re

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
    "laws": {"core", "nn", "models", "data", "engine", "evaluate"},
    "experiment": {"core", "nn", "models", "data", "methods", "engine", "evaluate", "report", "laws"},
}
ALLOWED["flower"] = {"core", "models", "data", "methods", "engine", "evaluate", "experiment"}
ALLOWED["reproduce"] = {"core", "evaluate", "report", "experiment"}
ALLOWED["cli"] = set(ALLOWED)  # and nothing imports cli
NEVER = {  # inside a folder: who must not import whom
    "posterity/engine/tracing/": "posterity.engine.(?!tracing)",  # operators of any function: it knows no client
    "posterity/engine/replay/": "posterity.fast",
}
PAPERS = ("fedbps", "fednp", "pfedvmp", "wrappers/metavd")  # a paper's folder is nobody else's library
NEVER |= {
    f"posterity/methods/{one}/": "|".join(
        f"posterity.methods.{other.replace('/', '.')}" for other in PAPERS if other != one
    )
    for one in PAPERS
}
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
    return [f"{file} imports posterity.{other}" for other in sorted(others)] + inner_arrows(file, tree)


def inner_arrows(file: str, tree: ast.AST) -> list[str]:
    """Imports of a folder inside a folder that its rule forbids."""
    rules = [re.compile(never) for place, never in NEVER.items() if file.startswith(place)]
    return [f"{file} imports {n}" for n in sorted(imported(tree, file)) if any(rule.match(n) for rule in rules)]


def graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which module imports which when it is loaded (not later, inside a function)."""
    names = {file.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): file for file in trees}
    found = {}
    for name, file in names.items():
        others = imported(
            ast.Module([n for n in trees[file].body if isinstance(n, (ast.Import, ast.ImportFrom))], []), file
        )
        known = {other for other in others & set(names) if other != name and not name.startswith(f"{other}.")}
        found[name] = {one for one in known if not any(other.startswith(f"{one}.") for other in known)}
    return found


def test_one_module_knows_flower_and_nobody_imports_it():
    """Everything else runs without it. An app imports the adapter, by its name in the app's pyproject.toml."""
    knows = [file for file, tree in FILES.items() if any(n.split(".")[0] == "flwr" for n in imported(tree, file))]
    users = [file for file, tree in FILES.items() if "posterity.flower.app" in imported(tree, file)]
    assert knows == ["posterity/flower/app.py"]
    assert users == []


def test_every_folder_has_a_rule():
    folders = {file.split("/")[1] for file in FILES if file.count("/") > 1}
    assert folders <= set(ALLOWED)


def test_imports_have_no_circle():
    assert len([*graphlib.TopologicalSorter(graph(FILES)).static_order()]) == len(FILES)


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
        ("posterity/methods/pfedvmp/a.py", "from posterity.methods.fednp import x", True),
        ("posterity/methods/wrappers/metavd/a.py", "from posterity.methods.pfedvmp import x", True),
        ("posterity/methods/wrappers/metavd/a.py", "from posterity.methods.wrappers.metavd.b import x", False),
        ("posterity/methods/pfedvmp/a.py", "from posterity.methods.pfedvmp.b import x", False),
        ("posterity/methods/fednp/a.py", "from posterity.methods.fedprox import x", False),
        ("posterity/engine/tracing/a.py", "from posterity.engine.round import x", True),
        ("posterity/engine/tracing/a.py", "from posterity.fast.b import x", False),
        ("posterity/engine/replay/a.py", "from posterity.fast import b", True),
        ("posterity/engine/replay/a.py", "from posterity.engine.engines import b", False),
        ("posterity/laws/a.py", "from posterity import models", False),
        ("posterity/cli/app.py", "from posterity.experiment import run", False),
        ("posterity/__main__.py", "from posterity.cli import main", False),
    ],
)
def test_the_rule_itself(file, text, wrong):
    assert bool(wrong_arrows(file, ast.parse(text))) == wrong
