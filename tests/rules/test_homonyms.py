"""One name, one thing: no public class of the package has a namesake, and no module is called like a decorator."""

from __future__ import annotations

import ast
from collections import defaultdict

from .source import modules

RECORDS = {"State", "Shared", "Own", "Personal"}  # every method has its own: they are words of the protocol


def public_classes(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Files by the name of the public class that they define."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file)
    return found


def module_names(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in trees:
        found[file.removesuffix("/__init__.py").removesuffix(".py").rsplit("/", 1)[-1]].append(file)
    return found


def decorators(trees: dict[str, ast.Module]) -> dict[str, str]:
    """Files by the name of the decorator that they define and somebody uses."""
    used = {
        decorator.id
        for tree in trees.values()
        for node in ast.walk(tree)
        for call in getattr(node, "decorator_list", [])
        if isinstance(decorator := call.func if isinstance(call, ast.Call) else call, ast.Name)
    }
    defined = {n.name: f for f, tree in trees.items() for n in tree.body if isinstance(n, ast.FunctionDef)}
    return {name: defined[name] for name in sorted(used & set(defined))}


def test_no_public_class_has_a_namesake():
    twice = {name: files for name, files in public_classes(modules()).items() if len(files) > 1 and name not in RECORDS}
    assert not twice, "\n" + "\n".join(f"{name}: {', '.join(files)}" for name, files in sorted(twice.items()))


def test_records_of_a_method_are_defined_by_methods_only():
    found = public_classes(modules())
    assert [f for name in RECORDS for f in found[name] if not f.startswith("posterity/methods/")] == []


def test_no_module_is_called_like_a_decorator_that_it_does_not_define():
    """`record` is a decorator: neither a tracer nor a row is called so too."""
    trees = modules()
    found = module_names(trees)
    assert {name: found[name] for name, file in decorators(trees).items() if found.get(name, [file]) != [file]} == {}


def test_the_rule_itself():
    text = "def record(cls): ...\n@record\nclass Pool: ...\nclass _Own: ..."
    trees = {f"posterity/{name}.py": ast.parse(text) for name in ("a", "b")}
    assert public_classes(trees) == {"Pool": ["posterity/a.py", "posterity/b.py"]}
    assert decorators(trees) == {"record": "posterity/b.py"}
