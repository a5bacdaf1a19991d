"""Mergeable metrics: sums per client that add, and the numbers that follow from them."""

from posterity.evaluate.cost import bytes_to, rounds_to, share_of_zeros
from posterity.evaluate.metrics import Bin, Summary, curve, fairness, gap, per_client, summarise
from posterity.evaluate.ranks import Ranks, rank
from posterity.evaluate.scores import Scores, joined, score, zero
from posterity.evaluate.selection import Choice, last, paper, select, validated

__all__ = [
    "Bin",
    "Choice",
    "Ranks",
    "Scores",
    "Summary",
    "bytes_to",
    "curve",
    "fairness",
    "gap",
    "joined",
    "last",
    "paper",
    "per_client",
    "rank",
    "rounds_to",
    "score",
    "select",
    "share_of_zeros",
    "summarise",
    "validated",
    "zero",
]
