"""The sums: against scikit-learn and by hand, and that they neither mix clients nor depend on company or order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, mean_squared_error
from torch import Tensor

from posterity.core.tree import tree_cat, tree_leaves, tree_named, tree_rows
from posterity.evaluate import Scores, per_client, score, zero
from posterity.evaluate.scores import split

from .samples import close, predictions

COUNTS = [7, 0, 1, 40, 13, 0]


def same_bits(a: Scores, b: Scores) -> None:
    for (name, x), (_, y) in zip(tree_named(a), tree_named(b), strict=True):
        assert torch.equal(x, y), name


def test_every_sum_against_plain_numpy() -> None:
    logs, y, offsets = predictions(COUNTS, 5)
    scores = score(logs, y, offsets, 5, "classification")
    for k in range(len(COUNTS)):
        mine = slice(offsets[k], offsets[k + 1])
        p, label = logs[mine].exp().numpy(), y[mine].numpy()
        hot, guess = np.eye(5)[label], p.argmax(1) if len(p) else np.zeros(0, int)
        assert scores.n[k] == len(p)
        assert scores.correct[k] == (guess == label).sum()
        assert scores.brier[k].item() == pytest.approx(((p - hot) ** 2).sum(), abs=1e-13)
        for c in range(5):
            assert scores.support[k, c] == (label == c).sum()
            assert scores.hits[k, c] == ((label == c) & (guess == c)).sum()
        for b in range(10):
            inside = (p >= b / 10) & (p < (b + 1) / 10)
            expected = [inside.sum(), p[inside].sum(), hot[inside].sum()]
            np.testing.assert_allclose(scores.flat[k, b].numpy(), expected, atol=1e-13)
        top = p.max(1, initial=0)
        for b in range(15):
            inside = (top > b / 15) & (top <= (b + 1) / 15)
            expected = [inside.sum(), top[inside].sum(), (guess == label)[inside].sum()]
            np.testing.assert_allclose(scores.bins[k, b].numpy(), expected, atol=1e-13)


def test_a_confidence_on_the_edge_of_two_bins_is_in_the_lower_one() -> None:
    """Bins are (m − 1)/15 < p ≤ m/15 (Guo et al., 2017): closed above, where p · 15 is a whole number in float64."""
    met = 0
    for m in range(1, 16):
        p = torch.full((1, 15), (15 - m) / 15 / 14, dtype=torch.float64)
        p[0, 3] = m / 15
        logs = p.log()
        if float(logs.exp().max()) * 15 != m:
            continue  # the logarithm has moved it off the edge
        met += 1
        scores = score(logs, torch.tensor([3]), torch.tensor([0, 1]), 15, "classification")
        assert scores.bins[0, :, 0].nonzero().flatten().tolist() == [m - 1]
    assert met >= 7


def test_nll_is_log_loss() -> None:
    logs, y, offsets = predictions([60], 4)
    scores = score(logs, y, offsets, 4, "classification")
    expected = log_loss(y.numpy(), logs.exp().numpy(), labels=range(4))
    assert per_client(scores)["nll"].item() == pytest.approx(expected, abs=1e-12)


def test_regression_is_the_gaussian_density() -> None:
    draw = torch.Generator().manual_seed(1)
    mean, y = torch.randn(2, 30, generator=draw, dtype=torch.float64) * 1000
    variance = torch.rand(30, generator=draw, dtype=torch.float64) + 0.1
    scores = score(torch.stack([mean, variance], 1), y[:, None], torch.tensor([0, 30, 30]), 0, "regression")
    found = per_client(scores)
    assert list(found) == ["mse", "nll"]
    assert found["mse"][0].item() == pytest.approx(mean_squared_error(y, mean), rel=1e-12)
    density = torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)
    close(found["nll"][0], -density.mean())
    assert found["mse"][1].isnan()
    assert found["nll"][1].isnan()


def test_merging_any_split_of_rows_is_the_whole() -> None:
    logs, y, offsets = predictions(COUNTS, 5)
    whole = score(logs, y, offsets, 5, "classification")
    owner = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    for seed in range(5):
        part = torch.randint(0, 3, (len(y),), generator=torch.Generator().manual_seed(seed))
        total = zero(len(COUNTS), 5)
        for i in range(3):
            rows = part == i
            bounds = torch.cat([torch.zeros(1), torch.bincount(owner[rows], minlength=len(COUNTS)).cumsum(0)]).long()
            total = score(logs[rows], y[rows], bounds, 5, "classification") + total
        for (name, a), (_, b) in zip(tree_named(total), tree_named(whole), strict=True):
            if name in ("n", "correct", "hits", "support"):
                assert torch.equal(a, b), name
            close(a, b, 1e-13)


def test_company_and_order_change_no_bit() -> None:
    logs, y, offsets = predictions([300, 0, 17, 1, 150], 11)
    logs = logs.float()  # as a network gives them
    whole = score(logs, y, offsets, 11, "classification")
    alone = []
    for k in range(5):
        mine = slice(offsets[k], offsets[k + 1])
        bounds = torch.tensor([0, len(y[mine])])
        single = score(logs[mine], y[mine], bounds, 11, "classification")
        shuffled = torch.randperm(len(y[mine]), generator=torch.Generator().manual_seed(k))
        same_bits(single, score(logs[mine][shuffled], y[mine][shuffled], bounds, 11, "classification"))
        alone.append(single)
    same_bits(tree_cat(alone), whole)


def test_limbs_add_up_and_their_sums_do_not_round() -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(1000, generator=draw, dtype=torch.float64).exp() ** 6
    limbs = split(values, 3)
    close(sum(limbs, start=torch.zeros(1000, dtype=torch.float64)), values, 1e-15)
    for limb in limbs:
        assert limb.sum() == math.fsum(limb.tolist())
        assert limb.cumsum(0)[-1] == limb.flip(0).cumsum(0)[-1] == math.fsum(limb.tolist())
    first, *rest = split(torch.tensor([math.inf], dtype=torch.float64), 3)
    assert first.item() == math.inf
    assert all(limb.item() == 0 for limb in rest)


def test_rows_outside_the_offsets_are_padding() -> None:
    logs, y, offsets = predictions([5, 4, 6], 3)
    whole = score(logs, y, offsets, 3, "classification")
    same_bits(score(logs, y, offsets[1:3], 3, "classification"), tree_rows(whole, slice(1, 2)))


def test_zero_is_neutral() -> None:
    logs, y, offsets = predictions([5, 4], 3)
    scores = score(logs, y, offsets, 3, "classification")
    same_bits(scores + zero(2, 3), scores)
    assert all(leaf.dtype == torch.float64 and len(leaf) == 2 for leaf in tree_leaves(scores))


def test_probability_of_one_leaves_the_flat_bins_only() -> None:
    logs = torch.tensor([[1.0, 0.0], [0.75, 0.25]], dtype=torch.float64).log()
    scores = score(logs, torch.tensor([0, 1]), torch.tensor([0, 2]), 2, "classification")
    assert scores.flat[0, :, 0].tolist() == [1, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert scores.flat[0, :, 2].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert scores.bins[0, 14].tolist() == [1, 1, 1]
    assert scores.nll.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("row", [[math.nan, 0.0, 0.0], [3.0, 1.0, -2.0], [-math.inf] * 3])
def test_a_row_that_is_no_distribution_is_certain_and_wrong(row: list[float]) -> None:
    for label in range(3):
        outputs = torch.tensor([row], dtype=torch.float64)
        scores = score(outputs, torch.tensor([label]), torch.tensor([0, 1]), 3, "classification")
        assert (scores.correct.item(), scores.nll.item(), scores.brier.item()) == (0, math.inf, 2)


def test_a_broken_variance_costs_infinitely() -> None:
    outputs = torch.tensor([[0.0, -1.0], [0.0, 0.0], [math.nan, 1.0]])
    scores = score(outputs, torch.zeros(3), torch.tensor([0, 1, 2, 3]), 0, "regression")
    assert scores.nll.tolist() == [math.inf] * 3
    assert scores.square.tolist() == [0, 0, math.inf]


@pytest.mark.parametrize(
    ("outputs", "y", "classes", "task", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(3), 5, "classification", r"\(rows, 5\)"),
        (torch.zeros(3, 1), torch.zeros(3), 0, "regression", "mean and variance"),
    ],
)
def test_wrong_shapes_are_named(outputs: Tensor, y: Tensor, classes: int, task: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(outputs, y, torch.tensor([0, 3]), classes, task)  # type: ignore[arg-type]
