"""FedRep: clients fit their own head to the shared base first, then the base under that head.

    client   h_k ← E_h epochs of SGD on f_k(b, ·) from h_k, the base b as received                           # (1)
             b_k ← E_b epochs of SGD on f_k(·, h_k) from b, under the new head                               # (2)
    server   b ← Σ_k p_k b_k,   p_k = n_k / Σ_j n_j over the cohort;  the heads stay at home                 # (3)

E_b is `local.epochs`, E_h is `head_epochs`; the two phases have an optimiser each, so no momentum of one pushes the
other. In the head phase the base is in evaluation mode: not even running statistics of batch norm move.

A client that has never trained has the common first head, which fits no base: newcomers must adapt. Adaptation trains
the head alone, on the base as received. The paper's last step, ten more epochs of every client's head, is
`fedrep+ft` with `ft.epochs=10`.

Reference: Collins, Hassani, Mokhtari and Shakkottai, "Exploiting shared representations for personalized federated
learning", ICML 2021, Algorithm 1.

Differs from the paper: one epoch of the head by default, as other studies run it; p_k by samples (the paper's clients
have equal sizes); the head is the model's own (the last linear layer unless the model says otherwise) and all heads
start from one common head. The paper's weight decay spares the biases, ours does not. `local.steps` counts the steps of
the base phase; the head phase always counts epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from posterity import core

AUTHORS_TRAINING = core.Training(lr=0.01, epochs=1, batch=10, momentum=0.5, weight_decay=1e-4)


@core.record
class State:
    params: core.Params  # the shared base, and the common first head
    head: frozenset[str] = field(metadata={core.STATIC: True})  # names of the leaves that stay at home


@core.record
class Shared:
    base: core.Params


@dataclass(frozen=True)
class FedRep(core.Method):
    label: ClassVar[str] = "FedRep"
    reference: ClassVar[str] = "Collins et al., ICML 2021"
    absent: ClassVar[str] = "cohort only: an absent client keeps its head"
    scored: ClassVar[core.Point] = "received"

    local: core.Training = core.hyper(
        core.Training(), "how the clients train; its epochs are those of the base", paper=AUTHORS_TRAINING
    )
    head_epochs: int = core.hyper(
        1, "E_h: epochs of the head, before the base", "PFLlib; pFedVMP does not say", paper=10
    )
    loss: core.Loss = core.fit  # of the base phase; a wrapper may replace it

    def __post_init__(self) -> None:
        core.check_fields(self)
        core.within(self, head_epochs=(0, None))

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        for part, names in (("base", core.base(params, model)), ("head", core.head(params, model))):
            if not names:
                raise ValueError(
                    f"FedRep trains a head and a base in turn, and the network {model.name!r} has no {part} that could "
                    "be trained; take a network with both, or fedper, which trains everything at once"
                )
        return State(params, model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        return Shared({n: p for n, p in state.params.items() if n not in state.head}), ()

    def outside(self) -> str:
        return "the server's base with the initial head"

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        if self.head_epochs:
            return ()
        return ("with head_epochs=0 no round trains a head: every client has the common first one",)

    def join(self, here: core.Here) -> core.Personal:
        return {n: p for n, p in here.initial.items() if n in here.model.head_names}

    def start(self, here: core.Here) -> core.Params:
        known = {**here.shared.base, **here.personal}
        return {n: known[n] for n in here.initial}

    def head_phase(self, epochs: int) -> tuple[core.Pass, ...]:
        phase = replace(self.local.descend(core.fit_head, core.head), epochs=epochs, max_steps=None)  # (1)
        return (phase,) if epochs else ()

    def passes(self) -> tuple[core.Pass, ...]:
        return (*self.head_phase(self.head_epochs), self.local.descend(self.loss, core.base))  # (2)

    def adapt(self, epochs: int) -> tuple[core.Pass, ...]:
        return self.head_phase(epochs)

    def message(self, carry: core.Carry, here: core.Here) -> tuple[core.Message, core.Personal]:
        home = here.model.head_names
        shared = {n: p for n, p in carry.params.items() if n not in home}
        return core.weighted(shared, here), {n: p for n, p in carry.params.items() if n in home}

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(core.averaged(state.params, total), state.head)  # (3)
