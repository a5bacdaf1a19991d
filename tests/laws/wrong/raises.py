"""Raises on a client whose network is NaN: one client with broken data ends the round for everybody."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posterity.core.common import weighted
from posterity.core.messages import Mean
from posterity.methods.fedavg import FedAvg

LAW = "refusal"


def curvature(params):
    """Positive definite, unless the last layer is NaN (then it is 0)."""
    return torch.nan_to_num(params["head.weight"] @ params["head.weight"].T)


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        factor = torch.linalg.cholesky(curvature(carry.params))
        return {**weighted(carry.params, here), "factor": Mean(here.n, factor)}, ()


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        factor = torch.linalg.cholesky_ex(curvature(carry.params)).L  # the parameters are NaN: the server refuses them
        return {**weighted(carry.params, here), "factor": Mean(here.n, factor)}, ()
