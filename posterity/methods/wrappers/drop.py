"""Dropping weights: with MetaVD, a client does without the weights of the Gaussian layer whose dropout rate is high.

From round `after` on, weight k of client m is dropped if its rate under the noise that the server predicted for it,

    p_k = α_k / (1 + α_k) = v_k / (v_k + θ_k²)  >  threshold                                  # (3), footnote 1

Its θ_k is 0 while the client trains and predicts. Neither θ_k nor ρ_k need be sent in either direction: the server says
which they are (a bit per weight), and counts a weight that it does not receive back as unmoved.

Reference: "Federated learning via meta-variational dropout", NeurIPS 2023, section 4.6 and appendix ("DP").

Differs from the paper: the paper does not say what the server does with a weight that a client dropped (here: nothing
moves it or its ρ). It reports 0.8 in Table 6 and 0.9 after 150 rounds in Tables 16 and 17; only one layer is pruned, so
at most 13 % of the paper's bytes are saved. Simulated messages are dense; `report` says how many bytes a round's
clients would have saved, less those bits. `+drop` without `+metavd` brings MetaVD along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core import dropout
from posterity.core.hyper import check_fields, hyper, within
from posterity.core.method import Batch, Carry, Here, Message, Now, Params, Pass, Personal, State
from posterity.core.monoid import Sum
from posterity.core.wrapper import Wrapper
from posterity.methods.wrappers.metavd import RHO, MetaVD
from posterity.models.noisy import linear_layer

TENSORS, WAYS = 2, 2  # θ and ρ, down and up


@dataclass(frozen=True)
class Drop(Wrapper):
    threshold: float = hyper(0.9, "dropout rate above which a weight is dropped", "MetaVD, Tables 16 and 17")
    after: int = hyper(150, "rounds before the first weight is dropped", "MetaVD, Tables 16 and 17")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, threshold=(0, 1), after=(0, None))
        if not isinstance(self.method, MetaVD):
            object.__setattr__(self, "method", MetaVD(self.method))

    @property
    def label(self) -> str:
        return f"{self.inner.label}+DP"

    def leaf(self, here: Here) -> str:
        return f"{linear_layer(here.model, self.method.layer)}.weight"

    def pattern(self, here: Here) -> Tensor:
        """1 for a weight that is kept, of the layer's shape."""
        received = self.inner.start(here)
        theta = received[self.leaf(here)]
        rate = dropout.rate(received[RHO], theta, self.method.noise_param)  # (3)
        return ((rate <= self.threshold) | (here.round < self.after)).to(theta.dtype)

    def masked(self, params: Params, here: Here) -> Params:
        return {**params, self.leaf(here): params[self.leaf(here)] * self.pattern(here)}

    def start(self, here: Here) -> Params:
        return self.masked(self.inner.start(here), here)

    def _kept(self, each: Pass) -> Pass:
        def step(carry: Carry, batch: Batch, here: Here) -> Carry:
            after = each.step(carry, batch, here)
            return replace(after, params=self.masked(after.params, here))

        return replace(each, step=step)

    def passes(self) -> tuple[Pass, ...]:
        return tuple(self._kept(p) for p in self.inner.passes())

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuple(self._kept(p) for p in self.inner.adapt(epochs))

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        received, keep = self.inner.start(here), self.pattern(here)
        known = {n: torch.where(keep > 0, carry.params[n], received[n]) for n in (self.leaf(here), RHO)}
        sent, personal = self.inner.message(replace(carry, params={**carry.params, **known}), here)
        return {**sent, "dropped": Sum((1 - keep).sum()), "clients": Sum(torch.ones_like(here.n))}, personal

    def combine(self, state: State, total: Message, now: Now) -> State:
        return self.inner.combine(state, _plain(total), now)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        size, dropped = state.params[state.leaf], total["dropped"].value
        weights = total["clients"].value * size.numel()
        pattern = torch.where(dropped > 0, weights / 8, 0)  # a bit each, down only
        saved = TENSORS * WAYS * size.element_size() * dropped - pattern
        mine = {"dropped": dropped / weights, "bytes_saved": saved}
        return {**self.inner.report(state, _plain(total)), **mine}


def _plain(total: Message) -> Message:
    return {n: part for n, part in total.items() if n not in ("dropped", "clients")}
