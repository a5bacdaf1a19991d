"""Finds code by what it says: an expression or statements inside a function, compared as syntax trees.

Layout, comments, and the file of a folder in which the function lies do not matter. `catalogue.py` reads the lists and
says what is wrong with an entry; this file finds, replaces, and looks for what is nearest when nothing is found.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
CONTEXT = re.compile(r",? ?ctx=(Load|Store|Del)\(\)")


@dataclass(frozen=True)
class Found:
    """A place in a file: the nodes that stand there, one expression or one or more statements."""

    file: Path
    function: str  # qualified name; empty at the level of the module
    nodes: tuple[ast.AST, ...]

    @property
    def text(self) -> str:
        return "\n".join(ast.unparse(node) for node in self.nodes)


def shape(*nodes: ast.AST) -> str:
    """What the nodes say, whatever the layout and wherever they stand."""
    return " ".join(CONTEXT.sub("", ast.dump(node)) for node in nodes)


@cache
def scopes_of(file: Path) -> tuple[tuple[str, ast.AST], ...]:
    return tuple(scopes(ast.parse(file.read_text(encoding="utf-8"))))


def files(place: Path) -> list[Path]:
    """The Python files of a folder, or the file itself; none if there is neither."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.exists() else []


def scopes(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function and class with its qualified name, and the module under the empty name."""
    yield prefix, tree
    for node in inside(tree):
        if isinstance(node, SCOPES):
            yield from scopes(node, f"{prefix}.{node.name}" if prefix else node.name)


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope in the order of the text: without what lies in an inner function or class, and f-strings.

    (Before Python 3.12 the parts of an f-string do not know where they stand.)
    """
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*SCOPES, ast.JoinedStr)):
            yield from inside(child)


def code(text: str) -> tuple[ast.AST, ...]:
    """The expression or the statements that a text says; a syntax error if it says neither."""
    body = ast.parse(textwrap.dedent(text).strip()).body
    return (body[0].value,) if len(body) == 1 and isinstance(body[0], ast.Expr) else tuple(body)


def pair(old: str, new: str) -> tuple[tuple[ast.AST, ...], tuple[ast.AST, ...]]:
    """Both sides of a change as expressions or, unless both are one, as statements."""
    sides = code(old), code(new)
    if all(isinstance(side[0], ast.expr) for side in sides):
        return sides
    statements = [ast.parse(textwrap.dedent(text).strip()).body for text in (old, new)]
    return tuple(statements[0]), tuple(statements[1])


def occurrences(scope: ast.AST, wanted: tuple[ast.AST, ...]) -> list[tuple[ast.AST, ...]]:
    """Where the wanted nodes stand in a scope, in the order of the text."""
    aim = shape(*wanted)
    if isinstance(wanted[0], ast.expr):
        return [(node,) for node in inside(scope) if type(node) is type(wanted[0]) and shape(node) == aim]
    runs = []
    for node in (scope, *inside(scope)):
        if node is not scope and isinstance(node, SCOPES):
            continue
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                tries = (value[i : i + len(wanted)] for i in range(len(value) - len(wanted) + 1))
                runs += [tuple(run) for run in tries if type(run[0]) is type(wanted[0]) and shape(*run) == aim]
    return sorted(runs, key=lambda run: run[0].lineno)


def find(place: Path, function: str, wanted: tuple[ast.AST, ...]) -> list[Found]:
    """Every place of a file or folder where the wanted code stands in the function of that qualified name."""
    found = []
    for file in files(place):
        for name, scope in scopes_of(file):
            if name == function:
                found += [Found(file, name, nodes) for nodes in occurrences(scope, wanted)]
    return found


def replaced(found: Found, new: str, text: str) -> str:
    """The text of the file with `new` at the place; everything else stays as it is, to the letter."""
    raw, first, last = text.encode(), found.nodes[0], found.nodes[-1]
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    begin = starts[first.lineno - 1] + first.col_offset
    end = starts[last.end_lineno - 1] + last.end_col_offset
    said = textwrap.dedent(new).strip()
    if not isinstance(first, ast.expr):
        inner = textwrap.indent(said, " " * first.col_offset).lstrip()
        return (raw[:begin] + inner.encode() + raw[end:]).decode()
    plain, wrapped = ((raw[:begin] + each.encode() + raw[end:]).decode() for each in (said, f"({said})"))
    return plain if _says(plain, found, said) else wrapped


def _says(text: str, found: Found, new: str) -> bool:
    """Whether the changed file has the new expression as one node where the old one began (no brackets are missing)."""
    first, kind = found.nodes[0], code(new)[0]
    aim = shape(kind)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    spot = (first.lineno, first.col_offset)
    nodes = (n for n in ast.walk(tree) if type(n) is type(kind) and (n.lineno, n.col_offset) == spot)
    return any(shape(node) == aim for node in nodes)


def everywhere(root: Path, wanted: tuple[ast.AST, ...]) -> list[Found]:
    """Every function of a folder in which the wanted code stands, and where."""
    pairs = [(file, name, scope) for file in files(root) for name, scope in scopes_of(file)]
    return [Found(file, name, nodes) for file, name, scope in pairs for nodes in occurrences(scope, wanted)]


def nearest(root: Path, place: Path, function: str, wanted: tuple[ast.AST, ...]) -> Found | None:
    """What looks most like the wanted code: the same elsewhere, else something like it in a function of that name."""
    same = [*everywhere(place, wanted), *everywhere(root, wanted)]
    if same:
        return min(same, key=lambda found: (not found.file.is_relative_to(place), found.function != function))
    leaf = function.rpartition(".")[2]
    close = [(file, name, scope) for file in files(place) for name, scope in scopes_of(file)]
    others = [(file, name, scope) for file in files(root) for name, scope in scopes_of(file) if leaf]
    named = [each for each in (*close, *others) if each[1].rpartition(".")[2] == leaf]
    for pool in (named, close):
        best = max((_likeness(each, wanted) for each in pool), key=lambda one: one[0], default=(0.0, None))
        if best[0] > 0.6:
            return best[1]
    return None


def _likeness(where: tuple[Path, str, ast.AST], wanted: tuple[ast.AST, ...]) -> tuple[float, Found | None]:
    """How like the wanted code the likest code of a scope is, and which it is."""
    file, name, scope = where
    aim, kind = "\n".join(map(ast.unparse, wanted)), ast.expr if isinstance(wanted[0], ast.expr) else ast.stmt
    best: tuple[float, Found | None] = (0.0, None)
    for node in inside(scope):
        if isinstance(node, kind) and not isinstance(node, (*SCOPES, ast.Slice)):
            match = difflib.SequenceMatcher(None, ast.unparse(node), aim)
            if match.real_quick_ratio() > best[0] and match.quick_ratio() > best[0] and match.ratio() > best[0]:
                best = (match.ratio(), Found(file, name, (node,)))
    return best
