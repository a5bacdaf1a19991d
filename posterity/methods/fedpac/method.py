"""FedPAC, the method: the client's two phases with their loss (b), the server's means and combined heads (d).

The paper is summed up in the folder's `__init__.py`. A client's statistics (a) are in `statistics.py`, the weights of
the heads (c) in `programme.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from posterity.core import (
    STATIC,
    Batch,
    Carry,
    Facts,
    Here,
    Mean,
    Message,
    Method,
    Network,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Point,
    Rows,
    Training,
    averaged,
    base,
    check_fields,
    fit,
    fit_head,
    gather,
    head,
    hyper,
    masked_mean,
    pointwise,
    record,
    sum_features,
    tree_map,
    tuned,
    weighted,
    within,
)
from posterity.methods.fedpac.programme import collaborate
from posterity.methods.fedpac.statistics import class_means, describe
from posterity.methods.fedper import split

AUTHORS = "authors' code"
PAPER = Training(lr=0.01, epochs=5, batch=50, momentum=0.5, weight_decay=5e-4)
SCORING_BATCH = 64  # samples at once for sums; has no influence on the result


@record
class State:
    params: Params  # the shared base, and the mean of the last cohort's heads
    prototypes: Tensor  # P_c (C, D)
    known: Tensor  # 1 where somebody has reported the class (C,)
    heads: Params  # (clients, ...): what the server made for each client
    met: Tensor  # 1 where that has happened (clients,)
    head: frozenset[str] = field(metadata={STATIC: True})


@record
class Shared:
    base: Params
    prototypes: Tensor
    known: Tensor


@dataclass(frozen=True)
class FedPAC(Method):
    label: ClassVar[str] = "FedPAC"
    reference: ClassVar[str] = "Xu, Tong and Huang, ICLR 2023"
    absent: ClassVar[str] = "cohort only: an absent client keeps the head that it was given last"
    scored: ClassVar[Point] = "received"
    class_statistics: ClassVar[Mapping[str, tuple[str, ...]]] = {"before": ("clients",), "after": ("prototypes",)}

    local: Training = hyper(Training(), "how the clients train; lr and epochs are those of the base", paper=PAPER)
    lam: float = hyper(1.0, "λ: pull of features to the prototype of their class", AUTHORS, search=(0.1, 10.0, "log"))
    head_lr: float = hyper(0.1, "step size of the head", AUTHORS)
    head_epochs: int = hyper(1, "epochs of the head, before those of the base", AUTHORS)
    collaboration: bool = hyper(True, "combine heads; false: every client keeps its own", "Xu et al. 2023, ablation")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, lam=(0, None), head_lr=(0, None), head_epochs=(1, None))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        if model.task != "classification":
            raise ValueError("FedPAC speaks about classes; this task is regression. Use a method without prototypes")
        for part, names in (("base", base(params, model)), ("head", head(params, model))):
            if not names:
                raise ValueError(
                    f"FedPAC trains a head and a base in turn, and the network {model.name!r} has no {part} that could "
                    "be trained; take a network with both, or fedper, which trains everything at once"
                )
        zero = next(iter(params.values())).new_zeros(())
        heads = {n: p.expand(facts.clients, *p.shape).clone() for n, p in split(params, model.head_names)[1].items()}
        prototypes = zero.expand(facts.classes, model.feature_dim).clone()
        known, met = zero.expand(facts.classes).clone(), zero.expand(facts.clients).clone()
        return State(params, prototypes, known, heads, met, model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        below, mean = split(state.params, state.head)
        shared = Shared(below, state.prototypes, state.known)
        if client is None:
            return shared, mean
        row = tree_map(lambda leaf: leaf.index_select(0, client[None])[0], (state.heads, state.met))
        return shared, tree_map(lambda made, common: torch.where(row[1] > 0, made, common), row[0], mean)

    def outside(self) -> str:
        return "the server's base with the mean head"

    def remarks(self, model: Network) -> tuple[str, ...]:
        if self.lam or self.collaboration:
            return ()
        return (f"FedPAC without a pull (lam = 0) and without collaboration is FedRep with {self.head_epochs} "
                "epochs for the head",)  # fmt: skip

    def start(self, here: Here) -> Params:
        return {n: here.own[n] if n in here.own else here.shared.base[n] for n in here.initial}

    def aligned(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The loss of the base: (b)."""
        top = here.model.heads[0]
        output, buffers, seen = here.model(
            params, batch.x, mask=batch.layer_mask, train=True, key=here.key, want=(top,)
        )
        own = class_means(here.kept["before"]).to(here.n)
        target = torch.where(here.shared.known[:, None] > 0, here.shared.prototypes, own)[batch.y]
        pull = ((seen[top].flatten(1) - target) ** 2).mean(1) * (here.round > 1)
        return masked_mean(pointwise(output, batch.y, here.model) + self.lam * pull, batch.mask), buffers  # (b)

    def train_head(self) -> Pass:
        how = replace(self.local, lr=self.head_lr, epochs=self.head_epochs, steps=None)
        return how.descend(fit_head, head)

    def passes(self) -> tuple[Pass, ...]:
        return (
            gather("before", sum_features, batch=SCORING_BATCH),
            self.train_head(),
            self.local.descend(self.aligned if self.lam else fit, base),
            gather("after", sum_features, batch=SCORING_BATCH),
        )

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuned((self.train_head(),), epochs)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        below, own = split(carry.params, here.model.head_names)
        (variance, rows), after = describe(carry.kept["before"]), carry.kept["after"]
        row = {"head": own, "n": here.n, "variance": variance.to(here.n), "rows": rows.to(here.n)}
        prototypes = Mean(after["count"].to(here.n), class_means(after).to(here.n))
        return {**weighted(below, here), "prototypes": prototypes, "clients": Rows(here.client, row)}, ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        params, found = averaged(state.params, total), total["clients"]
        said, classes = found.value, total["prototypes"]
        prototypes = classes.mean(state.prototypes)
        known = torch.maximum(state.known, (classes.weight > 0).to(state.known))
        share = said["n"] / said["n"].sum()
        mean = tree_map(lambda h: torch.tensordot(share, h.to(share), 1), said["head"])
        made = said["head"]
        if self.collaboration:
            alpha = collaborate(said["variance"], said["rows"])
            made = tree_map(lambda h: torch.tensordot(alpha, h, 1), made)  # (d)
        heads, met = Rows(found.client, made).into(state.heads), state.met.index_fill(0, found.client, 1.0)
        return State({**params, **mean}, prototypes, known, heads, met, state.head)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        return {"known_classes": state.known.sum()}
