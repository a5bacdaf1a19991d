"""The mutants of `make mutants` are still changes of the code as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutants.catalogue import Mutant, fault, listings

LISTED = listings()
MUTANTS = [m for each in LISTED.values() for m in each.mutants]
PAPERS = ["fedbps", "fedmap", "fednp", "metavd", "pfedvmp"]
AREAS = ["data", "engine", "evaluate", "experiment", "report"]


def test_there_is_a_list_for_each_paper_and_each_area():
    assert [name for name, each in LISTED.items() if each.laws] == PAPERS
    assert [name for name, each in LISTED.items() if not each.laws] == AREAS


@pytest.mark.parametrize("name", [*PAPERS, *AREAS])
def test_each_list_has_a_dozen(name):
    assert len(LISTED[name].mutants) >= 12
    assert len({m.what for m in LISTED[name].mutants}) == len(LISTED[name].mutants)


@pytest.mark.parametrize("name", AREAS)
def test_an_area_changes_its_own_folder_only(name):
    assert {m.file.rsplit("/", 1)[0] for m in LISTED[name].mutants} == {f"posterity/{name}"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.listed}: {m.what}")
def test_it_applies(mutant):
    assert fault(mutant) is None


def test_no_change_is_listed_twice():
    assert len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "a/missing.py"}, "there is no file a/missing.py"),
        ({"old": "x - 3"}, "occurs 0 times"),
        ({"old": "x"}, "occurs 3 times"),
        ({"new": "x +* 2"}, "no Python"),
        ({"old": "# why", "new": "# because"}, "only a comment"),
        ({"tests": ("test_a.py", "test_b.py")}, "no test test_b.py"),
        ({"tests": ("test_a.py::test_g[1-2]",)}, "no test test_a.py::test_g"),
        ({"tests": ("test_a.py::test_f[1-2]",)}, None),
        ({}, None),
    ],
)
def test_the_rule_itself(tmp_path, change, message):
    (tmp_path / "a.py").write_text('"""Twice."""\n\n\ndef f(x):\n    return x * (x - 2)  # why\n')
    (tmp_path / "test_a.py").write_text("def test_f(x):\n    assert f(x) > 0\n")
    found = fault(replace(Mutant("fedmap", "a.py", "x - 2", "x + 2", "a sign"), **change), tmp_path)
    assert (found is None) if message is None else message in found
