"""The curvature h_i of (2): diagonals for a negative log-likelihood, added up over the real rows of a batch.

    ggn                Σ_c p_c (Jᵀ(p − e_c))²        generalised Gauss-Newton = Fisher, every label in turn; ≥ 0
    mc_fisher          (Jᵀ(p − e_y))², y ~ p         one label drawn from the model: unbiased for ggn, and cheap
    empirical_fisher   (Jᵀ(p − e_y))², y observed    cheapest; vanishes with the residuals and not with the curvature
    hutchinson         mean of u ⊙ Hu, u = ±1        unbiased for the Hessian; may be negative
    exact              e_jᵀ H e_j                    the Hessian by unit vectors: P products, for tests

J is the Jacobian of the network's output by the leaves that move. The network is in evaluation mode, so that rows are
independent; the sum of two batches is the curvature of both together, which is what `gather` adds up. The first three
need the square of each row's gradient. A linear layer that sees a row once, as a vector a, and whose output has the
slope δ has the gradient δ aᵀ; the sum of its squares is one product of matrices, (Σ_r weight_r δ_r²)ᵀ a². Of all other
leaves a gradient per row is held, so their memory is rows x parameters: walk in small batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from posterity.core import (
    NOISE,
    Batch,
    Here,
    Network,
    Params,
    categorical,
    fold,
    log_likelihood,
    normal,
    trainable,
    tree_map,
    uniform,
)

ESTIMATORS = ("ggn", "mc_fisher", "empirical_fisher", "hutchinson", "exact")
Roots = Callable[[Tensor, Tensor], Iterable[tuple[float | Tensor, Tensor]]]  # weights and directions in output space


def diagonal(estimator: str, params: Params, batch: Batch, here: Here, probes: int = 8) -> Params:
    """The estimator's sum over the real rows, for the trainable leaves of the network."""
    names = set(trainable(params, here.model))
    moving = {n: p for n, p in params.items() if n in names}
    still = {n: p for n, p in params.items() if n not in names}
    if estimator in ("hutchinson", "exact"):
        drawn = (signs(fold(here.key, s), moving, 1) for s in range(probes))  # one by one: each holds all activations
        groups, share = (drawn, probes) if estimator == "hutchinson" else ([units(moving)], 1)
        found = along(lambda m: -log_likelihood({**still, **m}, batch, here), moving, groups)
        return tree_map(lambda leaf: leaf / share, found)
    if estimator == "ggn":
        return squares(moving, still, batch, here.model, batch.y, lambda o, _: every_root(o, here.model))
    if estimator == "empirical_fisher":
        return squares(moving, still, batch, here.model, batch.y, lambda o, y: [(1, residual(o, y, here.model))])
    if estimator != "mc_fisher":
        raise ValueError(f"curvature {estimator!r} is unknown; possible: {', '.join(ESTIMATORS)}")
    keys = fold(here.key, torch.arange(len(batch.mask), device=here.key.device))  # of each row: padding moves none
    return squares(moving, still, batch, here.model, keys, lambda o, key: [(1, drawn_root(o, key, here.model))])


def row_gradients(rows: int, model: Network) -> int:
    """Numbers that are held while every row has a gradient of its own, its square, and what made it."""
    together = {leaf for layer in linear_layers(model) for leaf in _leaves(layer)}
    each = sum(p.numel() for n, p in model.module.named_parameters() if n in model.trainable and n not in together)
    return 4 * rows * (each + sum(sum(layer.weight.shape) for layer in linear_layers(model).values()))


# --- squared gradients of single rows -------------------------------------------------------------------------------
def squares(moving: Params, still: Params, batch: Batch, model: Network, marks: Tensor, roots: Roots) -> Params:
    """Σ_rows Σ_r weight_r (Jᵀ root_r)²; `marks` (B, ...) has what `roots` wants to know of a row."""
    layers = rowwise({**still, **moving}, batch.x[:1], model)
    apart = {n: p for n, p in moving.items() if n not in {leaf for layer in layers for leaf in _leaves(layer)}}
    real = batch.mask  # of the dtype and on the device of the rest: a capture allows no copy to the device
    zeros = {n: torch.zeros(1, o.out_features, dtype=real.dtype, device=real.device) for n, o in layers.items()}

    def one(x: Tensor, mark: Tensor) -> tuple[Params, Params, Params]:
        def output_of(apart: Params, shifts: Params) -> tuple[Tensor, Params]:
            seen: Params = {}
            around = {n: partial(_shifted, n, shift, seen) for n, shift in shifts.items()}
            return model({**still, **moving, **apart}, x[None], around=around)[0][0], seen

        output, pull, seen = vjp(output_of, apart, zeros, has_aux=True)  # type: ignore[misc]  # two, says PyTorch
        terms = (tree_map(partial(_square, weight), pull(root)) for weight, root in roots(output, mark))
        both = reduce(lambda total, term: tree_map(torch.add, total, term), terms)
        return *both, tree_map(torch.square, seen)

    rows, slopes, inputs = vmap(one)(batch.x, marks)  # (B, ...), (B, 1, out), (B, 1, in)
    found = {n: torch.tensordot(batch.mask, leaf, dims=1) for n, leaf in rows.items()}
    for name in layers:
        weight, bias = _leaves(name)
        slope = batch.mask[:, None] * slopes[name][:, 0]
        found |= {weight: slope.T @ inputs[name][:, 0].to(slope), bias: slope.sum(0)}
    return {n: found[n] for n in moving}


def linear_layers(model: Network) -> dict[str, nn.Linear]:
    """The linear layers whose weights no other layer has, by name."""
    owners = Counter(id(p) for layer in model.module.modules() for p in layer._parameters.values() if p is not None)
    return {
        name: layer
        for name, layer in model.module.named_modules()
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
        if all(owners[id(p)] == 1 for p in layer.parameters())
    }


def rowwise(params: Params, x: Tensor, model: Network) -> dict[str, nn.Linear]:
    """The linear layers that see a single sample x (1, ...) once, as one vector."""
    layers, seen = linear_layers(model), Counter[str]()

    def note(name: str, row: Tensor, output: Tensor) -> Tensor:
        seen[name] += 1 if row.shape == (1, layers[name].in_features) else 2
        return output

    model(params, x, around={name: partial(note, name) for name in layers})
    return {name: layer for name, layer in layers.items() if seen[name] == 1}


def _leaves(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


def _shifted(name: str, shift: Tensor, seen: Params, row: Tensor, output: Tensor) -> Tensor:
    """The output of a layer that sees `row`, moved by a shift of 0: its slope is the output's."""
    seen[name] = row
    return output + shift.to(output)


def _square(weight: float | Tensor, g: Tensor) -> Tensor:
    return weight * g * g if isinstance(weight, Tensor) or weight != 1 else g * g


def residual(output: Tensor, y: Tensor, model: Network) -> Tensor:
    """Gradient of one row's negative log-likelihood by the output: p − e_y, or (f − y)/noise."""
    if model.task == "regression":
        return (output - y) / NOISE
    return torch.softmax(output, -1) - (torch.arange(len(output), device=output.device) == y).to(output.dtype)


def every_root(output: Tensor, model: Network) -> list[tuple[float | Tensor, Tensor]]:
    """Weights and roots whose weighted outer products are the Hessian of the loss by the output."""
    if model.task == "regression":
        return [(1 / NOISE, torch.ones_like(output))]
    p, eye = torch.softmax(output, -1), torch.eye(len(output), dtype=output.dtype, device=output.device)
    return [(p[c], p - eye[c]) for c in range(len(output))]


def drawn_root(output: Tensor, key: Tensor, model: Network) -> Tensor:
    """The residual of one label drawn from the model itself."""
    if model.task == "regression":
        return normal(key, output.shape, output.dtype) / NOISE**0.5
    return residual(output, categorical(key, output), model)


# --- products with the Hessian --------------------------------------------------------------------------------------
def along(function: Callable[[Params], Tensor], point: Params, groups: Iterable[Params]) -> Params:
    """Σ_s u_s ⊙ H u_s over all directions, by differentiating the gradient once more; a group (S, ...) is at once."""
    _, pull = vjp(grad(function), point)[:2]
    products = (vmap(lambda u: tree_map(torch.mul, u, pull(u)[0]))(group) for group in groups)
    sums = (tree_map(lambda leaf: leaf.sum(0), each) for each in products)
    return reduce(lambda total, term: tree_map(torch.add, total, term), sums)


def signs(key: Tensor, like: Params, count: int) -> Params:
    """`count` directions of independent signs (count, ...)."""
    return {
        n: 1 - 2 * (uniform(fold(key, i), (count, *p.shape), p.dtype) < 0.5).to(p.dtype)
        for i, (n, p) in enumerate(like.items())
    }


def units(like: Params) -> Params:
    """The P unit vectors as directions (P, ...)."""
    sizes = [p.numel() for p in like.values()]
    first = next(iter(like.values()))
    parts = torch.split(torch.eye(sum(sizes), dtype=first.dtype, device=first.device), sizes, 1)
    return {n: part.reshape(-1, *p.shape) for (n, p), part in zip(like.items(), parts, strict=True)}
