"""Which round is shown: each rule by hand, and that `validated` cannot see what it reports."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping

import pytest

from posterity.evaluate.selection import Selection, select

ENTRIES: list[dict[str, float | None]] = [
    {"round": 0, "validation": 0.1, "test": 0.20, "held": 0.15},
    {"round": 20, "validation": 0.8, "test": 0.60, "held": 0.70},
    {"round": 10, "validation": 0.8, "test": 0.50, "held": 0.65},
    {"round": 30, "validation": 0.7, "test": 0.90, "held": 0.80},
    {"round": 40, "validation": 0.6, "test": 0.40, "held": 0.50},
]


def test_rules_by_hand() -> None:
    assert select(ENTRIES, "validated") == Selection(10, 0.50)  # the earlier of two rounds with 0.8
    assert select(ENTRIES, "paper") == Selection(30, 0.80)
    assert select(ENTRIES, "last") == Selection(40, 0.40)
    assert select(ENTRIES) == Selection(10, 0.50)


def test_lower_is_better() -> None:
    assert select(ENTRIES, "validated", higher=False) == Selection(0, 0.20)
    assert select(ENTRIES, "paper", higher=False) == Selection(0, 0.15)
    assert select(ENTRIES, "last", higher=False) == Selection(40, 0.40)


class Sealed(Mapping[str, float | None]):
    """An entry that notes which of its values were looked at."""

    def __init__(self, values: dict[str, float | None], seen: list[tuple[object, str]]) -> None:
        self.values_, self.seen = values, seen

    def __getitem__(self, name: str) -> float | None:
        self.seen.append((self.values_["round"], name))
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def test_validated_looks_at_the_test_value_of_its_round_alone() -> None:
    seen: list[tuple[object, str]] = []
    select([Sealed(entry, seen) for entry in ENTRIES], "validated")
    assert [look for look in seen if look[1] in ("test", "held")] == [(10, "test")]


def test_no_test_value_changes_the_validated_round() -> None:
    draw = random.Random(0)
    for _ in range(50):
        leaked = [{**e, "test": draw.choice([draw.random(), math.nan, None]), "held": draw.random()} for e in ENTRIES]
        assert select(leaked, "validated").round == 10


def test_nan_is_never_best() -> None:
    entries: list[dict[str, float | None]] = [
        {"round": 1, "validation": math.nan, "test": 0.9, "held": math.nan},
        {"round": 2, "validation": 0.3, "test": 0.4, "held": 0.35},
        {"round": 3, "validation": None, "test": math.nan, "held": None},
    ]
    for higher in (True, False):
        assert select(entries, "validated", higher) == Selection(2, 0.4)
        assert select(entries, "paper", higher) == Selection(2, 0.35)
    assert select(entries, "last").round == 3
    assert math.isnan(select(entries, "last").value)
    diverged = select([entries[0]], "validated")
    assert diverged.round is None
    assert math.isnan(diverged.value)


@pytest.mark.parametrize("rule", ["validated", "paper", "last"])
def test_no_rounds_is_an_error_that_says_so(rule: str) -> None:
    with pytest.raises(ValueError, match="no round was evaluated"):
        select([], rule)


def test_unknown_rule_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'validated'"):
        select(ENTRIES, "validate")
