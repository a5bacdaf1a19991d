"""Dropping weights: with MetaVD, a client does without the weights of the Gaussian layer whose dropout rate is high.

From round `after` + 1 on, weight k of client m is dropped if its rate under the noise that the server predicts for it,

    p_k = α_k / (1 + α_k) = v_k / (v_k + θ_k²)  >  threshold                                              # footnote 1

Neither θ_k nor ρ_k is sent, in either direction: the server says which they are (a bit per weight). While the client
trains and predicts, θ_k is 0 and its noise the floor; the server counts what it does not receive back as unmoved.

Reference: "Federated learning via meta-variational dropout", NeurIPS 2023, section 4.6 and appendix K ("DP").

Differs from the paper: the paper does not say what the server does with a weight that a client dropped (here: nothing
moves it or its ρ). It reports 0.8 in Table 6 and 0.9 after 150 rounds in Tables 16 and 17; only one layer is pruned, so
at most 13 % of the paper's bytes are saved. With `noise_param = alpha` rates end at 0.9998; a
threshold from there drops nothing. Bytes of a round are counted without what is dropped, and with the bits;
`report` says how many were saved. Dropped weights still count in a gradient-norm clip, and inside a meta-step of MAML
or Per-FedAvg its inner steps move them, by the divergence too. `+drop` without `+metavd` brings MetaVD along.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core
from posterity.methods.wrappers.metavd import RHO, MetaVD, dropout

SOURCE = "MetaVD, Tables 16 and 17"
TENSORS = 2  # θ and ρ
TALLY = 8  # bytes of a client's count of dropped weights: for the report, nobody sends it


@core.record
class State:
    host: core.Tree
    begun: Tensor  # () whether the next round drops weights

    @property
    def params(self) -> core.Params:
        return self.host.params


@core.record
class Own:
    host: core.Tree
    keep: Tensor  # (⌈K/8⌉,) eight weights in a byte


def view(here: core.Here) -> core.Here:
    """What MetaVD sees."""
    return replace(here, own=here.own.part.host)


@dataclass(frozen=True)
class Drop(core.Wrapper):
    threshold: float = core.hyper(0.9, "dropout rate above which a weight is dropped", SOURCE, ge=0, le=1)
    after: int = core.hyper(150, "rounds before the first in which weights are dropped", SOURCE, ge=0)

    def __post_init__(self) -> None:
        core.check_fields(self)
        if not isinstance(self.method, MetaVD):
            object.__setattr__(self, "method", MetaVD(self.method))

    @property
    def label(self) -> str:
        return f"{self.inner.label}+DP"

    # --- the server
    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        host = self.inner.init(model, params, facts)
        return State(host, host.warmth.new_tensor(self.after == 0, dtype=torch.bool))

    def offer(self, state: State, client: Tensor | None) -> tuple[Any, core.Sparse]:
        shared, own = self.inner.offer(state.host, client)
        theta = state.params[state.host.leaf]
        keep = dropout.rate(own.rho, theta, self.method.noise_param) <= self.threshold  # footnote 1
        keep = keep | ~state.begun
        pattern, gone = core.packed(keep), (~keep).sum()
        unsent = torch.where(gone > 0, TENSORS * theta.element_size() * gone, len(pattern))  # nothing gone, no pattern
        elsewhere = (f"params/{state.host.leaf}",)
        return shared, core.Sparse(Own(own, pattern), unsent, keep, ("host/rho",), elsewhere, "keep")

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(self.inner.combine(state.host, total, now), torch.tensor(now.round >= self.after))

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        theta, each = state.params[state.host.leaf], total[dropout.LAYER].value["dropped"].double()
        pattern = math.ceil(theta.numel() / 8) * (each > 0).sum()  # down only
        saved = 2 * TENSORS * theta.element_size() * each.sum() - pattern
        mine = {"dropped": each.mean() / theta.numel(), "bytes_saved": saved}
        return {**self.inner.report(state.host, total), **mine}

    # --- one client
    def masked(self, params: core.Params, here: core.Here) -> core.Params:
        leaf = self.method.leaf(here)
        keep = core.unpacked(here.own.part.keep, params[leaf].shape)
        known = {leaf: torch.where(keep, params[leaf], 0), RHO: torch.where(keep, params[RHO], dropout.LEAST)}
        return {**params, **known}

    def fix(self, carry: core.Carry, here: core.Here) -> core.Carry:
        return replace(carry, params=self.masked(carry.params, here))

    def join(self, here: core.Here) -> core.Personal:
        return self.inner.join(view(here))

    def start(self, here: core.Here) -> core.Params:
        return self.masked(self.inner.start(view(here)), here)

    def passes(self) -> core.Passes:
        return core.constrained(self.inner.passes(), view, self.fix)

    def adapt(self, epochs: int) -> core.Passes:
        return core.constrained(self.inner.adapt(epochs), view, self.fix)

    def prepare(self) -> core.Passes:
        return core.constrained(self.inner.prepare(), view, self.fix)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        """What the server does not receive it fills in with what it has."""
        leaf, had = self.method.leaf(here), self.inner.start(view(here))
        keep = core.unpacked(here.own.part.keep, had[leaf].shape)
        filled = {n: torch.where(keep, carry.params[n], had[n]) for n in (leaf, RHO)}
        sent, personal = self.inner.message(replace(carry, params={**carry.params, **filled}), view(here))
        gone, layer = (~keep).sum(), sent[dropout.LAYER]
        unsent = TENSORS * had[leaf].element_size() * gone + TALLY
        bag = core.Bag(layer.client, {**layer.value, "dropped": gone})
        part = core.Sparse(bag, unsent, keep, ("value/theta", "value/rho"), known=("value/dropped",))
        return {**sent, dropout.LAYER: part}, personal

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        return self.inner.predict(carry, x, view(here))
