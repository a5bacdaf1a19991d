"""The classifiers that FedNP's clients predict: a Gaussian for each weight, made of q(z) by a client's NPN (17)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.core import head
from posterity.core.tree import tree_rows
from posterity.experiment.delivery import Delivery

Gaussians = dict[str, tuple[Tensor, Tensor]]  # mean and variance of a leaf of the classifier


def predicted_heads(delivery: Delivery, clients: int) -> list[Gaussians]:
    """Of the first `clients` members, leaf by leaf."""
    sim, kept = delivery.setup.sim, delivery.kept
    method: Any = sim.method  # FedNP's
    params, z = kept.state.params, kept.state.totals
    names = head(params, sim.model)
    spoken = [n for n in names if method.biases or params[n].dim() > 1] or names
    found = []
    for k in range(min(clients, sim.federation.members)):
        npn = tree_rows(kept.records.read(torch.tensor([k]))["npn"], 0)
        flat = method.classifier(npn, z.mean(), z.covariance())
        sizes = [params[n].numel() for n in spoken]
        means, variances = (each.split(sizes) for each in flat)
        leaves = zip(spoken, means, variances, strict=True)
        found.append({n: (m.reshape(params[n].shape), v.reshape(params[n].shape)) for n, m, v in leaves})
    return found


__all__ = ["Gaussians", "predicted_heads"]
