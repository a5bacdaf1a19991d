"""Two classes: what depends on the order of the predictions and cannot be kept in sums of fixed size (`scores.py`).

`RankedRows` keeps every row, so AUROC, average precision and recalibration are exact and joining two is concatenation.
The score is the log-odds of class 1, not its probability: probabilities near 0 and 1 run together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.core.tree import record, tree_cat
from posterity.evaluate.scores import distribution, owners, prepared

LARGEST = 53 * math.log(2)  # log-odds of the probability next to one in float64: stands in for infinity
STEPS = 60  # Newton needs five to ten; what has not settled by then has no answer
HALVINGS = 30


@record
class RankedRows:
    """One entry per scored row, in any order. Padding rows have client -1."""

    client: Tensor  # (N,) int64
    score: Tensor  # (N,) float64, log-odds of class 1
    label: Tensor  # (N,) float64, 0 or 1

    def __add__(self, other: RankedRows) -> RankedRows:
        return tree_cat([self, other])

    def pooled(self) -> RankedRows:
        """All clients as one; padding stays padding."""
        return RankedRows(self.client.clamp(max=0), self.score, self.label)

    def real(self) -> RankedRows:
        """On the host, without padding."""
        keep = self.client.cpu() >= 0
        return RankedRows(self.client.cpu()[keep], self.score.cpu()[keep], self.label.cpu()[keep])


def rank(outputs: Tensor, y: Tensor, offsets: Tensor) -> RankedRows:
    """Ranked rows of clients that lie one after the other; the arguments are those of `score` with two classes."""
    outputs, y, offsets = prepared(outputs, y, offsets)
    logs = distribution(outputs, y)
    owner = owners(offsets, len(outputs))
    client = torch.where(owner < len(offsets), owner - 1, -1)
    return RankedRows(client, logs[:, 1] - logs[:, 0], y.double())


def ordering(ranks: RankedRows, clients: int) -> tuple[Tensor, Tensor]:
    """AUROC (ties count half) and average precision of each client; nan where a class is missing.

    Rows of equal score form one threshold. All running counts are whole numbers, so they are exact and clients do
    not touch each other although the cumulative sums run over all of them.
    """
    ranks = _sorted(ranks.real())
    client, score, label = ranks.client, ranks.score, ranks.label
    new = torch.ones_like(client, dtype=torch.bool)
    new[1:] = (score[1:] != score[:-1]) | (client[1:] != client[:-1])
    group, owner = new.long().cumsum(0) - 1, client[new]  # (N,), (G,)
    positive = torch.zeros(len(owner), dtype=torch.float64).index_add_(0, group, label)
    negative = torch.zeros(len(owner), dtype=torch.float64).index_add_(0, group, 1 - label)
    positives, negatives = _by_client(owner, positive, clients), _by_client(owner, negative, clients)
    below_p = _before(positive, owner, positives)
    below_n = _before(negative, owner, negatives)
    wins = _by_client(owner, positive * (below_n + negative / 2), clients)
    found = positives[owner] - below_p  # positives at or above the threshold
    precision = found / (found + negatives[owner] - below_n)
    gain = _by_client(owner, positive * precision, clients)
    both = (positives > 0) & (negatives > 0)
    return torch.where(both, wins / (positives * negatives), math.nan), torch.where(both, gain / positives, math.nan)


def recalibration(ranks: RankedRows, clients: int) -> tuple[Tensor, Tensor]:
    """Slope b and intercept a of logit P(y = 1) = a + b · log-odds, fitted on each client by maximum likelihood.

    A calibrated model has slope 1 and intercept 0; a slope under 1 is over-confidence. With one predictor the
    maximum exists exactly when the scores of the classes overlap (neither `all positives ≥ all negatives` nor the
    reverse), which is tested first; separated clients are nan.
    """
    ranks = ranks.real()
    client, label = ranks.client, ranks.label
    score = ranks.score.clamp(-LARGEST, LARGEST)
    count = _by_client(client, torch.ones_like(score), clients)
    centre = _by_client(client, score, clients) / count
    scale = (_by_client(client, (score - centre[client]).square(), clients) / count).sqrt()
    z = (score - centre[client]) / scale[client]  # so that one tolerance fits all clients
    a, b, settled = _newton(z, label, client, clients)
    slope = b / scale
    fine = settled & _overlap(score, label, client, clients)
    return torch.where(fine, slope, math.nan), torch.where(fine, a - slope * centre, math.nan)


def _newton(z: Tensor, label: Tensor, client: Tensor, clients: int) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's method with halved steps for all clients at once: intercept, slope and whether it settled."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        eta = a[client] + b[client] * z
        return _by_client(client, torch.nn.functional.softplus(eta, threshold=700.0) - label * eta, clients)

    a, b = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64)
    settled = torch.zeros(clients, dtype=torch.bool)
    for _ in range(STEPS):
        mean = (a[client] + b[client] * z).sigmoid()
        miss, width = mean - label, mean * (1 - mean)
        ga, gb = _by_client(client, miss, clients), _by_client(client, miss * z, clients)
        haa, hab = _by_client(client, width, clients), _by_client(client, width * z, clients)
        hbb = _by_client(client, width * z.square(), clients)
        determinant = haa * hbb - hab.square()
        da, db = (hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant
        # convergence is quadratic: after a step this small the rest is rounding
        settled = (da.abs() + db.abs()) < 1e-9 * (1 + a.abs() + b.abs())
        step, here = torch.ones_like(a), loss(a, b) * (1 + 1e-12)  # rounding is no reason to halve
        for _ in range(HALVINGS):
            worse = loss(a - step * da, b - step * db) > here
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        a, b = a - step * da, b - step * db
        if (settled | ~(a + b).isfinite()).all():
            break
    return a, b, settled


def _overlap(score: Tensor, label: Tensor, client: Tensor, clients: int) -> Tensor:
    """Whether the scores of the two classes overlap by more than a single point (clients,)."""

    def extreme(of: float, how: str, start: float) -> Tensor:
        mine = torch.where(label == of, score, start)
        return torch.full((clients,), start, dtype=torch.float64).scatter_reduce_(0, client, mine, how)

    apart = extreme(1, "amin", math.inf) >= extreme(0, "amax", -math.inf)
    reverse = extreme(0, "amin", math.inf) >= extreme(1, "amax", -math.inf)
    return ~apart & ~reverse


def _sorted(ranks: RankedRows) -> RankedRows:
    """By client, then by score."""
    first = ranks.score.argsort(stable=True)
    order = first[ranks.client[first].argsort(stable=True)]
    return RankedRows(ranks.client[order], ranks.score[order], ranks.label[order])


def _by_client(client: Tensor, values: Tensor, clients: int) -> Tensor:
    return torch.zeros(clients, dtype=torch.float64).index_add_(0, client, values)


def _before(values: Tensor, owner: Tensor, totals: Tensor) -> Tensor:
    """Sum of the client's own entries before each one; `totals` are the clients' sums."""
    return values.cumsum(0) - values - (totals.cumsum(0) - totals)[owner]
