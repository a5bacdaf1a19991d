"""The mean gradient of a visit, read off the distance that plain SGD moved: for SCAFFOLD's variates and FedDC's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from posterity.core.network import Params
from posterity.core.protocol import Here
from posterity.core.training import Training


def mean_slope(start: Mapping[str, Tensor], end: Params, names: Iterable[str], lr: float, here: Here) -> Params:
    """(start − end) / (τη) in this pass: the mean gradient of plain SGD."""
    return {n: (start[n] - end[n]) / (here.steps.clamp(min=1).to(here.n) * lr) for n in names}


def require_plain_sgd(local: Training, what: str, remedy: str = "") -> None:
    """Refuse a training that does not move along the sum of its gradients; `what` reads them off, `remedy` may help."""
    if local.optimiser == "sgd" and not local.momentum and local.clip is None and local.lr > 0:
        return
    raise ValueError(
        f"{what} reads the mean gradient off the distance that plain SGD moved; local has "
        f"optimiser {local.optimiser!r}, momentum {local.momentum}, clip {local.clip}, lr {local.lr}. "
        f"Use sgd with a step size above 0, without momentum and clip{remedy}"
    )


__all__ = ["mean_slope", "require_plain_sgd"]
