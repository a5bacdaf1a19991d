"""FedPer: a shared base under personal heads.

    client   (b_k, h_k) ← E epochs of SGD on f_k from (b, h_k), both parts together
    server   b ← Σ_k p_k b_k;  the heads stay at home

Reference: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated learning with personalization layers", 2019.

Differs from the paper: the head is the model's own (the last linear layer unless the model says otherwise); all heads
start from one common head. A client that has never trained has that first head, so newcomers must adapt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from posterity.core import (
    STATIC,
    Carry,
    Facts,
    Here,
    Loss,
    Message,
    Method,
    Network,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    averaged,
    fit,
    hyper,
    record,
    weighted,
)


@record
class State:
    params: Params  # the shared base, and the common first head
    head: frozenset[str] = field(metadata={STATIC: True})  # names of the leaves that stay at home


@record
class Shared:
    base: Params


def split(params: Params, head: frozenset[str]) -> tuple[Params, Params]:
    """Base and head of a network's leaves, buffers included."""
    base = {n: p for n, p in params.items() if n not in head}
    return base, {n: p for n, p in params.items() if n in head}


@dataclass(frozen=True)
class FedPer(Method):
    label: ClassVar[str] = "FedPer"
    reference: ClassVar[str] = "Arivazhagan et al., 2019"
    absent: ClassVar[str] = "cohort only: an absent client keeps its head"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train")
    loss: Loss = fit  # a wrapper may replace it

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params, model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        return Shared(split(state.params, state.head)[0]), ()

    def outside(self) -> str:
        return "the server's base with the initial head"

    def remarks(self, model: Network) -> tuple[str, ...]:
        if model.base_names:
            return ()
        return (f"FedPer shares nothing here: all of the network {model.name!r} is head, so every client trains alone",)

    def join(self, here: Here) -> Personal:
        return split(here.initial, here.model.head_names)[1]

    def start(self, here: Here) -> Params:
        return {n: here.personal.get(n, here.shared.base.get(n)) for n in here.initial}

    def passes(self) -> tuple[Pass, ...]:
        return (self.local.descend(self.loss),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        base, head = split(carry.params, here.model.head_names)
        return weighted(base, here), head

    def combine(self, state: State, total: Message, now: Now) -> State:
        return State(averaged(state.params, total), state.head)
