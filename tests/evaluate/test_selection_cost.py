"""The share of zeros of a tree, by hand."""

from __future__ import annotations

import math

import torch

from posterity.evaluate import share_of_zeros


def test_share_of_zeros_counts_floating_leaves() -> None:
    tree = {"a": torch.tensor([0.0, 1.0, -0.0]), "b": (torch.zeros(5), torch.tensor([0, 0, 0]))}
    assert share_of_zeros(tree) == 7 / 8
    assert math.isnan(share_of_zeros({"steps": torch.tensor(3)}))
