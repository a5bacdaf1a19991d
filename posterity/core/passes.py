"""Ready-made passes, so that a method normally writes a loss and perhaps a summary.

    descend   minimise a loss over some of the leaves
    gather    add up a summary of the data, for later passes and the message
    sample    descend, and keep averages of the iterates in blocks (posterior samples)
    meta      descend on the loss after a simulated adaptation (MAML and relatives)

A *loss* is `(params, batch, here) -> (masked mean, updated buffers)`. A *partition* names the leaves that move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad_and_value

from posterity.core.method import Batch, Carry, Here, Params, Pass
from posterity.core.optimise import SGD, Optimiser
from posterity.core.tree import Tree, tree_map

Loss = Callable[[Params, Batch, Here], tuple[Tensor, Params]]
Summary = Callable[[Params, Batch, Here], Tree]
Partition = Callable[[Iterable[str], Any], list[str]]
Update = tuple[Tree, Tensor, Params]  # gradient, value, buffers


# --- partitions: which leaves move. Never buffers (the network updates them itself), nor weights that are frozen. -----
def everything(names: Iterable[str], model: Any) -> list[str]:
    """The network's trainable leaves and the method's own."""
    return [n for n in names if n in model.trainable or n not in model.leaves]


def network(names: Iterable[str], model: Any) -> list[str]:
    return [n for n in names if n in model.trainable]


def head(names: Iterable[str], model: Any) -> list[str]:
    return [n for n in network(names, model) if n in model.head_names]


def base(names: Iterable[str], model: Any) -> list[str]:
    return [n for n in network(names, model) if n in model.base_names]


def norms(names: Iterable[str], model: Any) -> list[str]:
    return [n for n in network(names, model) if n in model.norms]


# --- passes ---------------------------------------------------------------------------------------------------------
def descend(loss: Loss, optimiser: Optimiser, trains: Partition = everything, **how: Any) -> Pass:
    """Minimise `loss` over the leaves that `trains` names."""
    return _learning(
        lambda moving, still, batch, here: _slope(loss, moving, still, batch, here), optimiser, trains, how
    )


def gather(name: str, summarise: Summary, **how: Any) -> Pass:
    """Add up `summarise` over the data into `here.kept[name]`; a summary is 0 for an all-zero mask."""

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        new = summarise(carry.params, batch, here)
        if name in carry.kept:
            new = tree_map(torch.add, carry.kept[name], new)
        return replace(carry, kept={**carry.kept, name: new})

    return Pass(step, learns=False, **{"shuffle": False, **how})


def sample(
    loss: Loss, optimiser: Optimiser, burn: int, blocks: int, trains: Partition = everything, **how: Any
) -> Pass:
    """Descend; after `burn` steps cut the rest into `blocks` and keep the mean iterate of each.

    `here.kept["samples"]` has leaves (blocks, ...) and `here.kept["filled"]` says which blocks had a step: a client
    with fewer steps than blocks leaves some empty, and they hold zeros.
    """
    inner = descend(loss, optimiser, trains, **how)

    def begin(carry: Carry, here: Here) -> Carry:
        carry = inner.open(carry, here)
        empty = {n: torch.zeros_like(carry.params[n]).expand(blocks, *carry.params[n].shape) * 0
                 for n in trains(carry.params, here.model)}  # fmt: skip
        count = torch.zeros(blocks, dtype=here.n.dtype, device=here.n.device) * here.n
        return replace(carry, kept={**carry.kept, "samples": empty, "filled": count})

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        carry = inner.step(carry, batch, here)
        after, left = here.step - burn, (here.steps - burn).clamp(min=1)
        place = torch.where(after >= 0, after * blocks // left, -1)
        hot = (torch.arange(blocks, device=here.n.device) == place).to(here.n.dtype)
        sums = {n: s + hot.reshape(-1, *[1] * (s.dim() - 1)) * carry.params[n]
                for n, s in carry.kept["samples"].items()}  # fmt: skip
        return replace(carry, kept={**carry.kept, "samples": sums, "filled": carry.kept["filled"] + hot})

    def end(carry: Carry, here: Here) -> Carry:
        carry, count = inner.close(carry, here), carry.kept["filled"]
        each = count.clamp(min=1)
        means = tree_map(lambda s: s / each.reshape(-1, *[1] * (s.dim() - 1)), carry.kept["samples"])
        filled = (count > 0).to(count.dtype)
        return replace(carry, kept={**carry.kept, "samples": means, "filled": filled})

    return replace(inner, open=begin, step=step, close=end)


def meta(
    support_loss: Loss,
    loss: Loss,
    fast: float,
    optimiser: Optimiser,
    trains: Partition = everything,
    adapts: Partition = network,
    order: Literal["exact", "first", "hessian_free"] = "exact",
    delta: float = 1e-3,
    **how: Any,
) -> Pass:
    """Descend on `loss` at the point that one step of size `fast` on `support_loss` would reach.

    A batch is dealt to support and two queries; the second query serves the Hessian-vector product of "hessian_free"
    (central difference of width `delta`). "first" leaves the second derivatives out.
    """
    inner = SGD(fast)

    def step_from(moving: Params, still: Params, batch: Batch, here: Here) -> tuple[Params, Params]:
        names = adapts(moving, here.model)
        slope, _, buffers = _slope(support_loss, {n: moving[n] for n in names}, still | moving, batch, here)
        near, _ = inner.update(slope, (), {n: moving[n] for n in names})
        return {**moving, **near}, buffers

    def update(moving: Params, still: Params, batch: Batch, here: Here) -> Update:
        support, query, third = deal(batch, 3)

        def ahead(moving: Params) -> tuple[Tensor, Params]:
            near, buffers = step_from(moving, still, support, here)
            return loss({**still, **buffers, **near}, query, here)

        if order == "exact":
            slope, (value, buffers) = grad_and_value(ahead, has_aux=True)(moving)
            return slope, value, buffers
        near, buffers = step_from(moving, still, support, here)
        slope, value, buffers = _slope(loss, near, {**still, **buffers}, query, here)
        if order == "hessian_free":
            along = {n: slope[n] for n in adapts(moving, here.model)}  # only what took the inner step is shifted
            product = _curvature(support_loss, moving, along, still, third, here, delta)
            slope = tree_map(lambda g, h: g - fast * h, slope, product)
        return slope, value, buffers

    return _learning(update, optimiser, trains, how)


def _curvature(
    loss: Loss, moving: Params, along: Params, still: Params, batch: Batch, here: Here, delta: float
) -> Params:
    """The Hessian of `loss` times `along`, by a central difference of gradients."""
    ahead, behind = (
        _slope(loss, {**moving, **{n: moving[n] + step * g for n, g in along.items()}}, still, batch, here)[0]
        for step in (delta, -delta)
    )
    return tree_map(lambda a, b: (a - b) / (2 * delta), ahead, behind)


def deal(batch: Batch, ways: int) -> list[Batch]:
    """`ways` disjoint batches: rows 0, ways, 2·ways … to the first, and so on; a ragged rest is split evenly."""
    rows = [torch.arange(i, max(len(batch.mask), ways), ways, device=batch.mask.device) for i in range(ways)]
    parts = []
    for row in rows:
        inside = row.clamp(max=len(batch.mask) - 1)  # a way beyond a tiny batch repeats a row behind a zero mask
        mask = batch.mask[inside] * (row < len(batch.mask)).to(batch.mask.dtype)
        parts.append(Batch(batch.x[inside], batch.y[inside], mask))
    return parts


def _slope(loss: Loss, moving: Params, still: Params, batch: Batch, here: Here) -> Update:
    slope, (value, buffers) = grad_and_value(lambda m: loss({**still, **m}, batch, here), has_aux=True)(moving)
    return slope, value, buffers


def _learning(
    update: Callable[[Params, Params, Batch, Here], Update],
    optimiser: Optimiser,
    trains: Partition,
    how: dict[str, Any],
) -> Pass:
    """A pass that moves `trains` by `optimiser` along the gradient that `update` returns."""

    def begin(carry: Carry, here: Here) -> Carry:
        moving = {n: carry.params[n] for n in trains(carry.params, here.model)}
        loss = carry.kept.get("loss", torch.stack((here.n * 0, here.n * 0)))  # loss x samples, samples
        return replace(carry, opt=optimiser.open(moving), kept={**carry.kept, "loss": loss})

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        names = set(trains(carry.params, here.model))
        moving = {n: p for n, p in carry.params.items() if n in names}
        still = {n: p for n, p in carry.params.items() if n not in names}
        slope, value, buffers = update(moving, still, batch, here)
        moved, opt = optimiser.update(slope, carry.opt, moving)
        new = {**carry.params, **buffers, **moved}
        count = batch.mask.sum()
        loss = carry.kept["loss"] + torch.stack((value.detach() * count, count))
        params = {n: new[n] for n in carry.params}  # the order of the names is part of the tree
        return Carry(params, {**carry.kept, "loss": loss}, opt)

    return Pass(step, open=begin, close=lambda carry, here: replace(carry, opt=()), **how)


__all__ = ["Loss", "Partition", "Summary", "base", "deal", "descend", "everything", "gather", "head", "meta",
           "network", "norms", "sample"]  # fmt: skip
