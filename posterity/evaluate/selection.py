"""Which round a table shows. Every rule sees the same run; a table must name the one it used.

An entry is `{"round", "validation", "test", "held"}`: the metric on the half that chooses, on the half that is
reported, and on both together. `validated` is honest; `paper` chooses and reports on the same rows, as most papers
do; `last` chooses nothing. `experiment/result.py` and `report/table.py` make entries of a run's lines; the
metric and whether more of it is better are in `metrics.py`.

Where a score stops being one: said once, for a run that judges itself and for a table that judges runs.

What a result cost: rounds and bytes until an accuracy is reached, and how sparse a tree is.

A history is a list of entries `{"round", "accuracy", "bytes_up", "bytes_down"}`. Bytes are *cumulative*: all that was
sent by (up) and to (down) the clients from the start up to and including that round. Rounds without an evaluation
may be left out or have an accuracy of None or nan. `experiment/result.py` makes such histories of a run's lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from posterity.core.tree import Tree, tree_leaves
from posterity.settings.hyperparameters import nearest

TIMES = 1e3  # the NLL of guessing: no network that learnt anything is so sure and so wrong


def absurd_nll(classes: int) -> float:
    """The mean NLL from which on a run has exploded."""
    return TIMES * math.log(max(classes, 2))


RoundCost = Mapping[str, float | None]


def rounds_to(history: Sequence[RoundCost], accuracy: float) -> int | None:
    """The first round whose accuracy is at least `accuracy`, or None if there is none."""
    entry = _first(history, accuracy)
    return None if entry is None else int(_number(entry, "round"))


def bytes_to(history: Sequence[RoundCost], accuracy: float) -> int | None:
    """Bytes sent in both directions until the first round whose accuracy is at least `accuracy`, or None."""
    ordered = sorted(history, key=lambda entry: _number(entry, "round"))
    sent = [_number(e, "bytes_up") + _number(e, "bytes_down") for e in ordered]
    if any(later < earlier for earlier, later in pairwise(sent)):
        raise ValueError("bytes fall from one round to the next: they must be totals since the start, not per round")
    entry = _first(history, accuracy)
    return None if entry is None else int(_number(entry, "bytes_up") + _number(entry, "bytes_down"))


def share_of_zeros(tree: Tree) -> float:
    """Share of exact zeros among the floating entries of a tree (counters are no weights); nan if it has none."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    size = sum(leaf.numel() for leaf in leaves)
    return sum(int((leaf == 0).sum()) for leaf in leaves) / size if size else math.nan


def _first(history: Sequence[RoundCost], accuracy: float) -> RoundCost | None:
    reached = [e for e in history if (value := e.get("accuracy")) is not None and value >= accuracy]  # nan is not
    return min(reached, key=lambda entry: _number(entry, "round"), default=None)


def _number(entry: RoundCost, name: str) -> float:
    value = entry.get(name)
    if value is None:
        raise ValueError(f"history entry {dict(entry)} has no {name!r}")
    return value


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
