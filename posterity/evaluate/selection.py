"""Which round a table shows, and where a score stops being one.

Every rule of selection sees the same run, and a table must name the one it used. An entry is `{"round", "validation",
"test", "held"}`: the metric on the half that chooses, on the half that is reported, and on both together. `validated`
is honest; `paper` chooses and reports on the same rows, as most papers do: optimistic, for comparison with printed
tables; `last` chooses nothing.

`experiment/result.py` and `report/table.py` make entries of a run's lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from posterity.core.tree import Tree, tree_leaves
from posterity.settings.hyperparameters import nearest

Entry = Mapping[str, float | None]
"""A round, by the names above."""


@dataclass(frozen=True)
class Selection:
    """The round a rule settled on and the value it reports; round None if no round had a value to choose by."""

    round: int | None
    value: float


RULES = {"validated": ("validation", "test"), "paper": ("held", "held"), "last": ("round", "test")}
"""By which number a rule chooses a round, and which one it reports."""


def select(entries: Sequence[Entry], rule: str = "validated", higher: bool = True) -> Selection:
    """The selection of the named rule, the earliest of equals; `higher` says whether a larger value is better."""
    if rule not in RULES:
        raise ValueError(f"there is no selection rule {rule!r}: {nearest(rule, RULES)}")
    if not entries:
        raise ValueError("no round was evaluated, so none can be selected: evaluate at least once in the run")
    by, shown = RULES[rule]
    sign = 1 if higher or rule == "last" else -1
    known = [entry for entry in sorted(entries, key=_round) if not math.isnan(_value(entry, by))]
    if not known:  # a run that diverged at once still has a row in the table
        return Selection(None, math.nan)
    best = max(known, key=lambda entry: sign * _value(entry, by))  # max keeps the first of equals
    return Selection(_round(best), _value(best, shown))


def _round(entry: Entry) -> int:
    return int(entry["round"] or 0)


def _value(entry: Entry, name: str) -> float:
    value = entry.get(name)
    return math.nan if value is None else float(value)


def diverged_nll(classes: int) -> float:
    """The mean NLL from which on a run has diverged: a thousand times that of guessing.

    No network that learnt anything is so sure and so wrong.
    """
    return 1e3 * math.log(max(classes, 2))


def share_of_zeros(tree: Tree) -> float:
    """Share of exact zeros among the floating entries of a tree (counters are no weights); nan if it has none."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    size = sum(leaf.numel() for leaf in leaves)
    return sum(int((leaf == 0).sum()) for leaf in leaves) / size if size else math.nan
