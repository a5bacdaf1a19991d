"""Every method keeps every law."""

from __future__ import annotations

import functools
import pkgutil

import pytest

import posterity.methods
from posterity.laws import LAWS, check, subject
from posterity.methods.fedavg import FedAvg

from .roster import cases

CASES = {f"{name}-{model}": (method, model, long) for name, method, model, long in cases()}


def marks(long):
    return [pytest.mark.everything] if long else []


@functools.lru_cache(maxsize=1)  # tests are sorted by case: one subject at a time, its runs shared by all laws
def subject_of(case):
    method, model, _ = CASES[case]
    return subject(method, model)


@pytest.mark.parametrize(
    ("case", "law"),
    [
        pytest.param(case, law, id=f"{case}-{law.name}", marks=marks(long))
        for case, (_, _, long) in CASES.items()
        for law in LAWS
    ],
)
def test_law(case, law):
    law.function(subject_of(case))


def test_every_file_is_under_the_laws():
    files = {f.name for f in pkgutil.iter_modules(posterity.methods.__path__) if not f.ispkg and f.name[0] != "_"}
    assert files == {case.removesuffix("-mlp") for case in CASES if case.endswith("-mlp")} & files


def test_check_is_deterministic_and_says_how_long_it_took():
    names = ["structure", "sums"]
    first, second = (check(FedAvg(), only=names) for _ in range(2))
    assert [(v.law, v.held, v.detail) for v in first] == [(v.law, v.held, v.detail) for v in second]
    assert {v.law for v in first} == set(names)
    assert all(v.held and v.seconds > 0 for v in first)
