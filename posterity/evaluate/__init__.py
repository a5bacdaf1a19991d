"""Mergeable metrics: sums per client that add, and the numbers that follow from them.

`scores` and `ranks` are what a scoring pass keeps, `metric` and `metrics` what follows from it, `summaries` and
`fairness` the numbers for people, `user_metrics` what you add; `selection` chooses the round that is shown, `paired`
and `student` compare methods, `cost` counts rounds and bytes.
"""

from posterity.evaluate.cost import bytes_to, rounds_to, share_of_zeros
from posterity.evaluate.fairness import FIGURES, fairness
from posterity.evaluate.metric import NUMBER, PERCENT, Format, Metric, Statistics
from posterity.evaluate.metrics import METRICS, goal_of, listed_per_client
from posterity.evaluate.ranks import RankedRows, rank
from posterity.evaluate.scores import Scores, joined, score, zero
from posterity.evaluate.selection import Selection, last, paper, select, validated
from posterity.evaluate.summaries import Bin, Summary, curve, gap, per_client, summarise
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
