"""What meta-learning methods share: a server that takes the mean update as a gradient, meta-steps, and the adaptation.

    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v
    client   meta-steps on whole batches of B samples for the support, for each query and for the curvature
    test     some steps on the client's own training data, then predict

Reptile, MAML and Per-FedAvg differ in what a client does, not in these.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posterity import core

CODE = "MetaVD's released code"
APPENDIX = "MetaVD, appendix E"


@core.record
class State:
    params: core.Params  # w
    velocity: core.Params  # v, of the trainable leaves; {} without momentum


def init(self: Any, model: core.Network, params: core.Params, facts: core.Facts) -> State:
    moving = core.trainable(params, model) if self.server_momentum else []
    return State(params, {n: torch.zeros_like(params[n]) for n in moving})


def offer(self: Any, state: State, client: Tensor | None) -> tuple[core.Leaves, core.Own]:
    return core.Leaves(state.params), ()  # the velocity stays on the server


def combine(self: Any, state: State, total: core.Message, now: core.Now) -> State:
    """The mean update as a meta-gradient; without momentum and clip, FedAvg's server (bit for bit).

    Running statistics have neither step, momentum nor clip: they are the mean.
    """
    new = core.averaged(state.params, total, self.server_lr, now.model)
    if not self.server_momentum and self.server_clip is None:
        return State(new, {})
    target = total["params"].mean()
    names = core.trainable(target, now.model)
    update = core.clipped({n: target[n] - state.params[n] for n in names}, self.server_clip)
    if self.server_momentum:
        update = core.tree_map(lambda v, u: self.server_momentum * v + u, state.velocity, update)
    moved = {n: state.params[n] + self.server_lr * update[n] for n in names}
    return State({**new, **moved}, update if self.server_momentum else {})


def meta_steps(method: Any, order: str, queries: int = 1, **how: Any) -> core.Pass:
    """A pass of meta-steps; one step takes `local.batch` samples for every batch that its `order` uses."""
    batches = 1 + queries + (order == "hessian_free")
    how = {**method.local.schedule(), "batch": batches * method.local.batch, **how}
    losses, by = (method.support_loss, method.loss), method.local.make_optimiser()
    how |= {"order": order, "queries": queries, "inner": method.inner, "clip": method.part_clip}
    return core.meta(*losses, method.fast, by, **how)


def adapt(self: Any, epochs: int) -> core.Passes:
    """Plain descent of size `fast`: what MAML's clients do before they are scored."""
    by = core.SGD(self.fast, 0.0, self.local.weight_decay, self.local.clip)
    return adaptation(self, core.descend(self.loss, by), epochs)


def adaptation(method: Any, work: core.Pass, epochs: int) -> core.Passes:
    """`work` cut to `adapt_steps` steps for each of the `epochs`; whole epochs if that is None."""
    if epochs == 0:
        return ()
    steps = None if method.adapt_steps is None else epochs * method.adapt_steps
    return (replace(work, epochs=steps or epochs, batch=method.adapt_batch, max_steps=steps),)
