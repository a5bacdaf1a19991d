"""From a client's rows to its training, validation and test rows; and the rows that leave the clients.

`data/clients.py` takes these steps one after the other, each with its own stream of `data/rng.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from posterity.data.pool import Scaling
from posterity.data.rng import stream


def hold_out(
    owned: list[Tensor], share: float, seed: int, group: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Training and held-out rows of each client: at least one row of each where the client has two to divide."""
    pairs = []
    for k, rows in enumerate(owned):
        amount = min(max(round(share * len(rows)), 1 if share > 0 else 0), len(rows) - 1) if len(rows) else 0
        held, train = part_off(rows, amount, stream(seed, "split", k), group)
        pairs.append((train, held))
    return [train for train, _ in pairs], [held for _, held in pairs]


def halve(held: list[Tensor], seed: int, group: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Validation and test rows of each client; a single held-out row is a test row."""
    pairs = [part_off(rows, len(rows) // 2, stream(seed, "halve", k), group) for k, rows in enumerate(held)]
    return [validation for validation, _ in pairs], [test for _, test in pairs]


def part_off(rows: Tensor, amount: int, rng: Generator, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """About `amount` random rows, and the others: whole groups, and never everything."""
    if amount <= 0:
        return rows[:0], rows
    if group is None:
        order = torch.from_numpy(rng.permutation(len(rows)))
        return rows[order[:amount]].sort().values, rows[order[amount:]].sort().values
    kinds, which, sizes = np.unique(group[rows].numpy(), return_inverse=True, return_counts=True)
    taken, total = np.zeros(len(kinds), dtype=bool), 0
    for g in rng.permutation(len(kinds)):
        if total + sizes[g] / 2 <= amount and taken.sum() < len(kinds) - 1:
            taken[g] = True
            total += sizes[g]
    if not taken.any() and len(kinds) > 1:
        taken[sizes.argmin()] = True  # every group is larger than wanted: the smallest is nearest
    mask = torch.from_numpy(taken[which])
    return rows[mask], rows[~mask]


def choose_newcomers(clients: int, count: int, seed: int) -> list[int]:
    """An order of the clients in which `count` random ones come last."""
    last = set(stream(seed, "newcomers").choice(clients, count, replace=False).tolist())
    return [k for k in range(clients) if k not in last] + sorted(last)


def give_public(train: list[Tensor], members: int, share: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Training rows that remain with the clients, and those that members give to the public set."""
    kept, given = list(train), []
    for k in range(members):
        amount = min(round(share * len(train[k])), len(train[k]) - 1)
        public, kept[k] = part_off(train[k], amount, stream(seed, "public", k))
        given.append(public)
    return kept, torch.cat(given)


def fit_scaling(x: Tensor, train: list[Tensor], members: int, scale: Scaling) -> tuple[Tensor, Tensor] | None:
    """Mean and sd of each feature on training rows, (clients, *shape), or (1, *shape) for all members together.

    Only training rows are looked at. A feature that is constant there is only centred; who has none leaves x as it is.
    """
    if scale == "none":
        return None
    groups = [torch.cat(train[:members])] if scale == "all" else train
    shape = x.shape[1:]
    found = [_moments(x[mine]) if len(mine) else (torch.zeros(shape).double(), torch.ones(shape).double())
             for mine in groups]  # fmt: skip
    return torch.stack([mean for mean, _ in found]), torch.stack([sd for _, sd in found])


def standardise(
    x: Tensor, train: list[Tensor], held: list[Tensor], members: int, scale: Scaling, common: Tensor | None = None
) -> Tensor:
    """Features with mean 0 and sd 1 on training rows: each client's own, or all members' together."""
    fitted = fit_scaling(x, train, members, scale)
    if fitted is None:
        return x
    x, (mean, sd) = x.clone(), fitted
    for k, (mine, rest) in enumerate(zip(train, held, strict=True)):
        rows, which = torch.cat([mine, rest]), k if scale == "client" else 0
        x[rows] = ((x[rows].double() - mean[which]) / sd[which]).to(x.dtype)
    if scale == "all" and common is not None:
        x[common] = ((x[common].double() - mean[0]) / sd[0]).to(x.dtype)
    return x


def shuffle_labels(y: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Labels in which those of `rows` have changed places at random: as many of each class, and nothing to learn."""
    order = torch.from_numpy(stream(seed, "outlier").permutation(len(rows)))
    y = y.clone()
    y[rows] = y[rows[order]]
    return y


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sd of each feature in double precision; sd 1 where a feature does not vary, whatever its unit."""
    mean, sd = x.double().mean(0), x.double().std(0, correction=0)
    return mean, torch.where(sd > 1e-6 * mean.abs(), sd, torch.ones_like(sd))  # less is float32's rounding
