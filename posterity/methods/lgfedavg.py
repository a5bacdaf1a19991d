"""LG-FedAvg: a shared head on personal bases, the mirror of FedPer.

    client   (b_k, h_k) ← E epochs of SGD on f_k from (b_k, h), both parts together                          # (1)
    server   h ← Σ_k p_k h_k,   p_k = n_k / Σ_j n_j over the cohort;  the bases stay at home                 # (2)

Batch norm in a base stays at home with it, running statistics included. The head reads features that every client
makes in its own way: only a common beginning lets it mean the same for all. All bases begin as the common first one;
with `warm_rounds` = R the rounds 1 … R are FedAvg's, and every base begins as the mean of round R.

A client that has never trained has that common beginning for a base, so newcomers must adapt: they train a base of
their own, together with a copy of the head. With a warm start the base is broadcast in every round, since the server
does not know who has one of its own; after round R nobody sends it.

Reference: Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think locally, act globally: federated
learning with local and global representations", 2020, Algorithm 1.

Differs from the paper: the head is the model's own (the last linear layer unless the model says otherwise). The paper
starts from a model that FedAvg has trained; other studies do not, and so by default neither do we. For a test set that
belongs to no client the paper lets all local models vote; here nobody sends a base, so the common beginning predicts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity import core
from posterity.methods.fedper import FedPer, State, split


@core.record
class Personal:
    base: core.Params  # b_k
    begun: Tensor  # () 1 once the client has trained a base of its own


@dataclass(frozen=True)
class LGFedAvg(core.Method):
    label = "LG-FedAvg"
    reference = "Liang et al., 2020"
    absent = "cohort only: an absent client keeps its base"
    outside = "the server's head on the base that all clients begin with"
    without_base = "is FedAvg here, bit for bit"

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    warm_rounds: int = core.hyper(0, "R: first rounds, which are FedAvg's", "FedBPS, PFLlib; paper: warm", ge=0)
    loss: core.Loss = core.fit  # a wrapper may replace it

    init = FedPer.init

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Leaves, core.Own]:
        return core.Leaves(state.params if self.warm_rounds else split(state.params, state.head)[1]), ()

    def join(self, here: core.Here) -> Personal:
        return Personal(split(here.initial, here.model.head_names)[0], torch.zeros_like(here.n))

    def start(self, here: core.Here) -> core.Params:
        known, mine = {**here.initial, **here.shared.params}, here.personal
        base = {n: torch.where(mine.begun > 0, p, known[n]) for n, p in mine.base.items()}
        return {n: base.get(n, known[n]) for n in here.initial}

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)  # (1)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        base, head = split(carry.params, here.model.head_names)
        begun, sent = (here.round > self.warm_rounds).to(here.n), core.weighted(head, here)
        if self.warm_rounds:
            mean, warm = core.Mean(here.n * (1 - begun), base), here.round <= self.warm_rounds
            unsent = ~warm * core.tree_bytes(base)
            sent["base"] = core.Sparse(mean, unsent, warm, tuple(f"value/{n}" for n in base))
        return sent, Personal(base, begun)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        params = core.averaged(state.params, total)  # (2)
        if self.warm_rounds:
            params = {**params, **total["base"].mean(split(state.params, state.head)[0])}
        return State(params, state.head)
