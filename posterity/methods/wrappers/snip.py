"""SNIP: after the first round, weights of one layer whose loss would hardly change without them are removed for good.

    s_k = |w_k ḡ_k|,   ḡ ∝ w − w⁺: the first round's update of the server stands for the gradient
    keep the (1 − sparsity) share with the largest s_k; the others are 0 from then on, for everybody

Reference: Lee, Ajanthan and Torr, "SNIP: single-shot network pruning based on connection sensitivity", ICLR 2019;
in federated learning as MetaVD (NeurIPS 2023, Tables 16 and 17) compares with it: the layer before the output alone.

Differs from the paper: the sensitivity comes from the first round of training, not from one batch at initialisation
(MetaVD's baselines); exactly ⌈(1 − sparsity)·K⌉ weights are kept (released codes keep one more). Clients are told the
pattern with every broadcast, a byte a weight; `report` says what sparse messages would have saved. Removed weights
still count in a gradient-norm clip. The weights in `state.params` are masked; those of the inner method may not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.hyper import check_fields, hyper, within
from posterity.core.method import Batch, Carry, Facts, Here, Message, Now, Params, Pass, Personal
from posterity.core.tree import STATIC, Tree, record
from posterity.core.wrapper import Wrapper
from posterity.models.noisy import linear_layer


@record
class State:
    host: Tree
    keep: Tensor  # whether a weight is kept
    pruned: Tensor  # () whether the choice has been made
    leaf: str = field(metadata={STATIC: True})

    @property
    def params(self) -> Params:
        return cut(self.host.params, self.leaf, self.keep)


@record
class Shared:
    host: Tree
    keep: Tensor
    leaf: str = field(metadata={STATIC: True})


def cut(params: Params, leaf: str, keep: Tensor) -> Params:
    return {**params, leaf: params[leaf] * keep.to(params[leaf].dtype)}


def most_sensitive(weight: Tensor, gradient: Tensor, sparsity: float) -> Tensor:
    """Which weights are kept; among equals, the first."""
    score = (weight * gradient).abs().flatten()
    count = math.ceil((1 - sparsity) * len(score) - 1e-9)
    keep = torch.zeros_like(score, dtype=torch.bool)
    best = torch.argsort(score, descending=True, stable=True)[:count]
    return keep.index_fill(0, best, True).reshape(weight.shape)


@dataclass(frozen=True)
class Snip(Wrapper):
    sparsity: float = hyper(0.7, "share of the layer's weights that are removed", "MetaVD, Tables 16 and 17")
    layer: str = hyper("", "the pruned layer; none named: the last linear layer before the head", "MetaVD's code")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, sparsity=(0, 1))

    @property
    def label(self) -> str:
        return f"{self.inner.label}+SNIP"

    def init(self, model: Any, params: Params, facts: Facts) -> State:
        leaf = f"{linear_layer(model, self.layer)}.weight"
        keep = torch.ones_like(params[leaf], dtype=torch.bool)
        return State(self.inner.init(model, params, facts), keep, keep.new_zeros(()), leaf)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Any]:
        shared, own = self.inner.offer(state.host, client)
        return Shared(shared, state.keep, state.leaf), own

    def combine(self, state: State, total: Message, now: Now) -> State:
        host = self.inner.combine(state.host, total, now)
        keep, weight = state.keep, state.host.params[state.leaf]
        if not bool(state.pruned):
            keep = most_sensitive(weight, weight - host.params[state.leaf].to(weight), self.sparsity)
        return State(host, keep, torch.ones_like(state.pruned), state.leaf)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        gone = (~state.keep).sum().to(torch.float64)
        size = state.host.params[state.leaf].element_size()
        mine = {"removed": gone / state.keep.numel(), "bytes_saved_each": 2 * size * gone}  # down and up, per client
        return {**self.inner.report(state.host, total), **mine}

    def down(self, here: Here) -> Here:
        return replace(here, shared=here.shared.host)

    def join(self, here: Here) -> Personal:
        return self.inner.join(self.down(here))

    def start(self, here: Here) -> Params:
        return cut(self.inner.start(self.down(here)), here.shared.leaf, here.shared.keep)

    def _kept(self, each: Pass) -> Pass:
        def step(carry: Carry, batch: Batch, here: Here) -> Carry:
            after = each.step(carry, batch, self.down(here))
            return replace(after, params=cut(after.params, here.shared.leaf, here.shared.keep))

        return replace(
            each,
            step=step,
            open=lambda carry, here: each.open(carry, self.down(here)),
            close=lambda carry, here: each.close(carry, self.down(here)),
        )

    def passes(self) -> tuple[Pass, ...]:
        return tuple(self._kept(p) for p in self.inner.passes())

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuple(self._kept(p) for p in self.inner.adapt(epochs))

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return self.inner.message(carry, self.down(here))

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return self.inner.predict(carry, x, self.down(here))
