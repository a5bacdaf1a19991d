"""On a GPU: no waiting for the device, and the same bits in any company and order although additions are atomic."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from posterity.core.tree import tree_named, tree_rows
from posterity.evaluate import Scores, rank, score

from .samples import close, predictions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
COUNTS = [3000, 0, 170, 1, 1500, 4001]


def same_bits(a: Scores, b: Scores) -> None:
    for (name, x), (_, y) in zip(tree_named(a), tree_named(b), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_company_and_order_change_no_bit(classes: int) -> None:
    logs, y, offsets = (t.cuda() for t in predictions(COUNTS, classes))
    logs, bounds = logs.float(), offsets.tolist()
    whole = score(logs, y, offsets, classes, "classification")
    for _ in range(3):
        same_bits(score(logs, y, offsets, classes, "classification"), whole)
    for k, (start, stop) in enumerate(pairwise(bounds)):
        order = start + torch.randperm(stop - start, device="cuda")
        alone = score(logs[order], y[order], offsets[k : k + 2] - start, classes, "classification")
        same_bits(alone, tree_rows(whole, slice(k, k + 1)))
    host = score(logs.cpu(), y.cpu(), offsets.cpu(), classes, "classification")
    for (_, a), (_, b) in zip(tree_named(whole), tree_named(host), strict=True):
        close(a.cpu(), b)


def test_the_host_never_waits() -> None:
    logs, y, offsets = (t.cuda() for t in predictions(COUNTS, 2))
    target = torch.rand(len(y), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        score(logs, y, offsets, 2, "classification")
        rank(logs, y, offsets)
        score(logs.exp(), target, offsets, 0, "regression")
    finally:
        torch.cuda.set_sync_debug_mode("default")
