"""Sums over a client's samples, class by class: for prototypes, centroids and losses that know how rare a class is."""

from __future__ import annotations

from torch import Tensor

from posterity.core.losses import one_hot
from posterity.core.network import Params
from posterity.core.protocol import Batch, Here


def count_labels(params: Params, batch: Batch, here: Here) -> Tensor:
    """How many samples of each class (C,): a summary for `gather`."""
    return one_hot(batch.y, here.model.classes, batch.mask).sum(0)


def sum_classes(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> dict[str, Tensor]:
    """Counts (C,), sums (C, d) and sums of squared lengths (C,) of features z (B, d), class by class, in float64."""
    z, hot = z.double(), one_hot(y, classes, mask.double())  # (B, d), (B, C)
    return {"count": hot.sum(0), "sum": hot.T @ z, "square": hot.T @ (z**2).sum(1)}


def sum_features(params: Params, batch: Batch, here: Here) -> dict[str, Tensor]:
    """`sum_classes` of what the head is given, in evaluation mode: a summary for `gather`."""
    return sum_classes(here.model.features(params, batch.x)[0], batch.y, batch.mask, here.model.classes)


__all__ = ["count_labels", "sum_classes", "sum_features"]
