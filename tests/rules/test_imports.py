"""Arrows of imports point down the floors, and never in a circle; those for types and inside functions count as others.

An arrow from `a` to `b` says that `a` cannot be read, typed or run without `b`. Who imports a module of another folder
runs that folder's `__init__.py`, too, and so points at it.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping

import pytest

from .source import imported, modules

FLOORS = (  # from the bottom; folders of one floor do not know each other
    {"version"},
    {"settings"},
    {"core"},
    {"nn", "data", "evaluate"},
    {"methods", "engine", "models"},
    {"fast", "runs"},
    {"report"},
    {"laws"},
    {"experiment"},
    {"flower"},
    {"posterity"},  # `posterity/__init__.py`: the interface for Python
    {"cli"},
    {"papers"},
    {"__main__"},
)
FLOOR = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
PAPERS = ("fedbps", "fednp", "pfedvmp", "wrappers.metavd")  # what one paper adds is nobody else's library
FILES = modules()


def arrows(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Every module with those it imports, in whatever form and wherever: at its top, for types, in a function."""
    files = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in trees}
    return {name: set(targets(name, file, trees[file], set(files))) - {name} for name, file in files.items()}


def targets(name: str, file: str, tree: ast.Module, known: set[str]) -> Iterator[str]:
    inside = name.split(".") if file.endswith("__init__.py") else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (one for one in {alias.name, *upwards(alias.name, name)} if one in known)
        elif isinstance(node, ast.ImportFrom):
            start = inside[: len(inside) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:  # `from a import b`: the module a.b, or something that a/__init__.py has
                if (one := f"{base}.{alias.name}") in known:
                    yield from (each for each in upwards(one, name) if each in known)
                elif base in known:
                    yield base
                    yield from (each for each in upwards(base, name) if each in known)


def upwards(module: str, user: str) -> Iterator[str]:
    """A module and the packages around it that run with it; those around its user run already."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        one = ".".join(parts[:size])
        if not f"{user}.".startswith(f"{one}."):
            yield one


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def arrows_up(edges: Mapping[str, set[str]]) -> list[str]:
    """Arrows between folders that do not point down, and folders that stand on no floor."""
    wrong = [f"{name} is on no floor" for name in sorted(edges) if room(name) not in FLOOR]
    for name, others in sorted(edges.items()):
        a = room(name)
        for other in sorted(others):
            b = room(other)
            if a != b and a in FLOOR and b in FLOOR and FLOOR[b] >= FLOOR[a]:
                wrong.append(f"{name} imports {other}")
    return wrong


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """A circle of modules, or nothing."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def borrowed(edges: Mapping[str, set[str]]) -> list[str]:
    """What belongs to one paper and is imported by another."""
    arrows = [(name, other) for name, others in sorted(edges.items()) for other in sorted(others)]
    return [f"{a} imports {b}" for a, b in arrows if paper(a) and paper(b) and paper(a) != paper(b)]


def paper(module: str) -> str | None:
    return next((one for one in PAPERS if f"{module}.".startswith(f"posterity.methods.{one}.")), None)


def test_imports_point_down():
    assert arrows_up(arrows(FILES)) == []


def test_imports_have_no_circle():
    assert circle(arrows(FILES)) == []


def test_a_paper_is_nobody_elses_library():
    assert borrowed(arrows(FILES)) == []


def test_one_module_knows_flower_and_nobody_imports_it():
    """Everything else runs without it. An app imports the adapter, by its name in the app's pyproject.toml."""
    knows = [file for file, tree in FILES.items() if any(n.split(".")[0] == "flwr" for n in imported(tree, file))]
    users = [name for name, others in arrows(FILES).items() if "posterity.flower.app" in others]
    assert knows == ["posterity/flower/app.py"]
    assert users == []


def test_settings_need_no_pytorch():
    """Help and completion import the settings, and are there at once."""
    assert [
        f for f, tree in FILES.items() if f.startswith("posterity/settings/") and "torch" in imported(tree, f)
    ] == []


def planted(files: dict[str, str]) -> dict[str, set[str]]:
    """Arrows of a package of these files, and of empty ones that they name."""
    return arrows({f"posterity/{name}": ast.parse(text) for name, text in files.items()})


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("methods/a.py", "from posterity.engine import b", True),
        ("methods/a.py", "from posterity.engine.b import x", True),
        ("methods/a.py", "from posterity.engine import x", True),  # of its __init__
        ("methods/a.py", "from ..engine import b", True),
        ("methods/a.py", "from posterity import engine", True),
        ("methods/a.py", "import posterity.engine.b as b", True),
        ("methods/a.py", f"{TYPES}from posterity.engine.b import x", True),
        ("core/a.py", "def f():\n    import posterity.models", True),
        ("core/a.py", "class A:\n    def f(self):\n        from ..models import x", True),
        ("engine/a.py", "try:\n    import posterity.methods\nexcept ImportError:\n    pass", True),
        ("evaluate/a.py", "from posterity import data", True),  # of the same floor
        ("experiment/a.py", "from posterity import cli", True),
        ("cli/a.py", "def f():\n    from posterity.papers import x", True),
        ("settings/a.py", "from posterity import run", True),
        ("experiment/a.py", "import posterity", True),
        ("core/a.py", "from .. import run", True),
        ("attic/a.py", "import json", True),  # on no floor
        ("methods/a.py", "from posterity.methods import x", False),
        ("methods/a.py", "from posterity import core", False),
        ("engine/a.py", f"{TYPES}from posterity.data import x", False),
        ("papers/a.py", "from posterity.cli import x", False),
        ("cli/a.py", "import posterity", False),
        ("cli/a.py", "import posterity.core", False),
        ("laws/a.py", "from posterity import models", False),
        ("__init__.py", "from posterity.experiment import x", False),
        ("__init__.py", "from posterity.papers import x", True),
        ("__main__.py", "from posterity.cli import main", False),
    ],
)
def test_the_rule_of_floors_itself(file, text, wrong):
    folders = {f"{folder}/__init__.py": "" for folder in FLOOR if folder not in ("posterity", "__main__", "version")}
    assert bool(arrows_up(planted({**folders, "__init__.py": "", "engine/b.py": "", file: text}))) == wrong


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a.py": "import posterity.core.b", "b.py": "from posterity.core.a import x"}, True),
        ({"a.py": "from posterity.core import b", "b.py": "from . import a"}, True),
        ({"a.py": "from .b import x", "b.py": f"{TYPES}from .a import x"}, True),
        ({"a.py": "from .b import x", "b.py": "def f():\n    from .a import x"}, True),
        ({"a.py": f"{TYPES}from .b import x", "b.py": "def f():\n    import posterity.core.a as a"}, True),
        ({"a.py": "from .b import x", "b.py": "from .c import x", "c.py": "from .a import x"}, True),
        ({"a.py": "from .b import x", "b.py": f"{TYPES}from .c import x",
          "c.py": "def f():\n    import posterity.core.a"}, True),
        ({"__init__.py": "from .a import x", "a.py": "from posterity.core import x"}, True),
        ({"__init__.py": "from .a import x", "a.py": "from . import x"}, True),
        ({"__init__.py": "from .a import x", "a.py": "def f():\n    from posterity.core import x"}, True),
        ({"p/__init__.py": "from .q import x", "p/q.py": "from ..a import x", "a.py": "from .p.r import x",
          "p/r.py": ""}, True),  # who imports p.r runs p/__init__.py
        ({"__init__.py": "from .a import x", "a.py": "from posterity.core.b import x", "b.py": ""}, False),
        ({"a.py": "from .b import x", "b.py": "from .c import x", "c.py": ""}, False),
        ({"a.py": "from .b import x\nfrom .c import x", "b.py": "from .c import x", "c.py": ""}, False),
    ],
)  # fmt: skip
def test_the_rule_of_circles_itself(files, found):
    edges = planted({"core/__init__.py": "", **{f"core/{name}": text for name, text in files.items()}})
    assert bool(circle(edges)) == found


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("methods/pfedvmp/a.py", "from posterity.methods.fednp import x", True),
        ("methods/wrappers/metavd/a.py", "from posterity.methods.pfedvmp.b import x", True),
        ("methods/fednp.py", "def f():\n    from .pfedvmp import x", True),
        ("methods/wrappers/metavd/a.py", "from posterity.methods.wrappers.metavd.b import x", False),
        ("methods/pfedvmp/a.py", "from posterity.methods.pfedvmp.b import x", False),
        ("methods/fednp.py", "from posterity.methods.fedprox import x", False),
    ],
)
def test_the_rule_of_papers_itself(file, text, wrong):
    there = ("fednp.py", "fedprox.py", "pfedvmp/__init__.py", "pfedvmp/b.py", "wrappers/metavd/b.py")
    assert bool(borrowed(planted({**{f"methods/{name}": "" for name in there}, file: text}))) == wrong
