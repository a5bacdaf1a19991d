"""The mutants of `make mutants` are still changes of the code as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutants.catalogue import Mutant, fault, papers

LISTED = papers()
MUTANTS = [m for paper in LISTED.values() for m in paper.mutants]


@pytest.mark.parametrize("paper", ["fedbps", "fedmap", "fednp", "metavd", "pfedvmp"])
def test_each_paper_has_a_dozen(paper):
    assert len(LISTED[paper].mutants) >= 12
    assert len({m.what for m in LISTED[paper].mutants}) == len(LISTED[paper].mutants)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.paper}: {m.what}")
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
        ({}, None),
    ],
)
def test_the_rule_itself(tmp_path, change, message):
    (tmp_path / "a.py").write_text('"""Twice."""\n\n\ndef f(x):\n    return x * (x - 2)  # why\n')
    found = fault(replace(Mutant("fedmap", "a.py", "x - 2", "x + 2", "a sign"), **change), tmp_path)
    assert (found is None) if message is None else message in found
