"""Variational dropout: the noise of (3), the divergence and the ramp of (4), and the precision weights of (5).

Weights are w ~ N(θ, v) with v = αθ², where p = α/(1 + α) is the rate at which a weight is dropped (footnote 1).

A client's noise is a tensor ρ of the weight's shape, in one of two forms:

    log_variance   ρ = log v: the noise does not depend on θ
    alpha          ρ = log α: it is proportional to θ, as the papers write it

Kingma, Salimans and Welling, "Variational dropout and the local reparameterization trick", NeurIPS 2015;
Molchanov, Ashukha and Vetrov, "Variational dropout sparsifies deep neural networks", ICML 2017 (log-uniform prior);
Liu et al., "Variational Bayesian dropout with a hierarchical prior", CVPR 2019 (γ* = θ²(1 + α)).

f̄ of (4): a network in which one linear layer's weights are Gaussian, a stand-in for the model of a host's `here`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from posterity.core import Bag, Carry, Here, Mean, Message, Network, Params, fold, normal


@dataclass(frozen=True, eq=False)
class Noisy:
    """`model`, with `draws` draws of a layer's noise averaged at the output; layers before it are run once.

    New running statistics are those of the first draw. Everything else is asked of the model.
    """

    model: Network
    layer: str
    variance: Tensor  # of every weight of the layer
    key: Tensor
    draws: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, params: Params, x: Tensor, *more: Any, **how: Any) -> Any:
        call: Any = self.model

        def one(draw: Tensor) -> tuple[Tensor, Params]:
            key = fold(self.key, draw)
            change = {self.layer: lambda seen, output: perturbed(seen, output, self.variance, key)}
            found: tuple[Tensor, Params] = call(params, x, *more, around=change, **how)
            return found

        if self.draws == 1:
            return one(torch.zeros((), dtype=torch.int64, device=x.device))
        outputs, buffers = vmap(one)(torch.arange(self.draws, device=x.device))
        return outputs.mean(0), {n: b[0] for n, b in buffers.items()}


FORMS = ("log_variance", "alpha")
PRIORS = ("hierarchical", "log_uniform")
LEAST, MOST = -8.5, 8.5  # ρ is used between these: v, or α, from 2.03e-4
HIGHEST = {"log_variance": 0.0, "alpha": MOST}  # ρ that a hyper-network predicts at most: v ≤ 1, or p ≤ 0.9998
TINY = 1e-20  # least squared weight; its inverse is a float32
MOLCHANOV = (0.63576, 1.87320, 1.48695)
STEEP = 12.0  # the ramp runs over the sigmoid from -6 to 6
QUIET = "quiet"  # in `kept`: ρ is at its least
LAYER = "gaussian layer"  # its part of a message


def centred(raw: Tensor, form: str = "log_variance") -> Tensor:
    """ρ from the output of a hyper-network: -8.5 for an output of 0, from -17 to 0, or to 8.5 where ρ = log α.

    log v ≤ 0 is the released range. Small weights reach any rate with it; log α ≤ 0 would mean p ≤ ½ for every weight.
    """
    return raw.clamp(LEAST, HIGHEST[form] - LEAST) + LEAST


def variance(rho: Tensor, theta: Tensor, form: str = "log_variance") -> Tensor:
    """v of every weight."""
    scale = rho.clamp(LEAST, MOST).exp()
    return scale * theta**2 if form == "alpha" else scale


def log_variance(rho: Tensor, theta: Tensor, form: str = "log_variance") -> Tensor:
    """log v, finite also where θ is 0."""
    rho = rho.clamp(LEAST, MOST)
    return rho + (theta**2).clamp(min=TINY).log() if form == "alpha" else rho


def inverse_alpha(rho: Tensor, theta: Tensor, form: str = "log_variance") -> Tensor:
    """1/α = θ²/v."""
    inverse = (-rho.clamp(LEAST, MOST)).exp()
    return inverse if form == "alpha" else theta**2 * inverse


def rate(rho: Tensor, theta: Tensor, form: str = "log_variance") -> Tensor:
    """Dropout rate p = α/(1 + α) of every weight; 1 where θ is 0 and v is not."""
    return 1 / (1 + inverse_alpha(rho, theta, form))


def divergence(rho: Tensor, theta: Tensor, form: str = "log_variance", prior: str = "hierarchical") -> Tensor:
    """KL of every weight from its prior. θ is a constant here: in terms of α, the divergence does not depend on it.

    Hierarchical: min over γ of KL(N(θ, αθ²) ‖ N(0, γ)) = ½ log(1 + 1/α). Log-uniform: Molchanov's approximation, which
    adds k₁ − k₁ sigmoid(k₂ + k₃ log α).
    """
    inverse = inverse_alpha(rho, theta.detach(), form)
    value = 0.5 * torch.log1p(inverse)
    if prior == "log_uniform":
        k1, k2, k3 = MOLCHANOV
        value = value + k1 * torch.sigmoid(k3 * inverse.clamp(min=TINY).log() - k2)  # 1 - sigmoid(x) = sigmoid(-x)
    return value


def perturbed(x: Tensor, output: Tensor, spread: Tensor, key: Tensor) -> Tensor:
    """A linear layer's output with one Gaussian per unit instead of one per weight (local reparametrisation).

    `output` = xθᵀ + b is the mean and x² vᵀ the variance, `spread` being v. The batch axis of the draw comes first.
    """
    width = F.linear(x**2, spread)
    some = width > 0
    deviation = torch.where(some, torch.sqrt(torch.where(some, width, 1)), 0)  # the root at 0 has no derivative
    return output + deviation * normal(key, output.shape, output.dtype)


def precision_weights(weight: Tensor, log_v: Tensor) -> tuple[Tensor, Tensor]:
    """Weights g/v of a stack of clients (m, ...), as (g·v₀/v, log v₀) with v₀ the least variance at each place.

    Weights are needed up to a factor, and equal variances then give exactly the weights g.
    """
    least = log_v.min(0).values
    spread = weight.reshape(-1, *[1] * (log_v.dim() - 1))
    return spread * (least - log_v).exp(), least


def pooled(theta: Tensor, rho: Tensor, weight: Tensor, form: str = "log_variance") -> Mean:
    """The layer of a stack of clients (m, ...), every weight averaged with weights g/v (up to a common factor)."""
    if not len(theta):
        raise ValueError("the mean of nothing: no client sent a message")
    weights, _ = precision_weights(weight, log_variance(rho, theta, form))
    return Mean.fold(Mean(weights, theta))


def apart(sent: Message, leaf: str, rho: Tensor, client: Tensor) -> Message:
    """A client's message in which the weight `leaf` travels by itself, beside its ρ: their mean is no sum."""
    weight, rest = sent["params"].weight, dict(sent["params"].value)
    mine = {"weight": weight, "theta": rest.pop(leaf), "rho": rho}
    return {**sent, "params": Mean(weight, rest), LAYER: Bag(client, mine)}


def together(total: Message, leaf: str, form: str = "log_variance") -> Message:
    """The total as it would have been without `apart`, but for the layer, which is weighted by precision."""
    mean, value = total["params"], total[LAYER].value
    layer = pooled(value["theta"], value["rho"], value["weight"], form)
    weight = {**dict.fromkeys(mean.value, mean.weight), leaf: layer.weight}
    params = Mean(weight, {**mean.value, leaf: layer.value})
    return {**{name: part for name, part in total.items() if name != LAYER}, "params": params}


def quiet(leaf: str) -> Callable[[Carry, Here], Carry]:
    """Sets the ρ that is called `leaf` to the least noise everywhere, once a visit: fine-tuning begins with it."""

    def change(carry: Carry, here: Here) -> Carry:
        if QUIET in carry.kept:
            return carry
        least = torch.full_like(carry.params[leaf], LEAST)
        return replace(carry, params={**carry.params, leaf: least}, kept={**carry.kept, QUIET: ()})

    return change


def ramp(step: int, length: float) -> float:
    """From sigmoid(-6) at 0 to sigmoid(6) at `length`, and 1 after it; no ramp if `length` is 0."""
    return 1 / (1 + math.exp(STEEP * (0.5 - step / length))) if 0 <= step <= length and length > 0 else 1.0
