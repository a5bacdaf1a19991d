"""FedPer: a shared base under personal heads.

    client   (b_k, h_k) ← E epochs of SGD on f_k from (b, h_k), both parts together
    server   b ← Σ_k p_k b_k;  the heads stay at home

Reference: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated learning with personalization layers", 2019.

Differs from the paper: the head is the model's own (the last linear layer unless the model says otherwise); all heads
start from one common head. A client that has never trained has that first head, so newcomers must adapt.
"""

from dataclasses import dataclass, field

from torch import Tensor

from posterity import core


@core.record
class State:
    params: core.Params  # the shared base, and the common first head
    head: frozenset[str] = field(metadata={core.STATIC: True})  # names of the leaves that stay at home


@core.record
class Shared:
    base: core.Params


def split(params: core.Params, head: frozenset[str]) -> tuple[core.Params, core.Params]:
    """Base and head of a network's leaves, buffers included."""
    base = {n: p for n, p in params.items() if n not in head}
    return base, {n: p for n, p in params.items() if n in head}


@dataclass(frozen=True)
class FedPer(core.Method):
    label = "FedPer"
    reference = "Arivazhagan et al., 2019"
    absent = "cohort only: an absent client keeps its head"
    outside = "the server's base with the initial head"
    without_base = "shares nothing here, and every client trains alone"

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    loss: core.Loss = core.fit  # a wrapper may replace it

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(params, model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        return Shared(split(state.params, state.head)[0]), ()

    def join(self, here: core.Here) -> core.Personal:
        return split(here.initial, here.model.head_names)[1]

    def start(self, here: core.Here) -> core.Params:
        return {n: here.personal.get(n, here.shared.base.get(n)) for n in here.initial}

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        base, head = split(carry.params, here.model.head_names)
        return core.weighted(base, here), head

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(core.averaged(state.params, total), state.head)
