"""Every method keeps every law."""

from __future__ import annotations

import pkgutil

import pytest

import posterity.methods
from posterity.laws import check
from posterity.methods.fedavg import FedAvg

from .cases import CASES, case_named, under_laws


@pytest.mark.parametrize(("case", "law"), under_laws(lambda name, model: model == "mlp" and "+" not in name))
def test_law(case, law):
    law.function(case_named(case))


def test_every_file_is_under_the_laws():
    files = {f.name for f in pkgutil.iter_modules(posterity.methods.__path__) if not f.ispkg and f.name[0] != "_"}
    assert files == {case.removesuffix("-mlp") for case in CASES if case.endswith("-mlp")} & files


def test_check_is_deterministic_and_says_how_long_it_took():
    names = ["structure", "sums"]
    first, second = (check(FedAvg(), only=names) for _ in range(2))
    assert [(v.law, v.held, v.detail) for v in first] == [(v.law, v.held, v.detail) for v in second]
    assert {v.law for v in first} == set(names)
    assert all(v.held and v.seconds > 0 for v in first)
