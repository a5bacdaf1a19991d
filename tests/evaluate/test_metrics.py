"""Metrics, summaries and fairness: worked by hand, against scikit-learn, and MetaVD's erratum M9."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from torch import Tensor

from posterity.core.tree import tree_cat
from posterity.evaluate import (
    FIGURES,
    METRICS,
    Scores,
    fairness,
    goal_of,
    listed_per_client,
    per_client,
    rank,
    score,
    summarise,
    zero,
)

from .samples import close, predictions


def guesses(confidence: list[float], right: list[bool]) -> Scores:
    """One client with two classes and label 0; `confidence` goes to class 0 where right, to class 1 where wrong."""
    rows = [[c, 1 - c] if ok else [1 - c, c] for c, ok in zip(confidence, right, strict=True)]
    p = torch.tensor(rows, dtype=torch.float64)
    return score(p.log(), torch.zeros(len(p), dtype=torch.int64), torch.tensor([0, len(p)]), 2, "classification")


def clients(*results: tuple[int, int]) -> Scores:
    """One client per pair (rows, correct rows)."""
    return tree_cat(
        [guesses([0.9] * n, [i < correct for i in range(n)]) if n else zero(1, 2) for n, correct in results]
    )


def test_accuracies_against_scikit_learn() -> None:
    logs, y, offsets = predictions([60, 200, 8], 6)
    values = per_client(score(logs, y, offsets, 6, "classification"))
    for k in range(3):
        mine = slice(offsets[k], offsets[k + 1])
        present, guess = y[mine].unique(), logs[mine].argmax(1)
        assert values["accuracy"][k].item() == pytest.approx(accuracy_score(y[mine], guess), abs=1e-12)
        # scikit-learn warns when a guess is a class without rows, and leaves that class out as we do
        recalls = [(guess[y[mine] == c] == c).double().mean().item() for c in present]
        assert values["balanced_accuracy"][k].item() == pytest.approx(statistics.fmean(recalls), abs=1e-12)
        if len(present) == 6:
            expected = balanced_accuracy_score(y[mine], guess)
            assert values["balanced_accuracy"][k].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [20, 100, 1000])
@pytest.mark.parametrize("major", [0, 1])
def test_majority_predictor_has_balanced_accuracy_one_half_fedmap_o11(n: int, major: int) -> None:
    """FedMAP's oracle O11, exactly, on any client of 85 to 15."""
    y = torch.full((n,), major)
    y[: n * 15 // 100] = 1 - major
    logs = torch.tensor([0.3, 0.3]).index_fill(0, torch.tensor(major), 0.7).log().expand(n, 2)
    values = per_client(score(logs, y, torch.tensor([0, n]), 2, "classification"))
    assert values["balanced_accuracy"].item() == 0.5
    assert values["accuracy"].item() == 0.85


def test_calibration_error_by_hand() -> None:
    """Four rows at 0.95, three right: |0.95 - 0.75| = 0.2. Two at 0.6, both right: 0.4. ECE (4·0.2 + 2·0.4)/6."""
    scores = guesses([0.95] * 4 + [0.6] * 2, [True, True, False, True, True, True])
    values = per_client(scores)
    assert values["ece"].item() == pytest.approx((4 * 0.2 + 2 * 0.4) / 6, abs=1e-12)
    assert values["mce"].item() == pytest.approx(0.4, abs=1e-12)
    # flat: 0.95 is class 1 once, class 0 three times (right), so its bin and the one of 0.05 both miss by 0.2
    assert values["ece_flat"].item() == pytest.approx((8 * 0.2 + 4 * 0.4) / 12, abs=1e-12)


def sharpened(classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """10,000 rows whose labels follow softmax(z), z ~ N(0, 3²), while the model says softmax(2 z)."""
    draw = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(10_000, classes, generator=draw, dtype=torch.float64)
    truth = z.softmax(1)
    return (2 * z).log_softmax(1), torch.multinomial(truth, 1, generator=draw)[:, 0], truth


@pytest.mark.parametrize(
    ("classes", "ece", "mce", "flat"), [(100, 0.2644, 0.3632, 0.0058), (10, 0.1649, 0.2481, 0.0338)]
)
def test_flattening_hides_miscalibration(classes: int, ece: float, mce: float, flat: float) -> None:
    """MetaVD's erratum M9: the numbers of its demonstration, within sampling error.

    The over-confidence has one sign in all bins that matter, so the ECE is mean confidence minus accuracy, whose
    standard error over 10,000 rows is at most 0.5 %: four of them are 2 %. The flattened ECE counts each gap about
    twice (the confident class and the others) among `classes` times as many entries: 2 % · 2 / classes. An MCE is the
    worst of bins with some 500 rows each, standard error 2.2 %: 9 %.
    """
    logs, y, truth = sharpened(classes, seed=classes)
    values = per_client(score(logs, y, torch.tensor([0, 10_000]), classes, "classification"))
    assert values["ece"].item() == pytest.approx(ece, abs=0.02)
    assert values["mce"].item() == pytest.approx(mce, abs=0.09)
    assert values["ece_flat"].item() == pytest.approx(flat, abs=0.04 / classes)
    assert values["mce_flat"].item() == pytest.approx(mce, abs=0.09)
    # without any printed number: the labels' law is known, so the true gap is too
    confidence, guess = logs.exp().max(1)
    true_gap = (confidence - truth.gather(1, guess[:, None])[:, 0]).mean().item()
    assert values["ece"].item() == pytest.approx(true_gap, abs=0.02)
    assert values["ece"] > classes / 4 * values["ece_flat"]


def test_rules_by_hand() -> None:
    """Accuracies 3/4, 0/1, 5/5 and a client without rows; training sizes 10, 30, 60, 900."""
    scores = clients((4, 3), (1, 0), (5, 5), (0, 0))
    found = summarise(scores, torch.tensor([10, 30, 60, 900]))["accuracy"]
    assert found["pooled"] == pytest.approx(8 / 10, abs=1e-15)
    assert found["mean"] == pytest.approx((0.75 + 0 + 1) / 3, abs=1e-15)
    assert found["train_weighted"] == pytest.approx((10 * 0.75 + 30 * 0 + 60 * 1) / 100, abs=1e-15)
    assert found["clients"] == 3


def test_an_empty_client_is_nan_and_ignored() -> None:
    values = per_client(clients((4, 3), (0, 0)))
    assert all(value[1].isnan() for value in values.values())
    assert values["accuracy"][0] == 0.75
    with_it, without = clients((4, 3), (8, 2), (0, 0)), clients((4, 3), (8, 2))
    assert fairness(with_it) == fairness(without)
    a, b = summarise(with_it, torch.ones(3)), summarise(without, torch.ones(2))
    assert {k: v["mean"] for k, v in a.items()} == pytest.approx({k: v["mean"] for k, v in b.items()}, nan_ok=True)


def test_nobody_has_data() -> None:
    scores = clients((0, 0), (0, 0))
    found = summarise(scores, torch.ones(2))
    assert all(math.isnan(by[rule]) for by in found.values() for rule in ("pooled", "mean", "train_weighted"))
    assert all(by["clients"] == 0 for by in found.values())
    assert math.isnan(fairness(scores)["worst10"])
    assert fairness(scores)["clients_20"] == 0
    assert fairness(scores)["worst10_rows"] == 0


def test_an_infinite_nll_shows_unless_its_weight_is_zero() -> None:
    logs = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64).log()
    scores = score(logs, torch.tensor([1, 1]), torch.tensor([0, 1, 2]), 2, "classification")
    assert summarise(scores, torch.tensor([1, 1]))["nll"]["mean"] == math.inf
    assert summarise(scores, torch.tensor([0, 1]))["nll"]["train_weighted"] == pytest.approx(math.log(2))


def test_fairness_by_hand() -> None:
    """Accuracies 0.5 (10 rows), 0.75 (20 rows), 1.0 (30 rows): mean 0.75, pooled 50/60, population variance 1/24."""
    found = fairness(clients((10, 5), (20, 15), (30, 30)))
    sd = math.sqrt((0.25**2 + 0 + 0.25**2) / 3)
    assert found["sd"] == pytest.approx(sd, abs=1e-15)
    assert found["cov"] == pytest.approx(sd / (50 / 60), abs=1e-15)
    assert found["cov_mean"] == pytest.approx(sd / 0.75, abs=1e-15)
    assert found["worst10"] == 0.5
    assert found["worst10_rows"] == 10
    assert found["clients"] == 3
    assert found["sd_20"] == pytest.approx(0.125, abs=1e-15)  # only 0.75 and 1.0 have 20 rows
    assert found["cov_20"] == pytest.approx(0.125 / (45 / 50), abs=1e-15)
    assert found["cov_mean_20"] == pytest.approx(0.125 / 0.875, abs=1e-15)
    assert found["worst10_20"] == 0.75
    assert found["worst10_rows_20"] == 20
    assert found["clients_20"] == 2


def test_worst_tenth_of_thirty_five_clients_is_three() -> None:
    scores = clients(*[(40, 5 + i) for i in range(35)])
    assert fairness(scores)["worst10"] == pytest.approx((5 + 6 + 7) / 3 / 40, abs=1e-15)
    with pytest.raises(ValueError, match="regression"):
        fairness(zero(2, 0))


def test_rows_behind_the_worst_tenth() -> None:
    """Twenty clients; the two worst have 3 of 12 and 2 of 7 right, wherever they stand in the list."""
    sizes = [(30, 20 + k % 5) for k in range(18)]
    found = fairness(clients(*sizes[:7], (12, 3), *sizes[7:], (7, 2)))
    assert found["worst10"] == pytest.approx((3 / 12 + 2 / 7) / 2, abs=1e-15)
    assert (found["worst10_rows"], found["clients"]) == (19, 20)


def test_clients_are_not_mixed() -> None:
    logs, y, offsets = predictions([30, 50, 20], 4)
    whole = per_client(score(logs, y, offsets, 4, "classification"))
    for k in range(3):
        mine = slice(offsets[k], offsets[k + 1])
        alone = per_client(score(logs[mine], y[mine], offsets[k : k + 2] - offsets[k], 4, "classification"))
        for name, value in alone.items():
            close(value, whole[name][k : k + 1], 0.0)


FROM_SUMS = ["accuracy", "balanced_accuracy", "nll", "brier", "ece", "mce", "ece_flat", "mce_flat"]
OF_TWO = ["sensitivity", "specificity", "auroc", "auprc", "calibration_slope", "calibration_intercept"]


@pytest.mark.parametrize(
    ("task", "classes", "metrics", "listed"),
    [
        ("classification", 10, FROM_SUMS, ["accuracy", "balanced_accuracy", "nll", "brier", "ece"]),
        ("classification", 2, FROM_SUMS + OF_TWO, ["accuracy", "balanced_accuracy", "nll", "brier", "ece", "auroc"]),
        ("regression", 0, ["mse", "nll"], ["nll", "mse"]),
    ],
)
def test_the_order_of_a_line(task: str, classes: int, metrics: list[str], listed: list[str]) -> None:
    """Readers of metrics.jsonl see the keys in this order since the first version."""
    if task == "regression":
        outputs, y, offsets = torch.ones(5, 2), torch.zeros(5), torch.tensor([0, 5])
    else:
        outputs, y, offsets = predictions([5], classes)
    scores = score(outputs, y, offsets, classes, task)  # type: ignore[arg-type]
    ranks = rank(outputs, y, offsets) if classes == 2 else None
    assert list(per_client(scores, ranks)) == metrics
    assert list(summarise(scores, torch.ones(1), ranks=ranks)) == metrics
    assert [m.name for m in listed_per_client(METRICS) if m.fits(task, classes)] == listed


def test_the_lists_are_consistent() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert [goal_of(task).name for task in ("classification", "regression")] == ["accuracy", "mse"]
    assert sum(metric.goal for metric in METRICS) == 2
    assert {metric.name for metric in METRICS if metric.row_mean} == {"accuracy", "mse", "nll", "brier"}
    assert {figure.name for figure in FIGURES} <= set(fairness(clients((4, 3))))
    assert not set(names) & set(fairness(clients((4, 3))))
