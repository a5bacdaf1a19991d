"""Wrong methods are caught by the law that names their mistake, and their corrected twins keep it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass

import pytest

from posterity.core import holding
from posterity.laws import LAWS, LawBroken, check, make_case

from . import wrong
from .roster import LOCAL

FILES = [f.name for f in pkgutil.iter_modules(wrong.__path__)]
NAMED = {law.name: law for law in LAWS}


def load(file):
    return importlib.import_module(f"{wrong.__name__}.{file}")


@pytest.mark.parametrize("file", FILES)
def test_caught_by_its_law(file):
    module = load(file)
    with pytest.raises(LawBroken) as caught:
        NAMED[module.LAW].function(make_case(module.Wrong(LOCAL)))
    assert caught.value.law == module.LAW
    text = str(caught.value)
    assert NAMED[module.LAW].statement in text
    assert "remedy" in text


@pytest.mark.parametrize("file", FILES)
def test_twin_keeps_the_law(file):
    module = load(file)
    verdicts = check(module.Right(LOCAL), only=[module.LAW])
    assert [v.detail for v in verdicts] == [""]


@pytest.mark.everything
@pytest.mark.parametrize("file", FILES)
def test_twin_keeps_every_law(file):
    broken = [v.detail for v in check(load(file).Right(LOCAL)) if not v.held]
    assert broken == []


@pytest.mark.parametrize("law", NAMED)
def test_every_law_is_shown_to_bite(law):
    assert [file for file in FILES if law == load(file).LAW]


def test_a_crash_is_a_broken_law_and_not_a_crash_of_check():
    (verdict,) = check(load("global_random").Wrong(LOCAL), only=["engines"])
    assert not verdict.held
    assert "randomness" in verdict.detail


def test_an_unknown_law_is_named_with_the_possible_ones():
    with pytest.raises(ValueError, match="did you mean 'order'"):
        check(load("order").Right(LOCAL), only=["ordre"])


def test_who_declares_too_little_is_told_how_much_more_is_enough():
    hoarder = load("hoarder")
    (verdict,) = check(hoarder.Wrong(LOCAL), only=["memory"])
    more = int(re.search(r"holding\(passes, copies=(\d+)\) adds enough", verdict.detail)[1])

    def held(copies):
        enough = dataclass(frozen=True)(
            type("Enough", (hoarder.Wrong,), {"passes": lambda self: holding(hoarder.Wrong.passes(self), copies)})
        )
        return check(enough(LOCAL), only=["memory"])[0].held

    assert [held(more - 1), held(more)] == [False, True]
