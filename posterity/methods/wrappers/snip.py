"""SNIP: after the first round, weights of one layer whose loss would hardly change without them are removed for good.

    s_k = |w_k ḡ_k|,   ḡ ∝ w − w⁺: the first round's update of the server stands for the gradient
    keep the (1 − sparsity) share with the largest s_k; the others are 0 from then on, for everybody

Reference: Lee, Ajanthan and Torr, "SNIP: single-shot network pruning based on connection sensitivity", ICLR 2019;
in federated learning as MetaVD (NeurIPS 2023, Tables 16 and 17) compares with it: the layer before the output alone.

Differs from the paper: the sensitivity comes from the first round of training, not from one batch at initialisation
(MetaVD's baselines; its release takes w⁺ − Σ p_k θ_k *after* the server's step, which for FedAvg is nothing but
rounding); exactly ⌈(1 − sparsity)·K⌉ weights are kept (released codes keep one more). Removed weights are
not sent, and not counted in the bytes of a round; clients, which forget, are told the pattern with every broadcast, a
bit a weight. `report` says what a client saves. The network itself is without the removed weights, so that nothing
moves them: no inner step of MAML or Per-FedAvg (as released, but there the steps before a prediction do), and they do
not count in a gradient-norm clip (there they do). The weights in `state.params` are masked; those of the inner method
may not be.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core
from posterity.methods.wrappers.drop import Drop
from posterity.nn.extra import linear_layer


@core.record
class State:
    host: core.Tree
    keep: Tensor  # whether a weight is kept
    pruned: Tensor  # () whether the choice has been made
    leaf: str = field(metadata={core.STATIC: True})

    @property
    def params(self) -> core.Params:
        return cut(self.host.params, self.leaf, self.keep)


@core.record
class Shared:
    host: core.Tree
    keep: Tensor  # (⌈K/8⌉,) eight weights in a byte
    leaf: str = field(metadata={core.STATIC: True})


@dataclass(frozen=True, eq=False)
class Pruned(core.Instead):
    """`model` without the removed weights of a leaf, whatever it is given for them."""

    leaf: str
    keep: Tensor

    def replaced(self, given: core.Params) -> core.Params:
        return cut(given, self.leaf, self.keep)


def cut(params: core.Params, leaf: str, keep: Tensor) -> core.Params:
    """Parameters without the removed weights; a method may ask the network with a part of its leaves."""
    return {**params, leaf: torch.where(keep, params[leaf], 0)} if leaf in params else params


def view(here: core.Here) -> core.Here:
    """What the inner method sees."""
    return replace(here, shared=here.shared.part.host)


def kept(here: core.Here) -> Tensor:
    """Which weights of the layer are kept."""
    known = here.shared.part
    return core.unpacked(known.keep, here.initial[known.leaf].shape)


def prune(here: core.Here) -> core.Here:
    """What the passes of the inner method see: its network is without the removed weights."""
    model: Any = Pruned(here.model, here.shared.part.leaf, kept(here))
    return replace(view(here), model=model)


def fix(carry: core.Carry, here: core.Here) -> core.Carry:
    """The carry without the removed weights."""
    return replace(carry, params=cut(carry.params, here.shared.part.leaf, kept(here)))


def most_sensitive(weight: Tensor, gradient: Tensor, sparsity: float) -> Tensor:
    """Which weights are kept; among equals, the first."""
    score = (weight * gradient).abs().flatten()
    count = math.ceil((1 - sparsity) * len(score) - 1e-9)
    keep = torch.zeros_like(score, dtype=torch.bool)
    best = torch.argsort(score, descending=True, stable=True)[:count]
    return keep.index_fill(0, best, True).reshape(weight.shape)


@dataclass(frozen=True)
class Snip(core.Wrapper):
    sparsity: float = core.hyper(
        0.7, "share of the layer's weights that are removed", "MetaVD, Tables 16, 17", ge=0, le=1
    )
    layer: str = core.hyper("", "the pruned layer; none named: the last linear layer before the head", "MetaVD's code")

    def __post_init__(self) -> None:
        core.check_fields(self)
        if isinstance(self.method, Drop):
            raise ValueError("+snip and +drop both prune the layer before the output: take one of them")

    @property
    def label(self) -> str:
        return f"{self.inner.label}+SNIP"

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        leaf = f"{linear_layer(model, self.layer)}.weight"
        keep = torch.ones_like(params[leaf], dtype=torch.bool)
        return State(self.inner.init(model, params, facts), keep, keep.new_zeros(()), leaf)

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Sparse, Any]:
        shared, own = self.inner.offer(state.host, client)
        found = dict(core.tree_named(shared))
        sent = next((name for name in found if name.endswith(f"/{state.leaf}")), None)
        if sent is not None:
            shared = core.tree_filled(shared, {**found, sent: torch.where(state.keep, found[sent], 0)})
        pattern, gone = core.packed(state.keep), (~state.keep).sum()
        saved = gone * (0 if sent is None else found[sent].element_size())
        unsent = torch.where(gone > 0, saved, len(pattern))  # nothing removed, no pattern
        told = Shared(shared, pattern, state.leaf)
        return core.Sparse(told, unsent, state.keep, () if sent is None else (f"host/{sent}",), pattern="keep"), own

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        host = self.inner.combine(state.host, total, now)
        keep, weight = state.keep, state.host.params[state.leaf]
        if not bool(state.pruned):
            keep = most_sensitive(weight, weight - host.params[state.leaf].to(weight), self.sparsity)
        return State(host, keep, torch.ones_like(state.pruned), state.leaf)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        """What each client saves from the next round on: removed weights down and up, less the pattern."""
        gone = (~state.keep).sum().double()
        size = state.host.params[state.leaf].element_size()
        saved = 2 * size * gone - len(core.packed(state.keep)) * (gone > 0)
        mine = {"removed": gone / state.keep.numel(), "bytes_saved_each": saved}
        return {**self.inner.report(state.host, total), **mine}

    def join(self, here: core.Here) -> core.Personal:
        return self.inner.join(view(here))

    def start(self, here: core.Here) -> core.Params:
        return fix(core.Carry(self.inner.start(view(here)), {}, ()), here).params

    def passes(self) -> core.Passes:
        return core.constrained(self.inner.passes(), prune, fix)

    def adapt(self, epochs: int) -> core.Passes:
        return core.constrained(self.inner.adapt(epochs), prune, fix)

    def prepare(self) -> core.Passes:
        return core.constrained(self.inner.prepare(), prune, fix)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        sent, personal = self.inner.message(carry, view(here))
        leaf, mean = here.shared.part.leaf, sent.get("params")
        if not (isinstance(mean, core.Mean) and leaf in mean.value):  # a method whose layer goes another way
            return sent, personal
        keep = kept(here)
        unsent = mean.value[leaf].element_size() * (~keep).sum()
        return {**sent, "params": core.Sparse(mean, unsent, keep, (f"value/{leaf}",))}, personal

    def inspect(self, message: core.Message, here: core.Here) -> str:
        """Removed weights are 0 in the message and in the broadcast, so lengths are those of what was sent."""
        sent = {name: part.part if isinstance(part, core.Sparse) else part for name, part in message.items()}
        return self.inner.inspect(sent, view(here))

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        return self.inner.predict(carry, x, view(here))
