"""The lists of mutants: one small wrong change each, in one TOML file per paper and per area of the package.

An entry names a `file`, the `old` text, which must occur in it exactly once, the `new` text and, in a few words, `what`
is changed. A paper's list says which `laws` are asked when the paper's own tests have noticed nothing. An area's list
says which `tests` are asked (files, or single tests as pytest names them); an entry may name its own.
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
    listed: str  # name of its list
    file: str
    old: str
    new: str
    what: str
    tests: tuple[str, ...] = ()  # that are asked


@dataclass(frozen=True)
class Listing:
    """The mutants of a paper, or of an area of the package."""

    name: str
    mutants: tuple[Mutant, ...]
    laws: str = ""  # the case of the laws; papers only

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that are asked about any of them; of a file that is asked as a whole no single ones."""
        named = dict.fromkeys(test for mutant in self.mutants for test in mutant.tests)
        return tuple(test for test in named if "::" not in test or test.partition("::")[0] not in named)


def listings() -> dict[str, Listing]:
    """Every list, by name: those of the papers first."""
    made = [_read(path) for path in sorted(FOLDER.glob("*.toml"))]
    return {each.name: each for each in sorted(made, key=lambda each: not each.laws)}


def _read(path: Path) -> Listing:
    table, name = tomllib.loads(path.read_text(encoding="utf-8")), path.stem
    laws = table.get("laws", "")
    usual = [f"tests/{place}/test_{name}.py" for place in ("oracles", "methods")] if laws else table["tests"]
    entries = [{**entry, "tests": tuple(entry.get("tests", usual))} for entry in table["mutant"]]
    return Listing(name, tuple(Mutant(name, **entry) for entry in entries), laws)


def applied(mutant: Mutant, text: str) -> str:
    return text.replace(mutant.old, mutant.new)


def fault(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Why an entry is not a mutant of the code as it is now, and how to mend it; None if it is one."""
    path = root / mutant.file
    where = f"tests/mutants/{mutant.listed}.toml, {mutant.what!r}"
    if not path.exists():
        return f"{where}: there is no file {mutant.file}; name the one that holds the code now"
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
    missing = [test for test in mutant.tests if not _exists(test, root)]
    return f"{where}: there is no test {missing[0]}; name the tests that are to notice it" if missing else None


def _exists(test: str, root: Path) -> bool:
    """Whether there is such a file of tests, and in it the function that is named, if one is."""
    file, _, rest = test.partition("::")
    if not (root / file).exists():
        return False
    return not rest or f"def {rest.partition('[')[0]}(" in (root / file).read_text(encoding="utf-8")


def meaning(text: str) -> str:
    """Code without comments and docstrings, in one spelling."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
