"""The mutants of `make mutants` are still changes of the code as it is."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from mutants.catalogue import HOMES, PAPERS, Mutant, applied, fault, listings, moved, rewrite
from mutants.catalogue import SHARED as ROOMS

LISTED = listings()
MUTANTS = [m for each in LISTED.values() for m in each.mutants]
BASELINES = [name for name in HOMES if name not in PAPERS]
SHARED = {
    "posterity/core",
    "posterity/methods/_meta.py",
    "posterity/methods/fedper.py",
}  # what several methods use
SHARED_FORMULAS = {  # of a paper, and of a kind of message or a likelihood that others use too
    "fedbps": [
        "(5): disagreement without its square, as in Algorithm 1",
        "(5): weight of the disagreement in Chan's rule",
    ],
    "fedrep": ["(3): the head is sent"],
    "fedmap": [
        "(5): distance without its square",
        "(9): weights turned upside down",
        "(9): a sum weighs as much as its largest part",
        "(3): the density of a regression target without its constant",
        "(3): the constant of a density without its half",
    ],
}
AREAS = ["data", "engine", "evaluate", "experiment", "flower", "papers", "report"]
ACROSS = ["terminal"]  # what people are shown comes from several folders


def test_there_is_a_list_for_each_paper_and_each_area():
    assert [name for name, each in LISTED.items() if each.laws] == list(HOMES)
    assert set(PAPERS) <= set(HOMES)
    assert [name for name, each in LISTED.items() if not each.laws] == [*AREAS, *ACROSS]


@pytest.mark.parametrize("name", [*HOMES, *AREAS, *ACROSS])
def test_each_list_is_long_enough(name):
    assert len(LISTED[name].mutants) >= (8 if name in BASELINES else 12)
    assert len({m.what for m in LISTED[name].mutants}) == len(LISTED[name].mutants)


@pytest.mark.parametrize("name", AREAS)
def test_an_area_changes_its_own_folder(name):
    outside = {m.where for m in LISTED[name].mutants if not f"{m.where}/".startswith(f"posterity/{name}/")}
    assert {where.split("/")[1] for where in outside} <= {
        *ROOMS,
        *(("report",) if name == "papers" else ()),
    }  # what it shares


@pytest.mark.parametrize("name", HOMES)
def test_a_paper_holds_its_own_mathematics(name):
    """What is changed lies in the paper's folder, unless two unrelated methods use it."""
    own = [m for m in LISTED[name].mutants if f"{m.where}/".startswith(f"{HOMES[name]}/")]
    outside = [m for m in LISTED[name].mutants if m not in own]
    print(f"{name}: {len(own)} of {len(LISTED[name].mutants)} lie in {HOMES[name]}")
    assert {m.where for m in outside} <= SHARED
    assert [m.what for m in outside if m.what.startswith("(")] == SHARED_FORMULAS.get(name, [])


@pytest.mark.parametrize("name", LISTED)
def test_all_of_a_list_apply(name):
    assert [found for mutant in LISTED[name].mutants if (found := fault(mutant))] == []


def test_no_change_is_listed_twice():
    assert len({(m.where, m.function, m.old, m.new, m.nth) for m in MUTANTS}) == len(MUTANTS)


CODE = '''"""Twice."""
LIMIT = 3


class Line:
    def at(self, x):
        """The height at x."""
        return (x
                * (x - 2))  # why

    def root(self, x):
        if x > 2:
            x = x - 2
        return x * (x - 2) + (x - 2)
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part" / "deep").mkdir(parents=True)
    (tmp_path / "part" / "deep" / "a.py").write_text(CODE)
    (tmp_path / "test_a.py").write_text("def test_f(x):\n    assert f(x) > 0\n")
    return tmp_path


SIGN = Mutant("fedmap", "part", "Line.at", "x - 2", "x + 2", "a sign")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": "a/missing.py"}, "there is no a/missing.py"),
        ({"function": "Line.up"}, "is not in Line.up of part"),
        ({"old": "x - 3"}, "is not in Line.at of part. Nearest"),
        (
            {"function": "Line.root"},
            "stands 3 times (part/deep/a.py:13, part/deep/a.py:14, part/deep/a.py:14): add nth",
        ),
        ({"function": "Line.root", "nth": 4}, "there are 3 of"),
        ({"new": "x +* 2"}, "no Python"),
        ({"old": "x * (", "new": "x + ("}, "no Python"),
        ({"old": "return y", "new": "yield y"}, "is not in Line.at"),
        ({"new": "(x  -  2)"}, "nothing but layout"),
        ({"function": "", "old": "LIMIT = 3", "new": "LIMIT = 4", "tests": ("test_b.py",)}, "no test test_b.py"),
        ({"tests": ("test_a.py", "test_b.py")}, "no test test_b.py"),
        ({"tests": ("test_a.py::test_g[1-2]",)}, "no test test_a.py::test_g"),
        ({"tests": ("test_a.py::test_f[1-2]",)}, None),
        ({}, None),
    ],
)
def test_the_rule_itself(folder, change, message):
    found = fault(replace(SIGN, **change), folder)
    assert (found is None) if message is None else message in found


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ({}, "* (x - 2))  # why", "* (x + 2))  # why"),
        ({"old": "x*(x-2)", "new": "x**2"}, "x\n                * (x - 2))", "x**2)"),
        ({"old": "x * (x - 2)", "new": "x, 1"}, "(x\n                * (x - 2))", "((x, 1))"),
        ({"function": "Line.root", "nth": 2}, "x * (x - 2) +", "x * (x + 2) +"),
        ({"function": "Line.root", "nth": 3, "new": "x or 2"}, "+ (x - 2)", "+ (x or 2)"),
        ({"function": "Line.root", "old": "x = x - 2", "new": "pass"}, "x = x - 2", "pass"),
        ({"function": "Line.root", "old": "x > 2", "new": "x > 2 if x else 0"}, "if x > 2:", "if x > 2 if x else 0:"),
        ({"function": "", "old": "LIMIT = 3", "new": "LIMIT = 4\nMORE = 1"}, "LIMIT = 3", "LIMIT = 4\nMORE = 1"),
    ],
)
def test_the_rest_of_the_file_stays_as_it_is(folder, change, old, new):
    file, text = applied(replace(SIGN, **change), folder)
    assert file == folder / "part" / "deep" / "a.py"
    assert text == CODE.replace(old, new, 1)


def test_brackets_are_added_where_they_are_needed(folder):
    (folder / "part" / "b.py").write_text("def f(x):\n    return g(x) ** 2\n")
    _, text = applied(replace(SIGN, function="f", old="g(x)", new="-x"), folder)
    assert text == "def f(x):\n    return (-x) ** 2\n"


def test_an_entry_whose_code_has_moved_follows_it(folder):
    home = folder / "posterity" / "engine" / "deep"
    home.mkdir(parents=True)
    (home / "new.py").write_text(CODE.replace("Line", "Curve"))
    entry = replace(SIGN, listed="engine", where="posterity/engine/old.py")
    after = moved(entry, folder)
    assert after == replace(entry, where="posterity/engine", function="Curve.at")
    text = """tests = []\n\n[[mutant]]\nwhere = "posterity/engine/old.py"\nfunction = "Line.at"\nold = 'x - 2'\n"""
    (folder / "engine.toml").write_text(text + "new = 'x + 2'\nwhat = \"a sign\"\n")
    rewrite(entry, after, folder)
    written = tomllib.loads((folder / "engine.toml").read_text())["mutant"]
    assert written == [{k: getattr(after, k) for k in ("where", "function", "old", "new", "what")}]


def test_an_entry_whose_code_has_moved_is_told_where_to(folder):
    (folder / "posterity").mkdir()
    (folder / "posterity" / "new.py").write_text(CODE.replace("Line", "Curve"))
    (folder / "part" / "deep" / "a.py").write_text("")
    message = fault(SIGN, folder)
    assert "where = \"posterity/new.py\", function = 'Curve.at', old = 'x - 2'" in message
