"""Ready-made passes, so that a method normally writes a loss and perhaps a summary.

    descend   minimise a loss over some of the leaves
    watched   the same, adding up something about its gradients
    directed  the same, along a direction that a method makes in place of the gradient
    gather    add up a summary of the data, for later passes and the message
    sample    descend, and keep averages of the iterates in blocks (posterior samples)
    meta      descend on the loss after a simulated adaptation (MAML and relatives)

A *loss* is `(params, batch, here) -> (masked mean, updated buffers)`; `fit` is the usual one. A *partition* names the
leaves that move. `Training` says how a client trains, in one record that all methods share.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from posterity.core.likelihood import NOISE, masked_mean, pointwise
from posterity.core.network import Network, Params
from posterity.core.optim import SGD, Adam, Groups, Optimiser, RMSprop, clipped
from posterity.core.protocol import Batch, Carry, Here, Pass
from posterity.core.random import fold
from posterity.core.tree import Tree, tree_leaves, tree_map
from posterity.settings.hyperparameters import check_fields, hyper
from posterity.settings.plugins import place_of_function


def fit(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
    """Mean negative log-likelihood of a batch in training mode, and the network's updated buffers."""
    output, buffers = here.model(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
    return masked_mean(pointwise(output, batch.y, here.model), batch.mask), buffers


def run_features(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Tensor, Params]:
    """The network's outputs, what its head is given (B, d), and its updated buffers, in training mode."""
    first = here.model.heads[0]
    output, buffers, seen = here.model(params, batch.x, mask=batch.layer_mask, train=True, key=here.key, want=(first,))
    return output, seen[first].flatten(1), buffers


def fit_head(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
    """As `fit`, with the base in evaluation mode: nothing before the head moves, running statistics included."""
    z, _ = here.model.features(params, batch.x)
    output = here.model.classify(params, z, mask=batch.layer_mask, train=True, key=here.key)
    return masked_mean(pointwise(output, batch.y, here.model), batch.mask), {}


def log_likelihood(params: Params, batch: Batch, here: Here) -> Tensor:
    """Sum of the log-likelihood over the real rows, in evaluation mode; densities with their constants.

    For regression that is −½ log 2πs a sample, with the s of `log_predictive`: clients of other sizes have another sum.
    """
    output, _ = here.model(params, batch.x)
    constant = 0.5 * math.log(2 * math.pi * NOISE) if here.model.task == "regression" else 0.0
    return -((pointwise(output, batch.y, here.model) + constant) * batch.mask).sum()


Loss = Callable[[Params, Batch, Here], tuple[Tensor, Params]]
Summary = Callable[[Params, Batch, Here], Tree]
Numbers = Callable[[Network], int]
Partition = Callable[[Iterable[str], Network], list[str]]
Update = tuple[Tree, Tensor, Params]  # gradient, value, buffers
Direction = Callable[[Params, Params, Batch, Here], Update]  # of the leaves that move and of those that do not
Watch = Callable[[Params, Params, Batch, Here], Tree]  # gradient, leaves before the step
ORDERS = ("exact", "first", "hessian_free")
STATE = 5  # copies of the parameters that a step holds for each tensor that its optimiser keeps of a leaf
SAMPLE = 4  # and for each of its samples
INNER = 2**20  # from here on, numbers that inner steps fold into the key: draws of their own


# --- partitions: which leaves move. Never buffers (the network updates them itself), nor weights that are frozen.
def everything(names: Iterable[str], model: Network) -> list[str]:
    """The network's trainable leaves and the method's own."""
    return [n for n in names if n in model.trainable or n not in model.leaves]


def trainable(names: Iterable[str], model: Network) -> list[str]:
    return [n for n in names if n in model.trainable]


def head(names: Iterable[str], model: Network) -> list[str]:
    return [n for n in trainable(names, model) if n in model.head_names]


def base(names: Iterable[str], model: Network) -> list[str]:
    """For baselines that train head and base in turn (FedRep, FedPAC)."""
    return [n for n in trainable(names, model) if n in model.base_names]


def squared_distance(params: Params, centre: Params, model: Network) -> Tensor:
    """‖θ − w‖² over the trainable leaves of the network."""
    return sum(((params[n] - centre[n]) ** 2).sum() for n in trainable(params, model))  # type: ignore[return-value]


# --- passes
def descend(loss: Loss, optimiser: Optimiser, trains: Partition = everything, **how: Any) -> Pass:
    """Minimise `loss` over the leaves that `trains` names."""
    return directed(partial(slope_of, loss), optimiser, trains, **how)


def watched(
    name: str, watch: Watch, loss: Loss, optimiser: Optimiser, trains: Partition = everything, **how: Any
) -> Pass:
    """`descend` that adds up `watch(gradient, leaves, batch, here)` of its steps into `here.kept[name]`.

    The gradient is that of `loss`, before the optimiser changes it, and the leaves are those that it was taken at. What
    is watched must be 0 for an all-zero mask, as a summary is.
    """

    def added(slope: Params, carry: Carry, batch: Batch, here: Here) -> dict[str, Tree]:
        return _added(carry.kept, name, watch(slope, carry.params, batch, here))

    return directed(partial(slope_of, loss), optimiser, trains, added, **how)


def directed(
    direction: Direction,
    optimiser: Optimiser,
    trains: Partition = everything,
    keep: Callable[[Params, Carry, Batch, Here], dict[str, Tree]] = lambda slope, carry, batch, here: carry.kept,
    **how: Any,
) -> Pass:
    """Move the leaves that `trains` names by `optimiser` along `direction(moving, still, batch, here)`.

    It returns the direction, the loss to report, and new values of leaves that do not move by the optimiser. `keep`
    makes what the next step finds in `kept`.
    """

    def begin(carry: Carry, here: Here) -> Carry:
        moving = {n: carry.params[n] for n in trains(carry.params, here.model)}
        loss = carry.kept.get("loss", torch.stack((here.n * 0, here.n * 0)))  # loss x samples, samples
        return replace(carry, opt=optimiser.open(moving), kept={**carry.kept, "loss": loss})

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        names = set(trains(carry.params, here.model))
        moving = {n: p for n, p in carry.params.items() if n in names}
        still = {n: p for n, p in carry.params.items() if n not in names}
        slope, value, buffers = direction(moving, still, batch, here)
        moved, opt = optimiser.update(slope, carry.opt, moving)
        new = {**carry.params, **buffers, **moved}
        count = batch.mask.sum()
        loss = carry.kept["loss"] + torch.stack((value.detach() * count, count))
        params = {n: new[n] for n in carry.params}  # the order of the names is part of the tree
        return Carry(params, {**keep(slope, carry, batch, here), "loss": loss}, opt)

    copies = how.get("copies", Pass.copies) + held_by(optimiser)
    return Pass(step, open=begin, close=lambda carry, here: replace(carry, opt=()), **{**how, "copies": copies})


def gather(name: str, summarise: Summary, *, anew: bool = False, **how: Any) -> Pass:
    """Add up `summarise` over the data into `here.kept[name]`; a summary is 0 for an all-zero mask.

    `anew` forgets what an earlier pass of the visit gathered under this name, instead of adding to it.
    """

    def begin(carry: Carry, here: Here) -> Carry:
        return replace(carry, kept={n: kept for n, kept in carry.kept.items() if n != name or not anew})

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        return replace(carry, kept=_added(carry.kept, name, summarise(carry.params, batch, here)))

    return Pass(step, open=begin, learns=False, **{"shuffle": False, **how})


def _added(kept: dict[str, Tree], name: str, new: Tree) -> dict[str, Tree]:
    """`kept` with `new` added to what stands under `name`."""
    return {**kept, name: tree_map(torch.add, kept[name], new) if name in kept else new}


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

    copies = inner.copies + SAMPLE * blocks
    return replace(inner, open=begin, step=step, close=end, copies=copies)


def meta(
    support_loss: Loss,
    loss: Loss,
    fast: float,
    optimiser: Optimiser,
    trains: Partition = everything,
    adapts: Partition = trainable,
    order: str = "exact",
    delta: float = 1e-3,
    inner: int = 1,
    queries: int = 1,
    clip: float | None = None,
    **how: Any,
) -> Pass:
    """Descend on `loss` at the point that `inner` steps of size `fast` on `support_loss` would reach.

    A batch is dealt to a support and a query of `queries` times its size. "first" leaves the second derivatives out;
    "hessian_free" takes them as central differences of width `delta` on a third part, of the support's size. `clip` is
    the longest gradient of an inner step, and with "hessian_free" of the query and the longest product.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is unknown; possible: {', '.join(ORDERS)}")

    def walk(moving: Params, still: Params, batch: Batch, here: Here) -> tuple[list[Params], Params]:
        return _walk(support_loss, SGD(fast, clip=clip), inner, adapts(moving, here.model), moving, still, batch, here)

    def update(moving: Params, still: Params, batch: Batch, here: Here) -> Update:
        support, query, *third = deal(batch, 1, queries, *[1] * (order == "hessian_free"))

        def ahead(moving: Params) -> tuple[Tensor, Params]:
            points, buffers = walk(moving, still, support, here)
            return _lost(loss, {**still, **buffers, **points[-1]}, query, here)

        if order == "exact":
            slope, (value, buffers) = grad_and_value(ahead, has_aux=True)(moving)
            return slope, value, buffers
        points, buffers = walk(moving, still, support, here)
        slope, value, buffers = slope_of(loss, points[-1], {**still, **buffers}, query, here)
        for part in third:
            for point in reversed(points[:-1]):  # the chain rule, one inner step after another
                along = {n: slope[n] for n in adapts(moving, here.model)}  # only what took the step is shifted
                product = _curvature(support_loss, point, along, still, part, here, delta)
                slope = tree_map(lambda g, h: g - fast * h, clipped(slope, clip), clipped(product, clip))
        return slope, value, buffers

    return directed(update, optimiser, trains, **how)


def opened(passes: tuple[Pass, ...], change: Callable[[Carry, Here], Carry]) -> tuple[Pass, ...]:
    """`passes` after `change`; without passes, one that does nothing else."""
    if not passes:
        return (Pass(lambda carry, batch, here: carry, open=change, batch=1, max_steps=1, shuffle=False, learns=False),)
    first = passes[0]
    return (replace(first, open=lambda carry, here: first.open(change(carry, here), here)), *passes[1:])


def holding(passes: tuple[Pass, ...], copies: int = 0, leaves: Numbers | None = None) -> tuple[Pass, ...]:
    """`passes` that hold more: so many copies of the parameters, and leaves with so many numbers beside the network."""

    def one(each: Pass) -> Pass:
        before, each = each.scratch, replace(each, copies=each.copies + copies)
        if leaves is None:
            return each
        return replace(each, scratch=lambda rows, model: each.copies * leaves(model)
                       + (before(rows, model) if before else 0))  # fmt: skip

    return tuple(one(each) for each in passes)


def held_by(optimiser: Optimiser) -> int:
    """Copies of the parameters that a step holds besides for its optimiser: none for plain SGD, ten for Adam."""
    if isinstance(optimiser, Groups):  # whose groups go by the names of the leaves, which are not known here
        return max(map(held_by, optimiser.optimisers))
    leaf = torch.zeros(2)
    return STATE * sum(kept.shape == leaf.shape for kept in tree_leaves(optimiser.open({"weight": leaf})))


def constrained(
    passes: tuple[Pass, ...], view: Callable[[Here], Here], fix: Callable[[Carry, Here], Carry]
) -> tuple[Pass, ...]:
    """`passes` of a method that sees `view(here)`, with `fix` after everything that they do."""

    def one(each: Pass) -> Pass:
        return replace(
            each,
            step=lambda carry, batch, here: fix(each.step(carry, batch, view(here)), here),
            open=lambda carry, here: fix(each.open(carry, view(here)), here),
            close=lambda carry, here: fix(each.close(carry, view(here)), here),
        )

    return tuple(one(each) for each in passes)


def _walk(
    loss: Loss, by: SGD, steps: int, names: list[str], moving: Params, still: Params, batch: Batch, here: Here
) -> tuple[list[Params], Params]:
    """The points before, between and after `steps` steps of the leaves `names`, and the buffers behind them."""
    points, buffers = [moving], Params()
    for number in range(steps):
        now = replace(here, key=fold(here.key, INNER + number))
        own = {n: points[-1][n] for n in names}
        slope, _, new = slope_of(loss, own, {**still, **buffers, **points[-1]}, batch, now)
        buffers = {**buffers, **new}
        points.append({**points[-1], **by.update(slope, (), own)[0]})
    return points, buffers


def _curvature(
    loss: Loss, moving: Params, along: Params, still: Params, batch: Batch, here: Here, delta: float
) -> Params:
    """The Hessian of `loss` times `along`, by a central difference of gradients."""
    ahead, behind = (
        slope_of(loss, {**moving, **{n: moving[n] + step * g for n, g in along.items()}}, still, batch, here)[0]
        for step in (delta, -delta)
    )
    return tree_map(lambda a, b: (a - b) / (2 * delta), ahead, behind)


def deal(batch: Batch, *shares: int) -> list[Batch]:
    """Disjoint batches by turns: of every Σ shares rows, the first go to the first batch, the next to the second, …

    A real row's place in its batch does not depend on the padding behind it, so neither do draws.
    """
    parts, cycle, rows, start = [], sum(shares), len(batch.mask), 0
    for share in shares:
        size = max(1, rows // cycle * share + min(max(rows % cycle - start, 0), share))
        turn = torch.arange(size, device=batch.mask.device)
        row = turn // share * cycle + start + turn % share
        inside = row.clamp(max=rows - 1)  # a batch that gets nothing repeats a row behind a zero mask
        mask = batch.mask[inside] * (row < rows).to(batch.mask.dtype)
        parts.append(Batch(batch.x[inside], batch.y[inside], mask))
        start += share
    return parts


def slope_of(loss: Loss, moving: Params, still: Params, batch: Batch, here: Here) -> Update:
    """The gradient of a loss by the leaves `moving`, its value, and the new buffers."""
    slope, (value, buffers) = grad_and_value(lambda m: _lost(loss, {**still, **m}, batch, here), has_aux=True)(moving)
    return slope, value, buffers


def _lost(loss: Loss, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
    """What a loss returns, if it is what a loss returns; PyTorch's own complaint would not name it."""
    found = loss(params, batch, here)
    match found:
        case (Tensor(shape=()), dict()):
            return found
    raise TypeError(
        f"{place_of_function(loss)}: the loss returned a {type(found).__name__}; expected (value, buffers): "
        "a scalar tensor, and the network's new buffers as here.model(…, train=True) returns them ({} if none)"
    )


OPTIMISERS = ("sgd", "adam", "rmsprop")
PFEDVMP = "pFedVMP §5.1"


@dataclass(frozen=True)
class Training:
    lr: float = hyper(0.01, "η: step size of the clients", PFEDVMP, search=(1e-3, 0.5, "log"), ge=0)
    epochs: int = hyper(1, "E: epochs over the client's data in a round", PFEDVMP, ge=1)
    steps: int | None = hyper(None, "exactly so many steps in a round, instead of epochs", "ours", ge=1)
    batch: int = hyper(10, "B: batch size; the last, smaller batch is kept", PFEDVMP, ge=1)
    optimiser: str = hyper("sgd", "optimiser of the clients, started anew each round", PFEDVMP, OPTIMISERS)
    momentum: float = hyper(0.0, "momentum (sgd only)", "unspecified in pFedVMP: none", ge=0, le=1)
    weight_decay: float = hyper(0.0, "weight decay added to the gradient", "unspecified in pFedVMP: none", ge=0)
    clip: float | None = hyper(None, "longest gradient norm", "MetaVD's code uses 5; off by default", ge=0)

    def __post_init__(self) -> None:
        check_fields(self)

    def make_optimiser(self) -> Optimiser:
        if self.optimiser == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay, self.clip)
        maker: Callable[..., Optimiser] = Adam if self.optimiser == "adam" else RMSprop
        return maker(lr=self.lr, weight_decay=self.weight_decay, clip=self.clip)

    def schedule(self) -> dict[str, Any]:
        """Epochs, batch and cap as a `Pass` wants them; `steps` epochs always hold at least `steps` steps."""
        if self.steps is None:
            return {"epochs": self.epochs, "batch": self.batch}
        return {"epochs": self.steps, "batch": self.batch, "max_steps": self.steps}

    def descend(self, loss: Loss = fit, trains: Partition = everything) -> Pass:
        return descend(loss, self.make_optimiser(), trains, **self.schedule())
