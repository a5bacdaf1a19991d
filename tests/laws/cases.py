"""Methods, networks and laws as parameters of tests: two files share them, so that two processes can."""

from __future__ import annotations

import functools

import pytest

from posterity.laws import LAWS, make_case

from .roster import cases

CASES = {f"{name}-{model}": (name, method, model, long) for name, method, model, long in cases()}


@functools.lru_cache(maxsize=1)  # tests are sorted by case: one subject at a time, its runs shared by all laws
def case_named(case):
    _, method, model, _ = CASES[case]
    return make_case(method, model)


def under_laws(keep):
    """A parameter for every law and every case whose (name, model) is kept; the long ones are for `make test-all`."""
    return [
        pytest.param(case, law, id=f"{case}-{law.name}", marks=[pytest.mark.everything] if long else [])
        for case, (name, _, model, long) in CASES.items()
        if keep(name, model)
        for law in LAWS
    ]
