"""The lists of mutants: one small wrong change each, in one TOML file per paper and per area of the package.

An entry says `where` to look (a folder of the package, or a file), in which `function` (its qualified name, as
`PFedVMP.loss`; empty: outside functions and classes), and which `old` expression or statements become `new`; `what`
says it in a few words. It is found as a syntax tree (`locate.py`): layout, comments, and the file of the folder do not
matter. What stands in the function several times needs `nth` (the first is 1) or a longer expression.

A paper's list says which `laws` are asked when the paper's own tests have noticed nothing. An area's list says which
`tests` are asked (files, or single tests as pytest names them); an entry may name its own.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from .locate import Found, everywhere, find, nearest, pair, replaced

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAPERS = ("fedbps", "fedmap", "fednp", "metavd", "pfedvmp")


def _home(name: str) -> str | None:
    """The folder, or the file, that holds all of a method's paper; None for an area of the package."""
    places = [f"posterity/methods/{where}{name}{end}" for where in ("", "wrappers/") for end in ("", ".py")]
    return next((place for place in places if (ROOT / place).exists()), None)


SHARED = ("core", "settings", "runs", "fast")  # rooms whose code the lists of others may change
HOMES = {path.stem: home for path in sorted(FOLDER.glob("*.toml")) if (home := _home(path.stem))}


@dataclass(frozen=True)
class Mutant:
    listed: str  # name of its list
    where: str
    function: str
    old: str
    new: str
    what: str
    tests: tuple[str, ...] = ()  # that are asked
    nth: int = 0  # which of several; 0: there is one


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


class NotThere(ValueError):
    """An entry that is not a change of the code as it is now; the text says how to mend it."""


def listings() -> dict[str, Listing]:
    """Every list, by name: those of the papers first."""
    made = [_read(path) for path in sorted(FOLDER.glob("*.toml"))]
    return {each.name: each for each in sorted(made, key=lambda each: not each.laws)}


def _read(path: Path) -> Listing:
    table, name = tomllib.loads(path.read_text(encoding="utf-8")), path.stem
    laws = table.get("laws", "")
    papers = [f"tests/{place}/test_{name}.py" for place in ("oracles", "methods")]
    usual = [test for test in papers if (ROOT / test).exists()] if laws else table["tests"]  # oracles are not for all
    entries = [{**entry, "tests": tuple(entry.get("tests", usual))} for entry in table["mutant"]]
    return Listing(name, tuple(Mutant(name, **entry) for entry in entries), laws)


def place(mutant: Mutant, root: Path = ROOT) -> Found:
    """Where the code of an entry stands now; raises `NotThere` where it stands nowhere or several times."""
    folder = root / mutant.where
    if not folder.exists():
        raise NotThere(f"there is no {mutant.where}; name the folder or file that holds the code now")
    try:
        old, _ = pair(mutant.old, mutant.new)
    except SyntaxError as error:
        raise NotThere(
            f"`old` or `new` is no Python ({error.msg}): whole expressions or statements are needed"
        ) from None
    found = find(folder, mutant.function, old)
    if not found:
        raise NotThere(f"`{mutant.old}` is not in {_spot(mutant.where, mutant.function)}. {_advice(mutant, root, old)}")
    if mutant.nth > len(found):
        raise NotThere(f"nth is {mutant.nth}, but there are {len(found)} of {mutant.old!r} in {mutant.function}")
    if not mutant.nth and len(found) > 1:
        lines = ", ".join(f"{each.file.relative_to(root)}:{each.nodes[0].lineno}" for each in found)
        raise NotThere(f"`{mutant.old}` stands {len(found)} times ({lines}): add nth, or take a longer expression")
    return found[max(mutant.nth, 1) - 1]


def _advice(mutant: Mutant, root: Path, old: tuple[ast.AST, ...]) -> str:
    """What to write instead, if something like it is found."""
    like = nearest(root / "posterity", root / mutant.where, mutant.function, old)
    if like is None:
        return "Nothing looks like it: write `function`, `old` and `new` again for the code as it is now"
    file = like.file.relative_to(root).as_posix()
    here = file.startswith(mutant.where)
    where = "" if here else f'where = "{file}", '
    return f"Nearest ({file}:{like.nodes[0].lineno}): {where}function = {like.function!r}, old = {like.text!r}"


def _spot(where: str, function: str) -> str:
    return f"{function} of {where}" if function else f"{where} outside functions and classes"


def applied(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """The file that an entry changes, and its text with the change."""
    found = place(mutant, root)
    return found.file, replaced(found, mutant.new, found.file.read_text(encoding="utf-8"))


def fault(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Why an entry is not a mutant of the code as it is now, and how to mend it; None if it is one."""
    where = f"tests/mutants/{mutant.listed}.toml, {mutant.what!r}"
    try:
        file, text = applied(mutant, root)
        changed = meaning(text)
    except NotThere as error:
        return f"{where}: {error}"
    except SyntaxError as error:
        return f"{where}: the changed file is no Python ({error.msg}, line {error.lineno}); mend `new`"
    if changed == meaning(file.read_text(encoding="utf-8")):
        return f"{where}: nothing but layout, a comment or a docstring would change; choose a line of code"
    missing = [test for test in mutant.tests if not _exists(test, root)]
    return f"{where}: there is no test {missing[0]}; name the tests that are to notice it" if missing else None


def moved(mutant: Mutant, root: Path = ROOT) -> Mutant | None:
    """The entry for the one other place of its list's folder or of `SHARED` where its code stands unchanged."""
    try:
        place(mutant, root)
    except NotThere:
        home = HOMES.get(mutant.listed, f"posterity/{mutant.listed}")
        for where in (home, *(f"posterity/{room}" for room in SHARED)):
            found = everywhere(root / where, pair(mutant.old, mutant.new)[0])
            same = [each for each in found if each.function.split(".")[-1] == mutant.function.split(".")[-1]]
            if len(found) == 1 or len(same) == 1:
                return replace(mutant, where=where, function=(same or found)[0].function)
    return None


def rewrite(before: Mutant, after: Mutant, folder: Path = FOLDER) -> None:
    """Let an entry of a list say where its code stands now."""
    path = folder / f"{before.listed}.toml"
    head, *blocks = path.read_text(encoding="utf-8").split("[[mutant]]\n")
    named = [tomllib.loads(block)["what"] for block in blocks]
    i = named.index(before.what)
    for key in ("where", "function"):
        old, new = (f'{key} = "{getattr(one, key)}"\n' for one in (before, after))
        blocks[i] = blocks[i].replace(old, new, 1)
    path.write_text("[[mutant]]\n".join([head, *blocks]), encoding="utf-8")


def _exists(test: str, root: Path) -> bool:
    """Whether there is such a file of tests, and in it the function that is named, if one is."""
    file, _, rest = test.partition("::")
    if not (root / file).exists():
        return False
    return not rest or f"def {rest.partition('[')[0]}(" in (root / file).read_text(encoding="utf-8")


@lru_cache(maxsize=16)  # of the file as it is, which many entries change one after another
def meaning(text: str) -> str:
    """Code without comments and docstrings, in one spelling."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
