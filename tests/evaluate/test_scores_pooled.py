"""All clients as one: what is thrown together is counted, not averaged; and what has no order has no number."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from posterity.core.tree import tree_named
from posterity.evaluate import per_client, rank, score

from .samples import predictions


def test_pooled_sums_are_those_of_one_client_with_all_rows() -> None:
    logs, y, offsets = predictions([5, 0, 17, 9], 4)
    pooled = score(logs, y, offsets, 4, "classification").pooled()
    whole = score(logs, y, torch.tensor([0, len(y)]), 4, "classification")
    for (name, one), (_, other) in zip(tree_named(pooled), tree_named(whole), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_order_and_its_neighbour_has(label: int) -> None:
    logs, y, _ = predictions([40], 2)
    labels = torch.cat([torch.full((6,), label), y])
    both = torch.cat([logs[:6], logs])
    offsets = torch.tensor([0, 6, 46])
    values = per_client(score(both, labels, offsets, 2, "classification"), rank(both, labels, offsets))
    for name in ("auroc", "auprc"):
        assert values[name][0].isnan()
    assert values["auroc"][1].item() == pytest.approx(roc_auc_score(y, logs[:, 1]), abs=1e-12)
