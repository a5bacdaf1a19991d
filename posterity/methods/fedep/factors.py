"""q, the Gaussian that all have in common, and the factors that it is a product of: who keeps what, and (a) and (d)."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from posterity.core import STATIC, Gaussian, Params, Tree, record

Factors = dict[str, Gaussian]  # of every trainable leaf, diagonal


@record
class State:
    params: Params  # µ, and running statistics
    precision: Params  # Λ
    velocity: Tree  # the server's momentum, like Factors; () without; not broadcast
    anchor: Params  # µ at the end of burn-in, of which unmet clients own a share; {} without sites
    begun: Tensor  # () 1 after the first round that is not burn-in
    samples: Tensor  # N, ()
    clients: int = field(metadata={STATIC: True})  # K


@record
class Shared:
    params: Params
    precision: Params
    anchor: Params
    samples: Tensor
    clients: int = field(metadata={STATIC: True})


@record
class ClientFactor:
    factors: Factors
    velocity: Tree  # like the server's
    met: Tensor  # () 1 after the first visit that is not burn-in


def common(offered: State | Shared) -> Factors:
    """q in natural parameters."""
    return {n: Gaussian.of(offered.params[n], precision) for n, precision in offered.precision.items()}


def anchored(state: State) -> Params:
    """The µ with which burn-in ended, which is today's until it has; {} without sites."""
    return {n: torch.where(state.begun > 0, mu, state.params[n]) for n, mu in state.anchor.items()}


def taken_out(q: Factors, site: Factors) -> Factors:
    """The cavity; an improper one would drive its client away, so its precision is cut at 0."""
    return {n: Gaussian((q[n] - site[n]).precision.clamp(min=0), (q[n] - site[n]).shift) for n in q}  # (a)


def change(q: Factors, mean: Params, precision: Params) -> Factors:
    """Δ: from q to the tilted factor."""
    return {n: Gaussian.of(mean[n], precision[n]) - q[n] for n in q}  # (d)


__all__ = ["ClientFactor", "Factors", "Shared", "State", "anchored", "change", "common", "taken_out"]
