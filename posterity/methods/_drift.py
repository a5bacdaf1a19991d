"""What FedDyn and FedDC share: clients that train from w, the mean model moved by the mean drift.

    w = θ̄ + h̄                                                                                            # (a)

θ̄, the mean of the clients that trained last, is what the authors score; w alone has to travel.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posterity.core import Carry, Facts, Here, Params, Tree, tree_bytes

BALANCES = ("clients", "samples")  # whose mean loss is minimised
MODELS = ("average", "cloud")  # which model is scored
SCORED = {"average": "the mean of the clients that trained last", "cloud": "the server's cloud model"}


def cloud(params: Params, drift: Params) -> Params:
    """w: what the clients train from."""
    return {n: p + drift[n] if n in drift else p for n, p in params.items()}  # (a)


def from_cloud(carry: Carry, here: Here) -> Carry:
    """Training begins at w, whatever is scored."""
    return replace(carry, params=here.shared.part.params)


def scored_beside(params: Params, predicts: str) -> tuple[Params, Tensor]:
    """θ̄ if it is scored, and how many bytes of the offer that is: it would be sent for scoring alone."""
    average = params if predicts == "average" else {}
    none = torch.zeros_like(next(iter(params.values())), dtype=torch.int64).sum()
    return average, none + tree_bytes(average)


def mean_size(params: Params, facts: Facts, balance: str) -> Tree:
    """N / K, where samples weigh."""
    like = next(iter(params.values()))
    return like.new_full((), facts.samples / facts.clients) if balance == "samples" else ()
