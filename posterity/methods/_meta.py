"""What meta-learning methods share: a server that takes the mean update as a gradient, meta-steps, and the adaptation.

    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v
    client   meta-steps on whole batches of B samples for the support, for each query and for the curvature
    test     some steps on the client's own training data, then predict

Reptile, MAML and Per-FedAvg differ in what a client does, not in these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from posterity import core

CODE = "MetaVD's released code"
APPENDIX = "MetaVD, appendix E"


@core.record
class State:
    params: core.Params  # w
    velocity: core.Params  # v, of the trainable leaves; {} without momentum


def first(model: core.Network, params: core.Params, momentum: float) -> State:
    """The server before the first round."""
    moving = [n for n in params if n in model.trainable] if momentum else []
    return State(params, {n: torch.zeros_like(params[n]) for n in moving})


def server_step(
    state: State, total: core.Message, model: core.Network, lr: float, momentum: float, clip: float | None
) -> State:  # fmt: skip
    """The mean update as a meta-gradient; without momentum and clip, FedAvg's server (bit for bit).

    Running statistics have neither step, momentum nor clip: they are the mean.
    """
    new = core.averaged(state.params, total, lr, model)
    if not momentum and clip is None:
        return State(new, state.velocity)
    target = total["params"].mean()
    names = list(state.velocity) if momentum else [n for n in target if model is None or n not in model.buffers]
    update = core.clipped({n: target[n] - state.params[n] for n in names}, clip)
    if momentum:
        update = core.tree_map(lambda v, u: momentum * v + u, state.velocity, update)
    moved = {n: state.params[n] + lr * update[n] for n in names}
    return State({**new, **moved}, update if momentum else state.velocity)


def meta_steps(
    local: core.Training,
    support_loss: core.Loss,
    loss: core.Loss,
    fast: float,
    order: str,
    queries: int = 1,
    **how: Any,
) -> core.Pass:
    """A pass of meta-steps; one step takes `local.batch` samples for every batch that its `order` uses."""
    batches = 1 + queries + (order == "hessian_free")
    how = {**local.schedule(), **how, "batch": batches * local.batch}
    return core.meta(support_loss, loss, fast, local.make_optimiser(), order=order, queries=queries, **how)


def fast_steps(local: core.Training, loss: core.Loss, fast: float) -> core.Pass:
    """Plain descent of size `fast`: what MAML's clients do before they are scored."""
    return core.descend(loss, core.SGD(fast, 0.0, local.weight_decay, local.clip))


def adaptation(work: core.Pass, epochs: int, steps: int | None, batch: int) -> tuple[core.Pass, ...]:
    """`work` cut to `steps` steps of `batch` samples for each of the `epochs`; whole epochs if `steps` is None."""
    if epochs == 0:
        return ()
    if steps is None:
        return (replace(work, epochs=epochs, batch=batch, max_steps=None),)
    return (replace(work, epochs=epochs * steps, batch=batch, max_steps=epochs * steps),)
