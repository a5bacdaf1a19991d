"""What a client's data says about every parameter, as a precision: three ways, for (c).

identity   Λ' = Λ_cavity + λ̄ n_k: nothing is estimated                                               # (c)
laplace    Λ' = Λ_cavity + c (F + w n_k), F the diagonal Fisher information at the tilted mean, summed over the
           client's samples and cut to its mean ± 2 deviations, w the weight decay
mcmc       Λ' = 1 / (s + (1 − s) S), S the variances of the epochs' last iterates, cut alike, and then scaled to the
           length that "identity" would have
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from posterity.core import NOISE, Batch, Here, Params, categorical, norm, pointwise, trainable, tree_map, uniform

PRECISIONS = ("identity", "laplace", "mcmc")
SHRINKAGE = 1e-4  # s


def fisher(params: Params, batch: Batch, here: Here) -> Params:
    """An unbiased estimate of the diagonal Fisher information of a batch: the square of one summed gradient.

    For labels that the model itself draws, the samples' gradients are independent and have mean 0, so that products of
    two of them have mean 0 too. A regression target is drawn one deviation above or below the prediction.
    """
    names = trainable(params, here.model)

    def surprise(moving: Params) -> Tensor:
        output, _ = here.model({**params, **moving}, batch.x)
        return (pointwise(output, drawn(output.detach(), here), here.model) * batch.mask).sum()

    return tree_map(torch.square, grad(surprise)({n: params[n] for n in names}))


def drawn(output: Tensor, here: Here) -> Tensor:
    """Labels or targets (B,) as the model expects them."""
    if here.model.task == "regression":
        return output + NOISE**0.5 * torch.where(uniform(here.key, output.shape, output.dtype) < 0.5, -1, 1)
    return categorical(here.key, output)


def cut(tree: Params) -> Params:
    """All numbers within two deviations of their mean."""
    flat = torch.cat([leaf.flatten() for leaf in tree.values()])
    mean, reach = flat.mean(), 2 * flat.std(correction=0)
    return tree_map(lambda leaf: torch.minimum(torch.maximum(leaf, mean - reach), mean + reach), tree)


def unbiased(square: Tensor, mean: Tensor, count: Tensor) -> Tensor:
    """The variances of `count` samples from the sum of their squares and their mean."""
    return (square - count * mean**2).clamp(min=0) / (count - 1).clamp(min=1)


def laplace(cavity: Params, information: Params, decay: Tensor, scale: float) -> Params:
    """Λ' from the Fisher information of the client's data, and `decay` = w n_k."""
    return tree_map(lambda c, f: c + scale * (f + decay), cavity, cut(information))


def sampled(cavity: Params, variance: Params, identity: Tensor) -> Params:
    """Λ' from variances of samples, of the length that the cavity and λ̄ n_k together have."""
    found = cut(tree_map(lambda v: 1 / (SHRINKAGE + (1 - SHRINKAGE) * v), variance))
    length = norm(tree_map(lambda c: c + identity, cavity))
    return tree_map(lambda p: p * (length / norm(found)), found)


__all__ = ["PRECISIONS", "cut", "drawn", "fisher", "laplace", "sampled", "unbiased"]
