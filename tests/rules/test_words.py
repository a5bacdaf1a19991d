"""The field's own words: no name in the package is one of the private ones that were given up.

A name is a module, a class, a function, an argument, a variable or an attribute, taken apart at underscores and
capitals. docs/glossary.md has the words that are used instead. `own` is a field of the protocol (what the server offers
to one client) and nothing else; `words` was a module.
"""

from __future__ import annotations

import ast
import re

import pytest

from .source import modules

GIVEN_UP = {"berth", "ashore", "aboard", "crew", "seat", "rung", "manner", "stretch", "habit", "route", "harvest",
            "journey", "voyage", "resident", "reuse", "hosted", "whole", "album", "portrait", "stranger",
            "fleet"}  # fmt: skip
PROTOCOL = {"own", "Own"}  # `here.own`, the record `Own` of a method
MODULES = {"words", "own"}


def parts(name: str) -> list[str]:
    """`_SeatOf2rows` has the parts seat, of, rows."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names(tree: ast.AST) -> set[str]:
    """Every name that a file gives or uses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            found |= {*node.name.split("."), *([node.asname] if node.asname else [])}
        for field in ("name", "id", "attr", "arg"):
            value = getattr(node, field, None)
            if isinstance(value, str) and not isinstance(node, ast.alias):
                found.add(value)
    return found


def offences(file: str, tree: ast.AST) -> list[str]:
    """Names of a file, and of its place, that hold a word that was given up."""
    modules_here = [part.removesuffix(".py") for part in file.split("/")]
    found = [f"module {name}" for name in modules_here if name in MODULES]
    for name in sorted({*modules_here, *names(tree)}):
        held = {*parts(name), *(part.removesuffix("s") for part in parts(name))}
        if held & GIVEN_UP or ("own" in held and name not in PROTOCOL):
            found.append(name)
    return found


def test_no_name_is_a_private_word():
    found = {file: wrong for file, tree in modules().items() if (wrong := offences(file, tree))}
    assert not found, "\n" + "\n".join(f"{file}: {', '.join(wrong)}" for file, wrong in found.items())


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("posterity/engine/fleet.py", "", ["fleet"]),
        ("posterity/data/words.py", "", ["module words"]),
        ("posterity/data/own.py", "", ["module own"]),
        ("posterity/a.py", "class SeatOf: ...", ["SeatOf"]),
        ("posterity/a.py", "def f(strangers): return strangers", ["strangers"]),
        ("posterity/a.py", "x.is_whole = 1", ["is_whole"]),
        ("posterity/a.py", "f(own_rows=1)", ["own_rows"]),
        ("posterity/a.py", "import posterity.album as images", ["album"]),
        ("posterity/a.py", "here.own; Own; words; router; wholesale", []),
        ("posterity/a.py", "x = 'a whole fleet'  # a journey", []),
    ],
)
def test_the_rule_itself(file, text, wrong):
    assert offences(file, ast.parse(text)) == wrong
