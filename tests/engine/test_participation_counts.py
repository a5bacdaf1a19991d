"""How many take part: a share is rounded to the nearest client and never to nobody, a probability asks each client."""

from __future__ import annotations

import pytest
import torch

from posterity.core.random import make_key
from posterity.engine.participation import Participation


def cohort(text, clients, round=1):
    return Participation.parse(text).draw(torch.arange(clients), make_key(0), round)


@pytest.mark.parametrize(
    ("text", "clients", "count"),
    [("10%", 10, 1), ("10%", 14, 1), ("10%", 15, 2), ("10%", 19, 2), ("25%", 10, 3), ("50%", 5, 3), ("99%", 30, 30),
     ("1%", 7, 1), ("5%", 9, 1), ("7", 9, 7), ("all", 9, 9), ("100%", 9, 9)],
)  # fmt: skip
def test_counts_by_hand(text, clients, count):
    assert len(cohort(text, clients)) == count


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.8])
def test_so_many_are_available_on_average(probability):
    clients, rounds = 400, 25
    times = sum(len(cohort(f"p:{probability}", clients, round)) for round in range(rounds))
    spread = (clients * rounds * probability * (1 - probability)) ** 0.5  # of a binomial
    assert abs(times - clients * rounds * probability) < 4 * spread


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "p:0", "p:1.5", "many", "2.5"])
def test_what_is_no_number_of_clients_is_refused(text):
    with pytest.raises(ValueError, match="participation"):
        Participation.parse(text)
