"""How far classes stand apart: the scatter within classes over the scatter between them.

    S_W = Σ_c Σ_{i in c} ‖z_i − µ_c‖²,   S_B = Σ_c n_c ‖µ_c − µ‖²,   S_W + S_B = Σ_i ‖z_i − µ‖²

A picture of features shows what an algorithm made of them; this ratio is a number of the features themselves. It does
not depend on their scale; small is compact classes far from each other.
"""

from __future__ import annotations

from torch import Tensor


def scatter_ratio(z: Tensor, y: Tensor) -> float:
    """S_W / S_B of features (N, d) with classes (N,); infinite if all classes have the same mean."""
    z = z.double()
    centre, within, between = z.mean(0), 0.0, 0.0
    for c in sorted(set(y.tolist())):
        some = z[y == c]
        mean = some.mean(0)
        within += float((some - mean).square().sum())
        between += len(some) * float((mean - centre).square().sum())
    return within / between if between > 0 else float("inf")
