"""The list of mutants: one small wrong change each, in one TOML file per paper.

An entry names a `file`, the `old` text, which must occur in it exactly once, the `new` text and, in a few words, `what`
is changed. `laws` says which laws are asked when the paper's own tests have noticed nothing.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Mutant:
    paper: str
    file: str
    old: str
    new: str
    what: str


@dataclass(frozen=True)
class Paper:
    name: str
    laws: str  # the case of the laws
    mutants: tuple[Mutant, ...]


def papers() -> dict[str, Paper]:
    """Every paper that has a list, by name."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        mutants = tuple(Mutant(path.stem, **entry) for entry in table["mutant"])
        found[path.stem] = Paper(path.stem, table["laws"], mutants)
    return found


def applied(mutant: Mutant, text: str) -> str:
    return text.replace(mutant.old, mutant.new)


def fault(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Why an entry is not a mutant of the code as it is now, and how to mend it; None if it is one."""
    path = root / mutant.file
    where = f"tests/mutants/{mutant.paper}.toml, {mutant.what!r}"
    if not path.exists():
        return f"{where}: there is no file {mutant.file}; name the one that holds the formula now"
    text = path.read_text(encoding="utf-8")
    times = text.count(mutant.old)
    if times != 1:
        return (
            f"{where}: the old text occurs {times} times in {mutant.file}, not once: {mutant.old!r}. "
            "Copy the line as it reads now into `old`, longer if it is not unique, and repeat the wrong change in `new`"
        )
    try:
        changed = meaning(applied(mutant, text))
    except SyntaxError as error:
        return f"{where}: the changed file is no Python ({error.msg}, line {error.lineno}); mend `new`"
    if changed == meaning(text):
        return f"{where}: only a comment or a docstring would change; choose a line of code"
    return None


def meaning(text: str) -> str:
    """Code without comments and docstrings, in one spelling."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
