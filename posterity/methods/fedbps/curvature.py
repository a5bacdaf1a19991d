"""The curvature h_i of (2): diagonals for a negative log-likelihood, added up over the real rows of a batch.

    ggn                Σ_c p_c (Jᵀ(p − e_c))²        generalised Gauss-Newton = Fisher, every label in turn; ≥ 0
    mc_fisher          (Jᵀ(p − e_y))², y ~ p         one label drawn from the model: unbiased for ggn, and cheap
    empirical_fisher   (Jᵀ(p − e_y))², y observed    cheapest; vanishes with the residuals and not with the curvature
    hutchinson         mean of u ⊙ Hu, u = ±1        unbiased for the Hessian; may be negative

J is the Jacobian of the network's output by the leaves that move. The network is in evaluation mode, so that rows are
independent; the sum of two batches is the curvature of both together, which is what `gather` adds up. The first three
need the square of each row's gradient: `squares.py`.
"""

from collections.abc import Callable, Iterable
from functools import reduce

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from posterity import core
from posterity.methods.fedbps.squares import sum_squares

ESTIMATORS = ("ggn", "mc_fisher", "empirical_fisher", "hutchinson")


def diagonal(estimator: str, params: core.Params, batch: core.Batch, here: core.Here, probes: int = 8) -> core.Params:
    """The estimator's sum over the real rows, for the trainable leaves of the network."""
    moving = {n: params[n] for n in core.trainable(params, here.model)}
    if estimator == "hutchinson":
        drawn = (signs(core.fold(here.key, s), moving, 1) for s in range(probes))  # one by one: each holds activations
        found = along(lambda m: -core.log_likelihood({**params, **m}, batch, here), moving, drawn)
        return core.tree_map(lambda leaf: leaf / probes, found)
    if estimator == "ggn":
        return sum_squares(moving, params, batch, here.model, batch.y, lambda o, _: every_root(o, here.model))
    if estimator == "empirical_fisher":
        return sum_squares(moving, params, batch, here.model, batch.y, lambda o, y: alone(residual(o, y, here.model)))
    keys = core.fold(here.key, torch.arange(len(batch.mask), device=here.key.device))  # of each row: padding moves none
    return sum_squares(moving, params, batch, here.model, keys, lambda o, key: alone(drawn_root(o, key, here.model)))


def residual(output: Tensor, y: Tensor, model: core.Network) -> Tensor:
    """Gradient of one row's negative log-likelihood by the output: p − e_y, or (f − y)/noise."""
    if model.task == "regression":
        return (output - y) / core.NOISE
    return torch.softmax(output, -1) - (torch.arange(len(output), device=output.device) == y).to(output.dtype)


def every_root(output: Tensor, model: core.Network) -> tuple[Tensor, Tensor]:
    """Weights (R,) and roots (R, ...) whose weighted outer products are the Hessian of the loss by the output."""
    if model.task == "regression":
        return torch.full_like(output, 1 / core.NOISE)[None], torch.ones_like(output)[None]
    p = torch.softmax(output, -1)
    return p, p - torch.eye(len(output), dtype=output.dtype, device=output.device)


def alone(root: Tensor) -> tuple[Tensor, Tensor]:
    """One root, with the weight 1."""
    return torch.ones((1,), dtype=root.dtype, device=root.device), root[None]


def drawn_root(output: Tensor, key: Tensor, model: core.Network) -> Tensor:
    """The residual of one label drawn from the model itself."""
    if model.task == "regression":
        return core.normal(key, output.shape, output.dtype) / core.NOISE**0.5
    return residual(output, core.categorical(key, output), model)


# --- products with the Hessian
def along(function: Callable[[core.Params], Tensor], point: core.Params, groups: Iterable[core.Params]) -> core.Params:
    """Σ_s u_s ⊙ H u_s over all directions, by differentiating the gradient once more; a group (S, ...) is at once."""
    _, pull = vjp(grad(function), point)[:2]
    products = (vmap(lambda u: core.tree_map(torch.mul, u, pull(u)[0]))(group) for group in groups)
    sums = (core.tree_map(lambda leaf: leaf.sum(0), each) for each in products)
    return reduce(lambda total, term: core.tree_map(torch.add, total, term), sums)


def signs(key: Tensor, like: core.Params, count: int) -> core.Params:
    """`count` directions of independent signs (count, ...)."""
    return {
        n: 1 - 2 * (core.uniform(core.fold(key, i), (count, *p.shape), p.dtype) < 0.5).to(p.dtype)
        for i, (n, p) in enumerate(like.items())
    }
