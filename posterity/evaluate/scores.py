"""Sufficient statistics of a scoring pass: sums per client that can be added and joined in any order.

**Why the sums are exact.** A metric must not change because other clients were scored in the same call, or because a
GPU added the rows in another order. Segmenting would fix the order on one device only. Instead every summand is split
into *limbs*, each a multiple of a fixed power of two, small enough that float64 holds every partial sum of 2^24 of
them without rounding. Addition without rounding is associative, so `index_add_` of the same rows gives the same bits
whatever their order and company, and atomic additions on a GPU do no harm; the limbs of a client are put together at
the end. (What a *row* contributes may differ in the last place between devices: their `exp` does.)
Only `+` of two `Scores` rounds: counts stay exact, sums of reals agree to the last places.

Nothing here waits for the device: no value is looked at on the host. What needs rows in order is in `ranks.py`;
`metrics.py` turns sums into numbers.
"""

from __future__ import annotations

import math
from dataclasses import fields

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.core.tree import record, tree_map

BINS = 15  # of the top-label confidence, (b/15, (b+1)/15]
FLAT = 10  # of all class probabilities, [b/10, (b+1)/10): a probability of one falls in no bin (MetaVD erratum M9)
QUANTA = (2.0**10, 2.0**-20, 2.0**-50)  # limb sizes: sums of up to 2^24 limbs are exact in float64
SLACK = 0.05  # a row of probabilities may miss a total of one by this much: half precision does, raw logits do not


@record
class Scores:
    """Sums over the held-out rows of each client, float64. Regression has no classes: `hits` is (clients, 0)."""

    n: Tensor  # (clients,) rows
    correct: Tensor  # (clients,) rows whose most probable class is the label
    nll: Tensor  # (clients,) minus log predictive density of the label or target
    brier: Tensor  # (clients,) squared distance of the probabilities to the one-hot label, 0 … 2 per row
    bins: Tensor  # (clients, 15, 3) rows, sum of confidence, sum of correct
    flat: Tensor  # (clients, 10, 3) probabilities, their sum, sum of one-hot labels; over all rows and classes
    hits: Tensor  # (clients, classes) correct rows of each class
    support: Tensor  # (clients, classes) rows of each class
    square: Tensor  # (clients,) squared error of the predictive mean

    def __add__(self, other: Scores) -> Scores:
        """Scores of the rows of both: the clients are the same, the rows are not."""
        return tree_map(torch.add, self, other)

    @property
    def clients(self) -> int:
        return len(self.n)

    @property
    def classes(self) -> int:
        return self.hits.shape[1]

    def pooled(self) -> Scores:
        """All clients as one."""
        return tree_map(lambda leaf: leaf.sum(0, keepdim=True), self)


def zero(clients: int, classes: int, device: torch.device | str = "cpu") -> Scores:
    """Scores of no rows at all: the neutral element of `+`."""

    wide = {"bins": (BINS, 3), "flat": (FLAT, 3), "hits": (classes,), "support": (classes,)}
    sizes = {each.name: (clients, *wide.get(each.name, ())) for each in fields(Scores)}
    return Scores(**{name: torch.zeros(size, dtype=torch.float64, device=device) for name, size in sizes.items()})


def score(outputs: Tensor, y: Tensor, offsets: Tensor, classes: int, task: Task) -> Scores:
    """Scores of clients whose rows lie one after the other: client k has rows `offsets[k]` to `offsets[k + 1]`.

    `outputs` (N, classes) are log-probabilities, or (N, 2) mean and variance of a Gaussian for regression. Rows outside
    the offsets are padding and count for nothing. A row that is no distribution (nan, a total far from one, a
    variance that is not positive) is scored as certain and wrong, with an infinite nll: it must not pass unseen, and
    nan is kept for "no data".
    """
    width = 2 if task == "regression" else classes
    if outputs.dim() != 2 or outputs.shape[1] != width:
        what = "mean and variance" if task == "regression" else "one log-probability per class"
        raise ValueError(f"outputs must be (rows, {width}), {what}; got {tuple(outputs.shape)}")
    outputs, y, offsets = prepared(outputs, y, offsets)
    sums = _Sums(owners(offsets, len(outputs)), len(offsets) - 1)
    return _regression(outputs, y.double(), sums) if task == "regression" else _classification(outputs, y, sums)


def prepared(outputs: Tensor, y: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs in float64, with labels and bounds on their device."""
    host = outputs.device.type == "mps"  # has no float64
    outputs = (outputs.cpu() if host else outputs).detach().double()
    return outputs, y.reshape(-1).to(outputs.device), offsets.to(outputs.device)


def sums_by_client(values: Tensor, offsets: Tensor) -> Tensor:
    """Exact sums of the clients' rows of `values` (N, k), which may be of any size: (clients, k)."""
    sums = _Sums(owners(offsets, len(values)), len(offsets) - 1)
    columns = [sums.of(column, limbs=3) for column in values.double().unbind(1)]
    return torch.cat(columns, 1) if columns else values.new_zeros(len(offsets) - 1, 0, dtype=torch.float64)


def owners(offsets: Tensor, rows: int) -> Tensor:
    """The client of each row, plus one: 0 is before the first client, clients + 1 after the last (rows,)."""
    return torch.searchsorted(offsets, torch.arange(rows, device=offsets.device), right=True)


def distribution(outputs: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities (N, C), with rows that are no distribution replaced by certainty in a wrong class."""
    wrong = (y + 1).remainder(outputs.shape[1])
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    worst = torch.zeros_like(outputs).masked_fill(classes != wrong[:, None], -math.inf)
    good = ((outputs.exp().sum(1) - 1).abs() <= SLACK)[:, None]  # false for nan
    return torch.where(good, outputs, worst).clamp(max=0.0)


class _Sums:
    """Exact sums by client and cell; the slots before the first and after the last client catch padding."""

    def __init__(self, owner: Tensor, clients: int) -> None:
        self.owner, self.clients = owner, clients  # (N,) in 0 … clients + 1

    def of(self, values: Tensor, cell: Tensor | None = None, cells: int = 1, limbs: int = 1) -> Tensor:
        """Sums of `values` (N,) or (N, C) over rows (and classes) by client and `cell`: (clients, cells).

        `limbs` is 1 for whole numbers, 2 for values of the order of one, 3 for values of any size.
        """
        owner = self.owner if values.dim() == 1 else self.owner[:, None]
        slot = (owner * cells + (0 if cell is None else cell)).expand_as(values).reshape(-1)
        total = torch.zeros((self.clients + 2) * cells, dtype=torch.float64, device=values.device)
        for limb in split(values, limbs):
            total = total + torch.zeros_like(total).index_add_(0, slot, limb.reshape(-1))
        return total.reshape(-1, cells)[1:-1]


def split(values: Tensor, limbs: int) -> list[Tensor]:
    """`values` as a sum of multiples of the smallest `limbs` quanta; an infinite value is its own first limb."""
    if limbs == 1:
        return [values.double()]
    parts, rest = [], values
    for quantum in QUANTA[-limbs:]:
        parts.append((rest / quantum).round() * quantum)
        rest = torch.where(parts[-1].isfinite(), rest - parts[-1], 0.0)
    return parts


def _classification(outputs: Tensor, y: Tensor, sums: _Sums) -> Scores:
    classes = outputs.shape[1]
    logs = distribution(outputs, y)  # (N, C)
    p = logs.exp()
    confidence, guess = p.max(1)
    correct = guess.eq(y).double()
    # max(…, 0) for a confidence so small that it has no bin below it
    top = ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long()
    one = torch.ones_like(confidence)
    away = (p - torch.zeros_like(p).scatter_(1, y[:, None], 1.0)).square()  # (N, C)
    counts = [sums.of(one, top, BINS), sums.of(confidence, top, BINS, limbs=2), sums.of(correct, top, BINS)]
    empty = zero(sums.clients, classes, p.device)
    return Scores(
        n=sums.of(one)[:, 0],
        correct=sums.of(correct)[:, 0],
        nll=sums.of(-logs.gather(1, y[:, None])[:, 0], limbs=3)[:, 0],
        brier=sum((sums.of(limb.sum(1)) for limb in split(away, 2)), start=empty.n[:, None])[:, 0],
        bins=torch.stack(counts, -1),
        flat=_flat(p, y, sums),
        hits=sums.of(correct, y, classes),
        support=sums.of(one, y, classes),
        square=empty.square,
    )


def _flat(p: Tensor, y: Tensor, sums: _Sums) -> Tensor:
    """Bins over all class probabilities (clients, 10, 3).

    "Exactly one" is meant in single precision, the arithmetic of the code that is reproduced: in float64 the
    probabilities it drops would be 1 - 1e-9 and stay.
    """
    kept = (p.float() < 1.0).double()  # (N, C)
    cell = (p * FLAT).floor().clamp(max=FLAT - 1).long()
    true = y[:, None]
    count = sums.of(kept, cell, FLAT)
    mass = sums.of(p * kept, cell, FLAT, limbs=2)
    label = sums.of(kept.gather(1, true)[:, 0], cell.gather(1, true)[:, 0], FLAT)
    return torch.stack([count, mass, label], -1)


def _regression(outputs: Tensor, y: Tensor, sums: _Sums) -> Scores:
    mean, variance = outputs.unbind(1)
    square = (y - mean).square()
    nll = 0.5 * (square / variance + variance.log() + math.log(2 * math.pi))
    empty = zero(sums.clients, 0, outputs.device)
    n = sums.of(torch.ones_like(mean))[:, 0]
    nll = torch.where((variance > 0) & ~nll.isnan(), nll, math.inf)
    square = torch.where(square.isnan(), math.inf, square)
    named = {"n": n, "nll": sums.of(nll, limbs=3)[:, 0], "square": sums.of(square, limbs=3)[:, 0]}
    return Scores(**{**empty.__dict__, **named})
