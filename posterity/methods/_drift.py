"""What FedDyn and FedDC share: a server with two models, and clients that train from the one that is not scored.

    w = θ̄ + h̄                                                                                            # (a)

θ̄, the mean of the clients that trained last, is what the authors score; w alone has to travel.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core

BALANCES = ("clients", "samples")  # whose mean loss is minimised


@core.record
class State:
    params: core.Params  # θ̄
    drift: core.Params  # h̄, for every trainable leaf
    slope: core.Params  # FedDC's g; {} for FedDyn
    size: core.Tree  # N / K, where samples weigh
    clients: int = field(metadata={core.STATIC: True})  # K


@core.record
class Shared:
    params: core.Params  # w
    slope: core.Params
    average: core.Params  # θ̄, for scoring alone
    size: core.Tree


def zeros(params: core.Params, model: core.Network) -> core.Params:
    return {n: torch.zeros_like(params[n]) for n in core.trainable(params, model)}


def init(self: Any, model: core.Network, params: core.Params, facts: core.Facts) -> State:
    like = next(iter(params.values()))
    size = like.new_full((), facts.samples / facts.clients) if self.balance == "samples" else ()
    return State(params, zeros(params, model), {}, size, facts.clients)


def cloud(state: State) -> core.Params:
    """w: what the clients train from."""
    return {n: p + state.drift[n] if n in state.drift else p for n, p in state.params.items()}  # (a)


def offer(self: Any, state: State, client: Tensor | None) -> tuple[core.Sparse, core.Own]:
    """θ̄ would be sent for scoring alone."""
    like = next(iter(state.params.values()))
    unsent = torch.zeros_like(like, dtype=torch.int64).sum() + core.tree_bytes(state.params)
    scoring = tuple(f"average/{n}" for n in state.params)
    return core.Sparse(Shared(cloud(state), state.slope, state.params, state.size), unsent, known=scoring), ()


def start(self: Any, here: core.Here) -> core.Params:
    return here.shared.part.average


def from_cloud(carry: core.Carry, here: core.Here) -> core.Carry:
    """Training begins at w, whatever is scored."""
    return replace(carry, params=here.shared.part.params)


def step(state: State, total: core.Message) -> State:
    """θ̄ and h̄ of the next round."""
    moved, count = total["params"].mean(), total["params"].weight
    params = {n: p + moved[n] for n, p in cloud(state).items()}
    drift = {n: h + count / state.clients * moved[n] for n, h in state.drift.items()}
    return replace(state, params=params, drift=drift)
