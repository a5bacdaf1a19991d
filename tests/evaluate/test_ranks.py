"""Two classes: AUROC, average precision, cut-offs and recalibration, against scikit-learn and on known cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, recall_score, roc_auc_score
from torch import Tensor

from posterity.evaluate import RankedRows, per_client, rank, score, summarise

from .samples import predictions

COUNTS = [50, 0, 33, 80, 1]
RANKED = ("auroc", "auprc", "sensitivity", "specificity", "calibration_slope", "calibration_intercept")


def found(logs: Tensor, y: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    return per_client(score(logs, y, offsets, 2, "classification"), rank(logs, y, offsets))


def test_against_scikit_learn_on_each_client_with_ties() -> None:
    logs, y, offsets = predictions(COUNTS, 2)
    logs = (logs[:, 1].exp() * 8).round().clamp(1, 7) / 8  # few levels: many ties
    logs = torch.stack([1 - logs, logs], 1).log()
    values = found(logs, y, offsets)
    for k in (0, 2, 3):
        mine = slice(offsets[k], offsets[k + 1])
        p, label = logs[mine, 1].exp().numpy(), y[mine].numpy()
        assert values["auroc"][k].item() == pytest.approx(roc_auc_score(label, p), abs=1e-12)
        assert values["auprc"][k].item() == pytest.approx(average_precision_score(label, p), abs=1e-12)
        assert values["brier"][k].item() == pytest.approx(2 * brier_score_loss(label, p), abs=1e-12)
        assert values["sensitivity"][k].item() == pytest.approx(recall_score(label, p > 0.5), abs=1e-12)
        assert values["specificity"][k].item() == pytest.approx(recall_score(label, p > 0.5, pos_label=0), abs=1e-12)
    assert all(values[name][1].isnan() for name in RANKED)
    assert values["auroc"][4].isnan()  # one row, one class


def test_pooled_is_the_metric_of_all_rows() -> None:
    logs, y, offsets = predictions(COUNTS, 2)
    scores, ranks = score(logs, y, offsets, 2, "classification"), rank(logs, y, offsets)
    pooled = summarise(scores, torch.ones(len(COUNTS)), ranks=ranks)
    assert pooled["auroc"]["pooled"] == pytest.approx(roc_auc_score(y, logs[:, 1]), abs=1e-12)
    assert pooled["auroc"]["clients"] == 3


def test_joining_in_any_order_is_the_whole() -> None:
    logs, y, offsets = predictions(COUNTS, 2)
    whole = rank(logs, y, offsets)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    left, right = (RankedRows(whole.client[i], whole.score[i], whole.label[i]) for i in (order[:60], order[60:]))
    scores = score(logs, y, offsets, 2, "classification")
    for name, value in per_client(scores, left + right).items():
        torch.testing.assert_close(value, per_client(scores, whole)[name], rtol=1e-10, atol=1e-10, equal_nan=True)


def test_recalibration_is_logistic_regression() -> None:
    logs, y, offsets = predictions([200, 90], 2)
    values = found(logs, y, offsets)
    for k in range(2):
        mine = slice(offsets[k], offsets[k + 1])
        odds = (logs[mine, 1] - logs[mine, 0])[:, None].numpy()
        fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(odds, y[mine].numpy())
        assert values["calibration_slope"][k].item() == pytest.approx(fit.coef_.item(), abs=1e-5)
        assert values["calibration_intercept"][k].item() == pytest.approx(fit.intercept_.item(), abs=1e-5)


def test_recalibration_by_hand() -> None:
    """Scores ±1 with 3 of 4 labels right: log-odds at ±1 are ±log 3, so slope log 3 and intercept 0, exactly."""
    odds = torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=torch.float64)
    y = torch.tensor([1, 1, 1, 0, 0, 0, 0, 1])
    logs = torch.stack([-odds / 2, odds / 2], 1).log_softmax(1)
    values = found(logs, y, torch.tensor([0, 8]))
    assert values["calibration_slope"].item() == pytest.approx(math.log(3), abs=1e-12)
    assert values["calibration_intercept"].item() == pytest.approx(0, abs=1e-12)


def test_sharpening_divides_the_slope() -> None:
    logs, y, offsets = predictions([400], 2)
    plain, sharp = found(logs, y, offsets), found((3 * logs).log_softmax(1), y, offsets)
    assert sharp["calibration_slope"].item() == pytest.approx(plain["calibration_slope"].item() / 3, rel=1e-9)
    assert sharp["auroc"].item() == plain["auroc"].item()


@pytest.mark.parametrize(
    ("odds", "labels"),
    [
        ([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1]),  # separated
        ([-2.0, -1.0, 1.0, 2.0], [1, 1, 0, 0]),  # separated the wrong way round
        ([-2.0, 1.0, 1.0, 2.0], [0, 0, 1, 1]),  # touching in one point
        ([1.0, 1.0, 1.0, 1.0], [0, 1, 0, 1]),  # nothing to fit a slope to
        ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1]),  # one class
        ([-1000.0, 1000.0], [0, 1]),
    ],
)
def test_no_maximum_is_nan(odds: list[float], labels: list[int]) -> None:
    half = torch.tensor(odds, dtype=torch.float64) / 2
    logs, y = torch.stack([-half, half], 1).log_softmax(1), torch.tensor(labels)
    near, label, _ = predictions([100], 2)  # a healthy client beside it is not disturbed
    values = found(torch.cat([logs, near]), torch.cat([y, label]), torch.tensor([0, len(y), len(y) + 100]))
    alone = found(near, label, torch.tensor([0, 100]))
    for name in ("calibration_slope", "calibration_intercept"):
        assert values[name][0].isnan()
        assert values[name][1].item() == pytest.approx(alone[name].item(), rel=1e-10)


def test_certain_and_wrong_rows_still_give_a_number() -> None:
    logs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.2, 0.8], [0.7, 0.3]], dtype=torch.float64).log()
    values = found(logs, torch.tensor([1, 0, 1, 0]), torch.tensor([0, 4]))
    assert values["auroc"].item() == pytest.approx(0.25)  # of four pairs only (0.8, 0.3) is in order
    assert values["calibration_slope"].item() < 0


def test_padding_rows_are_left_out() -> None:
    logs, y, offsets = predictions([20, 30, 25], 2)
    middle = found(logs, y, offsets[1:3])
    for name, value in found(logs, y, offsets).items():
        torch.testing.assert_close(middle[name], value[1:2], rtol=1e-12, atol=1e-12)
