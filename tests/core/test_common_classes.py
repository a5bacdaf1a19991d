"""Sums class by class, against a walk over the rows."""

from types import SimpleNamespace

import pytest
import torch

from posterity import models
from posterity.core.common import count_labels, sum_classes, sum_features
from posterity.core.protocol import Batch

Y, MASK = torch.tensor([2, 0, 2, 1, 2, 0]), torch.tensor([1.0, 1, 0, 0, 1, 1])
X = torch.arange(24.0).reshape(6, 4) / 7 - 1
BATCH = Batch(X, Y, MASK)
MODEL = models.build("mlp", (4,), 4, hidden=(3,))
HERE, PARAMS = SimpleNamespace(model=MODEL), MODEL.init(0)


def by_hand(z):
    found = {
        n: torch.zeros(4, *more, dtype=torch.float64) for n, more in (("count", ()), ("sum", (3,)), ("square", ()))
    }
    for row, label, real in zip(z.double(), Y.tolist(), MASK.tolist(), strict=True):
        if real:
            found["count"][label] += 1
            found["sum"][label] += row
            found["square"][label] += row @ row
    return found


@pytest.mark.parametrize("name", ["count", "sum", "square"])
def test_sums_of_features(name):
    z = MODEL.features(PARAMS, X)[0]
    expected = by_hand(z)[name]
    for found in (sum_classes(z, Y, MASK, 4), sum_features(PARAMS, BATCH, HERE)):
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], expected, atol=1e-12, rtol=0)


def test_labels_are_counted_without_padding_and_also_those_that_nobody_has():
    assert count_labels(PARAMS, BATCH, HERE).tolist() == [2, 0, 2, 0]
