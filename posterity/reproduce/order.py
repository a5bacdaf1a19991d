"""Whether our runs put the rows of a table in the paper's order, and which pairs they do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from posterity.evaluate.paired import compare_pair
from posterity.report.verdict import amount
from posterity.reproduce.beside import Entry, compared_by, level, reach

NUMBER = re.compile(r"[-+−]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")


def number(text: str) -> float | None:
    """The first number of a printed cell."""
    match = NUMBER.search(text)
    return float(match[0].replace("−", "-")) if match else None


def order(found: Sequence[Entry], by: str = "") -> str:
    """How many pairs of rows stand in the paper's order, in a sentence, and which are told apart the other way round.

    Rows of which runs exploded have no place in it. Nothing where there are no two rows to compare. `by` is the
    selection rule that the rows were made by, if not the one without leaks.
    """
    rule = by or compared_by(found)
    sound = [each for each in found if not each.mark]
    both = [(e, p, o) for e in sound if (p := number(e.paper)) is not None and (o := _ours(e, rule)) is not None]
    pairs = [(a, b) for a, b in combinations(both, 2) if a[1] != b[1]]
    if not pairs:
        return ""
    others = [sorted((a, b), key=lambda row: -row[2]) for a, b in pairs if (a[1] - b[1]) * (a[2] - b[2]) <= 0]
    told = f"{len(pairs) - len(others)} of {len(pairs)} pairs of methods are in the paper's order."
    apart = [said for first, second in others if (said := _apart(first[0], second[0]))]
    if not others:
        return told
    if not apart:
        one = max(each.seeds for each in found) == 1
        return f"{told} {'One seed tells no two apart' if one else 'Of the others our seeds tell none apart'}."
    return f"{told} Of the others our seeds tell apart: {'; '.join(apart)}."


def _ours(each: Entry, rule: str) -> float | None:
    """The mean over our seeds as it is: rounded as it is printed, two rows may look equal."""
    return fmean(sample.value for sample in each.samples.values()) if each.samples else number(each.ours[rule])


def _apart(first: Entry, second: Entry) -> str:
    """By how much the first is above the second; empty where the interval of this pair does not say so."""
    if not first.samples or not second.samples:
        return ""
    pair = compare_pair(first.samples, second.samples)
    if level(pair) or pair.difference < 0:  # of the seeds that both have
        return ""
    by = amount(pair.difference, first.column) + reach(pair, first.column)
    return f"{first.line.name} above {second.line.name} by {by}"


__all__ = ["number", "order"]
