"""What a result cost: rounds and bytes until an accuracy is reached, and how sparse a tree is.

A history is a list of entries `{"round", "accuracy", "bytes_up", "bytes_down"}`. Bytes are *cumulative*: all that was
sent by (up) and to (down) the clients from the start up to and including that round. Rounds without an evaluation
may be left out or have an accuracy of None or nan. `experiment/result.py` makes such histories of a run's lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from posterity.core.tree import Tree, tree_leaves

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
