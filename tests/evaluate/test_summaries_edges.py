"""Where a bound decides: probabilities on the edge of a bin, just below one, and entries that no bin has."""

from __future__ import annotations

import math

import pytest
import torch

from posterity.evaluate import per_client, score


def scores(rows: list[list[float]], labels: list[int]):
    logs = torch.tensor(rows, dtype=torch.float64).log()
    return score(logs, torch.tensor(labels), torch.tensor([0, len(rows)]), len(rows[0]), "classification")


@pytest.mark.parametrize("edge", range(8, 16))
def test_a_confidence_on_the_edge_belongs_to_the_bin_below(edge: int) -> None:
    """Bins are (b/15, (b + 1)/15], as the reliability diagram says."""
    confidence = edge / 15
    found = scores([[confidence, 1 - confidence]], [0])
    assert found.bins[0, :, 0].tolist() == [float(b == edge - 1) for b in range(15)]


@pytest.mark.parametrize("classes", [3, 5])
def test_an_untrained_model_is_in_the_bin_of_its_chance(classes: int) -> None:
    found = scores([[1 / classes] * classes], [0])
    assert found.bins[0, :, 0].argmax() == 15 // classes - 1


def test_two_rows_on_either_side_of_an_edge_are_not_averaged() -> None:
    """At 0.6, wrong, and at 0.62, right: |0.6 - 0| and |0.62 - 1|, half each; in one bin it would be |0.61 - 0.5|."""
    found = per_client(scores([[0.6, 0.4], [0.38, 0.62]], [1, 1]))
    assert found["ece"].item() == pytest.approx((0.6 + 0.38) / 2, abs=1e-12)


def test_flat_bins_are_closed_below() -> None:
    """[b/10, (b + 1)/10): 0.5 is in the sixth, 0.2 in the third."""
    assert scores([[0.5, 0.5]], [0]).flat[0, :, 0].tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 0, 0]
    assert scores([[0.2, 0.8]], [0]).flat[0, :, 0].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 1, 0]


def test_what_is_one_in_single_precision_is_in_no_flat_bin() -> None:
    near = 1 - 1e-9
    assert scores([[near, 1 - near]], [0]).flat[0, :, 0].sum() == 1
    assert scores([[1 - 1e-6, 1e-6]], [0]).flat[0, :, 0].sum() == 2


def test_what_is_in_no_flat_bin_counts_in_the_total() -> None:
    """One certain row and one at 0.8, both right: gaps of 0, 0.2 and 0.2 over four entries."""
    found = per_client(scores([[1.0, 0.0], [0.8, 0.2]], [0, 0]))
    assert found["ece_flat"].item() == pytest.approx((0.2 + 0.2) / 4, abs=1e-12)


def test_half_precision_passes_and_raw_logits_do_not() -> None:
    assert scores([[0.51, 0.51]], [0]).nll.item() == pytest.approx(-math.log(0.51))
    assert scores([[0.55, 0.55]], [0]).nll.item() == math.inf
