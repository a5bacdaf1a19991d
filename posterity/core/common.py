"""What unrelated methods share.

    weighted, averaged         the usual message and server: the mean of what clients send, weighted by their samples
    combine_mean               `combine` of that server
    adapt_plainly              `adapt` of a method that adds something to the loss
    sum_classes and relatives  sums over a client's samples, class by class: for prototypes, centroids, balanced losses
    proximal                   the model around a centre that fits a batch
    as_second and relatives    a second network in one visit
    mean_slope                 the mean gradient of a visit, read off the distance that plain SGD moved

A second network is for methods whose clients train a personal model beside the shared one (Ditto, APFL, pFedMe,
pFedBreD), or need another one to look at (MOON). Its leaves lie beside those of the first, under the network's names
with a prefix: `start` returns `{**first, **as_second(other)}`; a loss written for one network minimises over the second
as `on_second(loss)` with the partition `second_network`; `first_network` names the leaves of the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.likelihood import one_hot
from posterity.core.messages import Mean, Message
from posterity.core.network import Network, Params
from posterity.core.passes import INNER, Loss, Training, Update, base, head, slope_of, trainable
from posterity.core.protocol import Batch, Here, Leaves, Method, Now, Passes, tuned
from posterity.core.random import fold
from posterity.core.tree import tree_map

PREFIX = "second/"


def weighted(params: Params, here: Here) -> Message:
    """A client's leaves, weighted by its number of training samples."""
    return {"params": Mean(here.n, params)}


def averaged(params: Params, total: Message, server_lr: float = 1.0, model: Network | None = None) -> Params:
    """`params` moved towards the mean by `server_lr`; leaves that nobody sent stay as they are.

    The `model`'s running statistics are the mean, whatever `server_lr` is: a step beyond it may end below 0, which is
    no variance.
    """
    mean = total["params"].mean()
    if server_lr == 1:
        return {**params, **mean}
    moving = {n: m for n, m in mean.items() if model is None or n not in model.buffers}
    moved = tree_map(lambda p, m: p + server_lr * (m - p), {n: params[n] for n in moving}, moving)
    return {**params, **mean, **moved}


def combine_mean(method: Method, state: Leaves, total: Message, now: Now) -> Leaves:
    """`combine` of a server that keeps the mean and nothing else."""
    return Leaves(averaged(state.params, total))


def adapt_plainly(method: Any, epochs: int) -> Passes:
    """`adapt` by the loss alone, without what the method adds to it: it looks for the client's own minimum."""
    return tuned((method.local.descend(method.loss),), epochs)


def zeros(params: Params, model: Network) -> Params:
    """A zero for every number that is trained."""
    return {n: torch.zeros_like(params[n]) for n in trainable(params, model)}


def count_labels(params: Params, batch: Batch, here: Here) -> Tensor:
    """How many samples of each class (C,): a summary for `gather`."""
    return one_hot(batch.y, here.model.classes, batch.mask).sum(0)


def sum_classes(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> dict[str, Tensor]:
    """Counts (C,), sums (C, d) and sums of squared lengths (C,) of features z (B, d), class by class, in float64."""
    z, hot = z.double(), one_hot(y, classes, mask.double())  # (B, d), (B, C)
    return {"count": hot.sum(0), "sum": hot.T @ z, "square": hot.T @ (z**2).sum(1)}


def sum_features(params: Params, batch: Batch, here: Here) -> dict[str, Tensor]:
    """`sum_classes` of what the head is given, in evaluation mode: a summary for `gather`."""
    return sum_classes(here.model.features(params, batch.x)[0], batch.y, batch.mask, here.model.classes)


def proximal(
    loss: Loss,
    begin: Params,
    centre: Params,
    still: Params,
    batch: Batch,
    here: Here,
    lam: float,
    lr: float,
    steps: int,
) -> Update:
    """θ after `steps` steps of size `lr` on loss(θ) + (λ/2) ‖θ − centre‖² from `begin`.

    `still` are the network's other leaves. Beside θ: the loss before the last step, without the pull, and the buffers,
    which every step renews.
    """
    theta, buffers, value = begin, Params(), here.n * 0
    for number in range(steps):
        now = replace(here, key=fold(here.key, INNER + number))
        slope, value, new = slope_of(loss, theta, {**still, **buffers}, batch, now)
        buffers = {**buffers, **new}
        theta = {n: p - lr * (slope[n] + lam * (p - centre[n])) for n, p in theta.items()}
    return theta, value, buffers


def as_second(params: Params) -> Params:
    """The leaves of a network under the names of the second."""
    return {PREFIX + n: p for n, p in params.items()}


def first_of(params: Params) -> Params:
    """What does not belong to the second network."""
    return {n: p for n, p in params.items() if not n.startswith(PREFIX)}


def second_of(params: Params) -> Params:
    """The second network, under the network's own names."""
    return {n.removeprefix(PREFIX): p for n, p in params.items() if n.startswith(PREFIX)}


def first_network(names: Iterable[str], model: Network) -> list[str]:
    """Partition: the trainable leaves of the first network, and the method's own."""
    own = {PREFIX + n for n in model.leaves}
    return [n for n in names if n not in own and (n in model.trainable or n not in model.leaves)]


def second_network(names: Iterable[str], model: Network) -> list[str]:
    """Partition: the trainable leaves of the second network."""
    return [n for n in names if n.startswith(PREFIX) and n.removeprefix(PREFIX) in model.trainable]


def on_second(loss: Loss) -> Loss:
    """`loss`, of the second network."""

    def of_second(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = loss(second_of(params), batch, here)
        return value, as_second(buffers)

    return of_second


def mean_slope(start: Mapping[str, Tensor], end: Params, names: Iterable[str], lr: float, here: Here) -> Params:
    """(start − end) / (τη) in this pass: the mean gradient of plain SGD."""
    return {n: (start[n] - end[n]) / (here.steps.clamp(min=1).to(here.n) * lr) for n in names}


def require_plain_sgd(local: Training, what: str, remedy: str = "") -> None:
    """Refuse a training that does not move along the sum of its gradients; `what` reads them off, `remedy` may help."""
    if local.optimiser == "sgd" and not local.momentum and local.clip is None and local.lr > 0:
        return
    raise ValueError(
        f"{what} reads the mean gradient off the distance that plain SGD moved; local has "
        f"optimiser {local.optimiser!r}, momentum {local.momentum}, clip {local.clip}, lr {local.lr}. "
        f"Use sgd with a step size above 0, without momentum and clip{remedy}"
    )


def require_two_parts(params: Params, model: Network, who: str) -> None:
    """Refuse a network without a base or a head to train, for a method that trains them in turn."""
    for part, names in (("base", base(params, model)), ("head", head(params, model))):
        if not names:
            raise ValueError(
                f"{who} trains a head and a base in turn, and the network {model.name!r} has no {part} that could be "
                "trained; take a network with both, or fedper, which trains everything at once"
            )
