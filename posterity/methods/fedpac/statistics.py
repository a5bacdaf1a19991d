"""What a client of FedPAC says about its features: (a), from sums over its samples, class by class."""

from __future__ import annotations

from torch import Tensor


def class_means(sums: dict[str, Tensor]) -> Tensor:
    """µ_c (C, D); 0 for a class without samples."""
    return sums["sum"] / sums["count"].clamp(min=1)[:, None]


def describe(sums: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """V () and H (C, D) from counts (C,), sums (C, D) and sums of squared lengths (C,) of features."""
    n = sums["count"].sum().clamp(min=1)
    rows = sums["sum"] / n  # π_c µ_c
    variance = (sums["square"].sum() / n - (rows**2).sum()) / n  # (a)
    return variance.clamp(min=0), rows  # rounding may leave a little less than nothing
