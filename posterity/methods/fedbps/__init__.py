"""FedBPS: single parameters become personal, the ones that the federation is least certain about.

A client trains its mixed model and measures how well its data determine each parameter: a diagonal Laplace posterior

    w ~ N(w_i, v_i),    v_i = 1 / (n_i (h_i + τ)),    h_i = diagonal curvature of the mean loss at w_i   # (2)

The server replaces the mixture of these Gaussians by the one nearest to it in KL(mixture ‖ ·), which has its moments:

    w_g = Σ_i π_i w_i,    v_g = Σ_i π_i [ v_i + (w_i − w_g)² ],    π_i = n_i / Σ_j n_j                   # (5)

A parameter is uncertain if data say little about it or if clients disagree. The share p of the most uncertain ones,

    M = 1 on the round(pP) entries with the largest v_g, else 0,                                         # (3)

is personal, one mask for all clients, found anew each round; the other entries are common:

    w_i ← w_i ⊙ M + w_g ⊙ (1 − M)                                                                        # (4)

p = 0 is FedAvg and p = 1 local training. What is minimised is the mean over clients of the expected loss of their mixed
models (1), which is nowhere computed. The authors train with SGD, lr 0.01, momentum 0.9, weight decay 5e-4, batch
128 and E = 5. Moments are merged by Chan's rule: E[w²] − E[w]² would cancel in float32.

Reference: "Federated BNN for Parameter Selection" (FedBPS), conference paper, 4 pages.

Differs from the paper (errata, numbered by us):
  B1  Algorithm 1 takes the Hessian for the variance, which makes the best determined entries personal: inverted, as in
      (2); `score="hessian"` is as printed. τ, the prior that weight decay means, keeps dead units finite.
  B2  line 6 of Algorithm 1 lacks the square of (5), and the sum is then 0 for the disagreement: squared.
  B3  "σ" is a variance in (3) and (5).
  B4  a posterior needs the summed loss: `loss_scale="mean"` inflates v_i by n_i, and disagreement no longer counts.
  (3) as an inequality is ambiguous among ties: we take an exact count, the first entry of a tie first.
The estimator of the curvature, unnamed in the paper, is `curvature`. Running statistics of batch norm are averaged and
common (so p = 1 is local training for networks without them). The whole of w_g is sent down, and the mask as bits: a
client that joins late starts at w_g. Adaptation trains and then takes the common entries back from w_g (4).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core
from posterity.methods.fedbps.curvature import ESTIMATORS, diagonal
from posterity.methods.fedbps.squares import held_numbers

CURVATURE_BATCH = 32  # rows whose gradients are held at once
AUTHORS = core.Training(lr=0.01, epochs=5, batch=128, momentum=0.9, weight_decay=5e-4)  # §4.1


@core.record
class State:
    params: core.Params  # w_g, and the averaged buffers
    variance: core.Params  # v_g of the trainable leaves; {} in the broadcast
    mask: Tensor  # M, eight entries in a byte


def top(score: Tensor, count: int) -> Tensor:
    """True on exactly `count` entries of the largest score (P,); among equals the first come first."""
    order = torch.argsort(score, descending=True, stable=True)
    return torch.zeros_like(score, dtype=torch.bool).index_fill(0, order[:count], True)


def personal_entries(variance: core.Params, share: float, scope: str) -> Tensor:
    """M (P,): the most uncertain `share` of all entries together, or of each tensor by itself.

    Ranked in float32: the two logits of a binary head have equal variances but for the last bits of float64, and those
    bits, which another engine or device has otherwise, are not to decide.
    """
    flat = [leaf.flatten().float() for leaf in variance.values()]
    groups = flat if scope == "per_tensor" else [torch.cat(flat)]
    return torch.cat([top(group, round(share * len(group))) for group in groups])  # (3)


def unpacked_like(mask: Tensor, like: core.Params) -> core.Params:
    """Booleans in the shapes of `like`, from the bytes of `packed`."""
    sizes = [leaf.numel() for leaf in like.values()]
    parts = torch.split(core.unpacked(mask, [sum(sizes)]), sizes)
    return {n: part.reshape(leaf.shape) for (n, leaf), part in zip(like.items(), parts, strict=True)}


def mixed(own: core.Params, shared: State) -> core.Params:
    """The client's entries where M = 1, else the common ones; leaves that `own` lacks are common."""
    mask = unpacked_like(shared.mask, own)
    return {n: torch.where(mask[n], own[n], p) if n in own else p for n, p in shared.params.items()}  # (4)


@dataclass(frozen=True)
class FedBPS(core.Method):
    label = "FedBPS"
    reference = "FedBPS, conference paper"
    absent = "cohort only: an absent client keeps its parameters and is not in the moments"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS)
    p: float = core.hyper(0.7, "share of the parameters that is personal", "§4.1; 0.3, 0.5, 0.7 and 0.9 in Table 2",
                          search=(0.3, 0.9, "linear"), ge=0, le=1)  # fmt: skip
    curvature: str = core.hyper("ggn", "estimator of the diagonal curvature", "unspecified: ours", ESTIMATORS)
    probes: int = core.hyper(8, "sign vectors per batch of `hutchinson`", "unspecified: ours", ge=1)
    prior: float = core.hyper(5e-4, "τ: precision of the prior per sample", "paper's weight decay; erratum B1", gt=0)
    score: str = core.hyper("variance", "what is averaged: (2), or its inverse", "erratum B1", ("variance", "hessian"))
    loss_scale: str = core.hyper("sum", "posterior of the summed or of the mean loss", "erratum B4", ("sum", "mean"))
    within_scale: float = core.hyper(1.0, "factor on v_i against the disagreement", "ours, to study; erratum B4", ge=0)
    scope: str = core.hyper("global", "p of all parameters, or of each tensor", "§3.2", ("global", "per_tensor"))
    loss: core.Loss = core.fit  # a wrapper may replace it

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        unknown = core.zeros(params, model)
        return State(params, unknown, core.packed(personal_entries(unknown, self.p, self.scope)))

    def offer(self, state: State, client: Tensor | None) -> tuple[State, core.Own]:
        return replace(state, variance={}), ()

    def join(self, here: core.Here) -> core.Personal:
        return {n: here.shared.params[n] for n in core.trainable(here.initial, here.model)}

    def start(self, here: core.Here) -> core.Params:
        return mixed(here.personal, here.shared)

    def summed_curvature(self, params: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
        return diagonal(self.curvature, params, batch, here, self.probes)

    def passes(self) -> core.Passes:
        held: dict[str, Any] = {"copies": 24} if self.curvature == "hutchinson" else {"scratch": held_numbers}
        look = core.gather("curvature", self.summed_curvature, batch=CURVATURE_BATCH, **held)
        return self.local.descend(self.loss), look

    def variance(self, h: Tensor, n: Tensor) -> Tensor:
        """v_i from the curvature of the mean loss; an indefinite estimate counts as no curvature."""
        h, count = h.clamp(min=0), n if self.loss_scale == "sum" else torch.ones_like(n)
        if self.score == "hessian":
            return self.within_scale * count * h
        return self.within_scale / (count * (h + self.prior))  # (2)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        n = here.n.clamp(min=1)
        own = {name: carry.params[name] for name in core.trainable(carry.params, here.model)}
        square = core.tree_map(
            lambda h: n * self.variance(h / n, n), {name: carry.kept["curvature"][name] for name in own}
        )
        total = torch.stack([leaf.sum() for leaf in core.tree_leaves(square)]).sum()
        sent = {"moments": core.Moments(n, own, square), "within": core.Sum(total)}
        rest = {name: p for name, p in carry.params.items() if name not in own}
        return sent | ({"rest": core.Mean(n, rest)} if rest else {}), own

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        variance = total["moments"].variance()  # (5)
        rest = total["rest"].mean() if "rest" in total else {}
        new = total["moments"].mean | rest
        mask = core.packed(personal_entries(variance, self.p, self.scope))
        return State({n: new[n] for n in state.params}, variance, mask)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        """The share of Σ v_g that is disagreement; what is left is uncertainty within the clients."""
        full = torch.stack([leaf.sum() for leaf in core.tree_leaves(total["moments"].square)]).sum()
        tiny = torch.finfo(full.dtype).tiny
        return {"disagreement_share": (1 - total["within"].value / full.clamp(min=tiny)).clamp(min=0)}

    def adapt(self, epochs: int) -> core.Passes:
        return tuple(_remixed(p) for p in super().adapt(epochs))  # without the curvature


def _remixed(each: core.Pass) -> core.Pass:
    """`each`, after which the trained leaves keep their personal entries only."""

    def close(carry: core.Carry, here: core.Here) -> core.Carry:
        carry = each.close(carry, here)
        common = replace(here.shared, params=carry.params | {n: here.shared.params[n] for n in here.personal})
        return replace(carry, params=mixed({n: carry.params[n] for n in here.personal}, common))

    return replace(each, close=close)
