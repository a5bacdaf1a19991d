"""Rounds and bytes until an accuracy, by hand."""

from __future__ import annotations

import math

import torch

from posterity.evaluate import bytes_to, rounds_to, share_of_zeros

HISTORY: list[dict[str, float | None]] = [
    {"round": 20, "accuracy": 0.5, "bytes_up": 200, "bytes_down": 400},
    {"round": 10, "accuracy": 0.6, "bytes_up": 100, "bytes_down": 200},
    {"round": 30, "accuracy": math.nan, "bytes_up": 300, "bytes_down": 600},
    {"round": 40, "accuracy": None, "bytes_up": 400, "bytes_down": 800},
    {"round": 50, "accuracy": 0.7, "bytes_up": 500, "bytes_down": 1000},
]


def test_the_first_round_that_reaches_it() -> None:
    assert rounds_to(HISTORY, 0.5) == 10  # not the order of the list, and not the later fall
    assert rounds_to(HISTORY, 0.7) == 50
    assert rounds_to(HISTORY, 0.71) is None
    assert rounds_to([], 0.1) is None


def test_bytes_are_totals_of_both_directions() -> None:
    assert bytes_to(HISTORY, 0.6) == 300
    assert bytes_to(HISTORY, 0.65) == 1500
    assert bytes_to(HISTORY, 0.9) is None


def test_share_of_zeros_counts_floating_leaves() -> None:
    tree = {"a": torch.tensor([0.0, 1.0, -0.0]), "b": (torch.zeros(5), torch.tensor([0, 0, 0]))}
    assert share_of_zeros(tree) == 7 / 8
    assert math.isnan(share_of_zeros({"steps": torch.tensor(3)}))
