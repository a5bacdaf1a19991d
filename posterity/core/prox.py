"""The model around a centre that fits a batch: for methods whose clients solve such a problem at every step."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.func import grad_and_value

from posterity.core.network import Params
from posterity.core.passes import INNER, Loss, Update
from posterity.core.protocol import Batch, Here
from posterity.core.random import fold


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
        slope, value, new = _slope(loss, theta, {**still, **buffers}, batch, now)
        buffers = {**buffers, **new}
        theta = {n: p - lr * (slope[n] + lam * (p - centre[n])) for n, p in theta.items()}
    return theta, value, buffers


def _slope(loss: Loss, theta: Params, still: Params, batch: Batch, here: Here) -> tuple[Params, Tensor, Params]:
    slope, (value, buffers) = grad_and_value(lambda moving: loss({**still, **moving}, batch, here), has_aux=True)(theta)
    return slope, value, buffers


__all__ = ["proximal"]
