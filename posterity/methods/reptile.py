"""Reptile: the clients' mean update is a step of meta-learning, and every client adapts before it predicts.

    client   θ_k ← E epochs of SGD on f_k from w
    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v,   p_k = n_k / Σ_j n_j over the cohort
    test     one step on the client's own training data, then predict

Reference: Nichol, Achiam and Schulman, "On first-order meta-learning algorithms", 2018, Algorithm 2; as a federated
method in MetaVD (NeurIPS 2023), Algorithm 1, "Reptile variant".

Differs from the paper: clients count by their samples; the server has momentum and may clip, as in MetaVD's released
code (neither paper mentions them); running statistics of batch norm move by η_s without momentum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from posterity.core.averaging import averaged, weighted
from posterity.core.hyper import check_fields, hyper, within
from posterity.core.losses import fit
from posterity.core.method import Carry, Facts, Here, Message, Method, Now, Params, Pass, Personal, Point
from posterity.core.optimise import clipped
from posterity.core.passes import Loss
from posterity.core.training import Training
from posterity.core.tree import record, tree_map

CODE = "MetaVD's released code"


@record
class State:
    params: Params  # w
    velocity: Params  # v, of the trainable leaves; {} without momentum


def first(model: Any, params: Params, momentum: float) -> State:
    """The server before the first round."""
    moving = [n for n in params if n in model.trainable] if momentum else []
    return State(params, {n: torch.zeros_like(params[n]) for n in moving})


def server_step(state: State, total: Message, lr: float, momentum: float, clip: float | None) -> State:
    """The mean update as a meta-gradient; without momentum and clip, FedAvg's server (bit for bit)."""
    if not momentum and clip is None:
        return State(averaged(state.params, total, lr), state.velocity)
    new = averaged(state.params, total, lr)
    target = total["params"].mean()
    names = list(state.velocity) if momentum else list(target)
    update = clipped({n: target[n] - state.params[n] for n in names}, clip)
    if momentum:
        update = tree_map(lambda v, u: momentum * v + u, state.velocity, update)
    moved = {n: state.params[n] + lr * update[n] for n in names}
    return State({**new, **moved}, update if momentum else state.velocity)


def adaptation(work: Pass, epochs: int, steps: int | None, batch: int) -> tuple[Pass, ...]:
    """`work` cut to `steps` steps of `batch` samples for each of the `epochs`; whole epochs if `steps` is None."""
    if epochs == 0:
        return ()
    if steps is None:
        return (replace(work, epochs=epochs, batch=batch, most=None),)
    return (replace(work, epochs=epochs * steps, batch=batch, most=epochs * steps),)


@dataclass(frozen=True)
class Reptile(Method):
    label: ClassVar[str] = "Reptile"
    reference: ClassVar[str] = "Nichol et al., 2018"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "adapted"

    local: Training = hyper(Training(), "how the clients train")
    server_lr: float = hyper(0.9, "η_s: step size of the server", f"{CODE}; the paper searches 0.6 … 1")
    server_momentum: float = hyper(0.9, "μ: momentum of the server", CODE)
    server_clip: float | None = hyper(None, "longest mean update", f"{CODE} uses 100; off by default")
    adapt_steps: int | None = hyper(1, "steps of adaptation per epoch of `adapt`; none: whole epochs", "MetaVD §4")
    adapt_batch: int = hyper(64, "batch size of the adaptation", "MetaVD §4")
    loss: Loss = fit  # a wrapper may replace it
    support_loss: Loss = fit  # unused here, but wrappers replace both

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, server_lr=(0, None), server_momentum=(0, 1), server_clip=(0, None))
        within(self, adapt_steps=(1, None), adapt_batch=(1, None))

    def init(self, model: Any, params: Params, facts: Facts) -> State:
        return first(model, params, self.server_momentum)

    def offer(self, state: State, client: Any) -> tuple[Params, tuple[()]]:
        return state.params, ()  # the velocity stays on the server

    def start(self, here: Here) -> Params:
        return here.shared

    def passes(self) -> tuple[Pass, ...]:
        return (self.local.descend(self.loss),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(carry.params, here), ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        return server_step(state, total, self.server_lr, self.server_momentum, self.server_clip)

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return adaptation(self.local.descend(self.loss), epochs, self.adapt_steps, self.adapt_batch)
