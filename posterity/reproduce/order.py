"""Whether our runs put the rows of a table in the paper's order, and which pairs they do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

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

    Rows of which runs exploded, or that have another size, have no place in it. Nothing where there are no two rows to
    compare. `by` is the selection rule that the rows were made by, if not the one without leaks.
    """
    rule = by or compared_by(found)
    pairs = [(a, b, theirs, ours) for a, b in combinations(found, 2) if not a.mark and not b.mark and a.size == b.size
             if (theirs := _theirs(a, b)) and (ours := _ours(a, b, rule)) is not None]  # fmt: skip
    if not pairs:
        return ""
    others = [(a, b) if ours > 0 else (b, a) for a, b, theirs, ours in pairs if theirs * ours <= 0]
    told = f"{len(pairs) - len(others)} of {len(pairs)} pairs of methods are in the paper's order."
    apart = [said for first, second in others if (said := _apart(first, second))]
    if not others:
        return told
    if not apart:
        one = max(each.seeds for each in found) == 1
        return f"{told} {'One seed tells no two apart' if one else 'Of the others our seeds tell none apart'}."
    return f"{told} Of the others our seeds tell apart: {'; '.join(apart)}."


def _theirs(first: Entry, second: Entry) -> float:
    """By how much the paper has the first above the second; 0 where it has them level, or one of them not at all."""
    a, b = number(first.paper), number(second.paper)
    return 0.0 if a is None or b is None else a - b


def _ours(first: Entry, second: Entry, rule: str) -> float | None:
    """By how much our runs have it so: over the seeds of both, of means that are not rounded as they are printed."""
    if first.samples and second.samples:
        each = compare_pair(first.samples, second.samples)
        return each.difference if each.seeds else None
    a, b = number(first.ours[rule]), number(second.ours[rule])
    return None if a is None or b is None else a - b


def _apart(first: Entry, second: Entry) -> str:
    """By how much the first is above the second; empty where the interval of this pair does not say so."""
    if not first.samples or not second.samples:
        return ""
    pair = compare_pair(first.samples, second.samples)
    if level(pair):
        return ""
    by = amount(pair.difference, first.column) + reach(pair, first.column)
    return f"{first.line.name} above {second.line.name} by {by}"


__all__ = ["number", "order"]
