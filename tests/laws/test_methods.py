"""Every method keeps every law."""

from __future__ import annotations

import functools

import pytest
import torch

from posterity.laws import LAWS, subject

from .roster import cases

CASES = {f"{name}-{model}": (method, model, long) for name, method, model, long in cases()}


@functools.lru_cache(maxsize=1)  # tests are sorted by case: one subject at a time, its runs shared by all laws
def subject_of(case: str):
    method, model, _ = CASES[case]
    return subject(method, model)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("case", "law"),
    [
        pytest.param(case, law, id=f"{case}-{law.name}", marks=[pytest.mark.everything] if long else [])
        for case, (_, _, long) in CASES.items()
        for law in LAWS
    ],
)
def test_law(case, law):
    law.function(subject_of(case))
