"""Mergeable metrics: sums per client that add, and the numbers that follow from them.

`scores` and `ranks` are what a scoring pass keeps, `metrics` what follows from it, `summaries` the numbers for people
and how unequal clients are, `user_metrics` what you add; `selection` chooses the round that is shown and counts rounds
and bytes, `paired` and `student` compare methods.
"""

from posterity.evaluate.metrics import METRICS, Metric, Statistics, goal_of, listed_per_client
from posterity.evaluate.ranks import RankedRows, rank
from posterity.evaluate.scores import Scores, score, zero
from posterity.evaluate.selection import select, share_of_zeros
from posterity.evaluate.summaries import FIGURES, fairness, per_client, summarise
from posterity.evaluate.user_metrics import check_task, load_metrics, user_sums

__all__ = [
    "FIGURES",
    "METRICS",
    "Metric",
    "RankedRows",
    "Scores",
    "Statistics",
    "check_task",
    "fairness",
    "goal_of",
    "listed_per_client",
    "load_metrics",
    "per_client",
    "rank",
    "score",
    "select",
    "share_of_zeros",
    "summarise",
    "user_sums",
    "zero",
]
