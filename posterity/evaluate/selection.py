"""Which round a table shows. Every rule sees the same run; a table must name the one it used.

An entry is `{"round", "validation", "test", "held"}`: the metric on the half that chooses, on the half that is
reported, and on both together. `validated` is honest; `paper` chooses and reports on the same rows, as most papers
do; `last` chooses nothing. `experiment/result.py` and `report/selected_round.py` make entries of a run's lines; the
metric and whether more of it is better are in `metrics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from posterity.core.hyperparameters import nearest

RoundValues = Mapping[str, float | None]


@dataclass(frozen=True)
class Selection:
    """The round a rule settled on and the value it reports; round None if no round had a value to choose by."""

    round: int | None
    value: float


def validated(entries: Sequence[RoundValues], higher: bool = True) -> Selection:
    """The test value at the round with the best validation value (the earliest of equals)."""
    return _best(entries, "validation", "test", higher)


def paper(entries: Sequence[RoundValues], higher: bool = True) -> Selection:
    """The best value on all held-out rows over the rounds: optimistic, for comparison with printed tables."""
    return _best(entries, "held", "held", higher)


def last(entries: Sequence[RoundValues], higher: bool = True) -> Selection:
    """The test value at the last round, whatever it is."""
    entry = _ordered(entries)[-1]
    return Selection(_round(entry), _value(entry, "test"))


RULES: dict[str, Callable[[Sequence[RoundValues], bool], Selection]] = {
    "validated": validated,
    "paper": paper,
    "last": last,
}


def select(entries: Sequence[RoundValues], rule: str = "validated", higher: bool = True) -> Selection:
    """The selection of the named rule; `higher` says whether a larger value is better."""
    if rule not in RULES:
        raise ValueError(f"there is no selection rule {rule!r}: {nearest(rule, RULES)}")
    return RULES[rule](entries, higher)


def _best(entries: Sequence[RoundValues], by: str, shown: str, higher: bool) -> Selection:
    known = [entry for entry in _ordered(entries) if not math.isnan(_value(entry, by))]
    if not known:  # a run that diverged at once still has a row in the table
        return Selection(None, math.nan)
    sign = 1 if higher else -1
    best = max(known, key=lambda entry: sign * _value(entry, by))  # max keeps the first of equals
    return Selection(_round(best), _value(best, shown))


def _ordered(entries: Sequence[RoundValues]) -> list[RoundValues]:
    if not entries:
        raise ValueError("no round was evaluated, so none can be selected: evaluate at least once in the run")
    return sorted(entries, key=_round)


def _round(entry: RoundValues) -> int:
    value = entry.get("round")
    if value is None:
        raise ValueError(f"entry {dict(entry)} does not say its round")
    return int(value)


def _value(entry: RoundValues, name: str) -> float:
    value = entry.get(name)
    return math.nan if value is None else float(value)
