"""FedBN: FedAvg whose normalisation layers never leave home.

    client   (s_k, b_k) ← E epochs of SGD on f_k from (s, b_k), all leaves together                         # (1)
    server   s ← Σ_k p_k s_k,   p_k = n_k / Σ_j n_j over the cohort                                         # (2)

s is everything outside normalisation layers, b_k the client's own layers: weights, biases and running statistics. They
absorb a shift or scale of the client's features. In a network without such layers FedBN is FedAvg, bit for bit.

A client that has never trained has no layers of its own: it begins with the common first ones. `newcomers` says what
happens to them before it is scored. With `data` (the default) one pass over its own training samples sets their running
statistics, after fine-tuning if there is any; with `initial` they stay as they are; with `mean` clients also send their
layers, and newcomers begin with the broadcast mean of those that trained last (more bytes, and no longer a secret).
A test set that belongs to no client has no training samples: with `data`, too, it meets the first layers.

Reference: Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated learning on non-IID features via local batch
normalization", ICLR 2021, Algorithm 1.

Differs from the paper: layers are found by their type (batch, group, layer, instance norm), where the released code
looks for "bn" in names; weights p_k by samples, as FedAvg (the released code weights clients equally); the paper has no
rule for clients that did not train. `data` reads every training set once per scoring, which moves newcomers only.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core

NEWCOMERS = ("data", "initial", "mean")
TUNED = "tuned"  # in `kept`: fine-tuning has begun
SETTLING_BATCH = 256  # samples at once when a newcomer's statistics are set


@core.record
class State:
    params: core.Params  # s, and the first (or, with `mean`, the mean) normalisation layers
    home: frozenset[str] = field(metadata={core.STATIC: True})  # names of the leaves that stay at home


@core.record
class Record:
    norms: core.Params  # b_k
    met: Tensor  # () 1 once the client has trained


def statistics(params: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
    """A batch's mean and variance in every norm, times its rows: what running statistics with momentum 1 would be."""
    _, buffers = here.model(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
    rows, found = batch.mask.sum(), {}
    for name in (n for n in buffers if n in here.model.norms):
        layer: Any = here.model.module.get_submodule(name.rpartition(".")[0])
        rate = layer.momentum or 1.0
        found[name] = rows * (params[name] + (buffers[name] - params[name]) / rate)
    return found


def tuning(carry: core.Carry, here: core.Here) -> core.Carry:
    """Says that what follows is fine-tuning: it begins with the running statistics that were received."""
    return replace(carry, kept={**carry.kept, TUNED: ()})


def settled(carry: core.Carry, here: core.Here) -> core.Carry:
    """The mean of what `statistics` found in place of a newcomer's running statistics."""
    if "loss" in carry.kept and TUNED not in carry.kept:
        return carry  # trained by the round's own passes: what they left is scored
    stays = (here.personal.met > 0) | (here.n < 1)
    sums = carry.kept["statistics"]
    new = {n: torch.where(stays, carry.params[n], s / here.n.clamp(min=1)) for n, s in sums.items()}
    return replace(carry, params={n: new.get(n, p) for n, p in carry.params.items()})


@dataclass(frozen=True)
class FedBN(core.Method):
    label = "FedBN"
    reference = "Li et al., ICLR 2021"
    absent = "cohort only: an absent client keeps its normalisation layers"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=core.Training(batch=32))
    newcomers: str = core.hyper("data", "norm layers of a client that has not trained", "ours", NEWCOMERS)
    loss: core.Loss = core.fit  # a wrapper may replace it

    def sent(self, params: core.Params, home: frozenset[str]) -> core.Params:
        """The leaves that travel."""
        return {n: p for n, p in params.items() if n not in home or self.newcomers == "mean"}

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(params, model.norms)

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Leaves, core.Own]:
        return core.Leaves(self.sent(state.params, state.home)), ()

    @property
    def outside(self) -> str:
        whose = "its average of the clients'" if self.newcomers == "mean" else "the initial"
        return f"the server's model with {whose} normalisation layers"

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        if model.norms:
            return ()
        return (f"FedBN is FedAvg here, bit for bit: the network {model.name!r} has no normalisation layers",)

    def join(self, here: core.Here) -> Record:
        first = {**here.initial, **here.shared.params}
        return Record({n: first[n] for n in here.initial if n in here.model.norms}, torch.zeros_like(here.n))

    def start(self, here: core.Here) -> core.Params:
        known = {**here.shared.params, **here.personal.norms}
        return {n: known[n] for n in here.initial}

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)  # (1)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        norms = {n: carry.params[n] for n in here.personal.norms}
        return core.weighted(self.sent(carry.params, here.model.norms), here), Record(norms, torch.ones_like(here.n))

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(core.averaged(state.params, total), state.home)  # (2)

    def adapt(self, epochs: int) -> core.Passes:
        return core.opened(core.tuned(self.passes(), epochs), tuning) if epochs else ()

    def prepare(self) -> core.Passes:
        settle = replace(core.gather("statistics", statistics, batch=SETTLING_BATCH), close=settled)
        return (settle,) if self.newcomers == "data" else ()
