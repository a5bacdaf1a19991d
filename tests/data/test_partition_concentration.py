"""How uneven a partition is: shares drawn from Dirichlet(α, …, α) over n clients have E Σ p² = (α + 1) / (nα + 1)."""

import numpy as np
import pytest
import torch

from posterity.data import parse_partition

CLIENTS, CLASSES, ROWS = 10, 150, 400
LABELS = torch.arange(CLASSES).repeat_interleave(ROWS)


def divided(text: str, seed: int, y: torch.Tensor = LABELS, clients: int = CLIENTS) -> list[torch.Tensor]:
    return parse_partition(text).divide(y, clients, np.random.default_rng(seed))


def squares(owned: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    """Σ p² over the clients, for each class."""
    counts = torch.stack([torch.bincount(y[rows], minlength=int(y.max()) + 1) for rows in owned]).double()
    return (counts / counts.sum(0)).square().sum(0)


@pytest.mark.parametrize("rule", ["dirichlet", "balanced"])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0, 5.0])
def test_shares_of_a_class(rule: str, alpha: float) -> None:
    found = torch.cat([squares(divided(f"{rule}:{alpha}:1", seed), LABELS) for seed in range(2)])
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean()) - (alpha + 1) / (CLIENTS * alpha + 1)) < 4 * error + 1 / ROWS


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_sizes_of_clients(alpha: float) -> None:
    y = torch.zeros(2000, dtype=torch.int64)
    found = torch.cat([squares(divided(f"quantity:{alpha}:1", seed, y), y) for seed in range(300)])
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean()) - (alpha + 1) / (CLIENTS * alpha + 1)) < 4 * error


@pytest.mark.parametrize("text", ["dirichlet:0.5:60", "balanced:0.5:183", "quantity:0.8:50"])
def test_a_minimum_is_kept_where_a_single_draw_would_miss_it(text: str) -> None:
    y = torch.arange(10).repeat_interleave(200)
    *words, minimum = text.split(":")
    smallest = [min(map(len, divided(f"{':'.join(words)}:1", seed, y))) for seed in range(5)]
    assert min(smallest) < int(minimum)  # so this test can fail
    assert all(min(map(len, divided(text, seed, y))) >= int(minimum) for seed in range(5))


@pytest.mark.parametrize("text", ["dirichlet:5:1", "balanced:5:1", "capped:5:1", "quantity:5:1", "iid"])
def test_rows_of_a_class_are_drawn_and_not_taken_in_order(text: str) -> None:
    """Data are often sorted by time or place: a client must not get a stretch of them."""
    y = torch.zeros(300, dtype=torch.int64)
    for rows in divided(text, 0, y, 3):
        assert len(rows) > 20
        assert len(rows) < int(rows.max() - rows.min())
        assert abs(float(rows.double().mean()) - 149.5) < 6 * 87 / len(rows) ** 0.5
