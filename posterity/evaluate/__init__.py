"""Mergeable metrics: sums per client that add, and the numbers that follow from them.

`scores` and `ranks` are what a scoring pass keeps, `metric` and `metrics` what follows from it, `summaries` and
`fairness` the numbers for people, `user_metrics` what you add; `selection` chooses the round that is shown, `paired`
and `student` compare methods, `cost` counts rounds and bytes.
"""

from __future__ import annotations

from posterity.evaluate.metrics import (
    METRICS,
    NUMBER,
    PERCENT,
    Format,
    Metric,
    Statistics,
    goal_of,
    listed_per_client,
)
from posterity.evaluate.ranks import RankedRows, rank
from posterity.evaluate.scores import Scores, joined, score, zero
from posterity.evaluate.selection import (
    Selection,
    bytes_to,
    last,
    paper,
    rounds_to,
    select,
    share_of_zeros,
    validated,
)
from posterity.evaluate.summaries import FIGURES, Bin, Summary, curve, fairness, gap, per_client, summarise
from posterity.evaluate.user_metrics import check_task, load_metrics, user_sums

__all__ = [
    "FIGURES",
    "METRICS",
    "NUMBER",
    "PERCENT",
    "Bin",
    "Format",
    "Metric",
    "RankedRows",
    "Scores",
    "Selection",
    "Statistics",
    "Summary",
    "bytes_to",
    "check_task",
    "curve",
    "fairness",
    "gap",
    "goal_of",
    "joined",
    "last",
    "listed_per_client",
    "load_metrics",
    "paper",
    "per_client",
    "rank",
    "rounds_to",
    "score",
    "select",
    "share_of_zeros",
    "summarise",
    "user_sums",
    "validated",
    "zero",
]
