"""FedNP, the method: sites and cavities (5), (6), the client's loss (1), (18), (19), (47), the classifier's prior (17).

The paper is summed up in the folder's `__init__.py`. Moments of the tilted density are in `moments.py`, the network
that maps z to a classifier in `npn.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posterity.core import (
    Batch,
    Carry,
    Facts,
    Gaussian,
    Here,
    Mean,
    Message,
    Method,
    Network,
    Now,
    Params,
    Pass,
    Personal,
    Point,
    Sum,
    Training,
    Tree,
    averaged,
    check_fields,
    fit,
    fold,
    gather,
    head,
    holding,
    hyper,
    masked_mean,
    pointwise,
    record,
    squared_distance,
    trainable,
    uniform,
    within,
)
from posterity.methods.fednp.moments import KINDS, POINTS, match
from posterity.methods.fednp.npn import kl_each, npn_linear, npn_sigmoid

F_WEIGHT, F_BIAS = F_NAMES = ("fednp.f.weight", "fednp.f.bias")
NPN = ("fednp.npn.weight1", "fednp.npn.bias1", "fednp.npn.weight2", "fednp.npn.bias2")
NPN_RANGE = 0.05  # first values of the NPN are uniform on ±0.05: authors' code
SCORING_BATCH = 256  # samples at once when f is computed on all data; has no influence on the result
TINY = 1e-12  # least variance of a predicted weight


@record
class State:
    params: Params  # θ, with the layer of f
    totals: Gaussian  # τ₀ + Σ λ_k and Σ η_k


def spoken_of(params: Params, model: Network, biases: bool) -> list[str]:
    """Leaves of the classifier that the NPN predicts: its weight matrices, or all that it trains."""
    names = head(params, model)
    return [n for n in names if biases or params[n].dim() > 1] or names


@dataclass(frozen=True)
class FedNP(Method):
    label: ClassVar[str] = "FedNP"
    reference: ClassVar[str] = "FedNP, AAAI 2023"
    absent: ClassVar[str] = "delta messages: the sites of absent clients stay in the totals"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train", "ours", paper=Training(lr=0.01, epochs=10, batch=128))
    lam: float = hyper(0.01, "λ: weight of both divergences", "D.3: best of 0.001, 0.01, 0.1, 1",
                       search=(1e-3, 1.0, "log"))  # fmt: skip
    moments: str = hyper("quadrature", "moments of the tilted density", "ours", KINDS, paper="closed")
    points: int = hyper(POINTS, "points of the quadrature", "ours: error below 1e-6; Table 6 tries 100 to 10000")
    latent: int = hyper(10, "D_z: dimension of z, and width of the layer of f", "D.3")
    eps: float = hyper(0.01, "ε: variance of the classifier around its value", "unspecified in §4.3: ours")
    tau0: float = hyper(1.0, "τ₀: precision of the prior of z", "Algorithm 1, line 2; erratum N9")
    f_output: str = hyper("scalar", "one f for all of z, or one each", "D.3; erratum N10", ("scalar", "vector"))
    detach_f: bool = hyper(False, "do not train f", "erratum N11: the released code does not")
    biases: bool = hyper(False, "let the NPN predict the classifier's biases too", "authors' code: weights alone")
    weighting: str = hyper("num_examples", "weight of a client", "§4; erratum N7", ("num_examples", "uniform"))
    mu: float = hyper(0.0, "µ: pull of the host towards the broadcast; > 0 is FedNP on FedProx", "FedNP on FedAvg")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, lam=(0, None), points=(17, None), latent=(1, None), mu=(0, None))
        within(self, eps=(1e-12, None), tau0=(1e-12, None))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        if not head(params, model):
            raise ValueError("FedNP predicts the classifier's weights, but no leaf of the model's head is trained")
        like, size, key = next(iter(params.values())), model.feature_dim, facts.key
        bound = size**-0.5  # as PyTorch's linear layers
        layer = [((self.latent, size), F_WEIGHT), ((self.latent,), F_BIAS)]
        first = {n: (2 * uniform(fold(key, i), s, torch.float64) - 1) * bound for i, (s, n) in enumerate(layer)}
        zero = like.new_zeros(self.latent)
        return State({**params, **{n: p.to(like) for n, p in first.items()}}, Gaussian(zero + self.tau0, zero))

    def join(self, here: Here) -> Personal:
        names = spoken_of(here.initial, here.model, self.biases)
        size, wide = sum(here.initial[n].numel() for n in names), self.latent
        shapes = ((wide, wide), (wide,), (wide, size), (size,))
        draws = (uniform(fold(here.key, i), shape, here.n.dtype) for i, shape in enumerate(shapes))
        npn = {n: NPN_RANGE * (2 * u - 1) for n, u in zip(NPN, draws, strict=True)}
        zero = torch.zeros_like(here.shared.totals.shift)
        return {"site": Gaussian(zero, zero), "npn": npn}

    def start(self, here: Here) -> Params:
        return {**here.shared.params, **here.personal["npn"]}

    def factors(self, params: Params, h: Tensor) -> Tensor:
        """What each sample contributes to f: (B, D_z), or (B, 1) if all of z have one."""
        out = h @ params[F_WEIGHT].T + params[F_BIAS]
        return out if self.f_output == "vector" else out.mean(-1, keepdim=True)

    def matched(self, f: Tensor, here: Here) -> tuple[Tensor, Tensor, Gaussian]:
        """z_m, z_s and the client's new site for the factor σ(f z)."""
        cavity = here.shared.totals - here.personal["site"]  # (6)
        s = 1 / cavity.precision.clamp(min=self.tau0)  # sites are never negative: only rounding is below
        return match(cavity.shift * s, s, f, self.moments, self.points)

    def classifier(self, params: Params, z_m: Tensor, z_s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every weight of the classifier."""
        w1, b1, w2, b2 = (params[n] for n in NPN)
        mean, variance = npn_linear(*npn_sigmoid(*npn_linear(z_m, z_s, w1, b1)), w2, b2)  # (17)
        return mean, variance.clamp(min=TINY)

    def divergence(self, params: Params, f: Tensor, here: Here) -> Tensor:
        """Both divergences, that of the classifier averaged over its weights."""
        z_m, z_s, _ = self.matched(f.detach() if self.detach_f else f, here)
        mean, variance = self.classifier(params, z_m, z_s)
        now = torch.cat([params[n].flatten() for n in spoken_of(params, here.model, self.biases)])
        about = kl_each(mean, variance, now, self.eps).mean()  # (18)
        return about + kl_each(z_m, z_s, torch.zeros_like(z_m), 1 / self.tau0).sum()  # (47)

    def loss(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        first = here.model.heads[0]
        output, buffers, seen = here.model(
            params, batch.x, mask=batch.layer_mask, train=True, key=here.key, want=(first,)
        )
        value = masked_mean(pointwise(output, batch.y, here.model), batch.mask)  # (1)
        each = self.factors(params, seen[first].flatten(1))
        f = (each * batch.mask[:, None]).sum(0) / batch.mask.sum().clamp(min=1)
        return self.pulled(value + self.lam * self.divergence(params, f, here), params, here), buffers  # (19)

    def plain(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The loss for λ = 0: FedAvg's, or FedProx's."""
        value, buffers = fit(params, batch, here)
        return self.pulled(value, params, here), buffers

    def pulled(self, value: Tensor, params: Params, here: Here) -> Tensor:
        if not self.mu:
            return value
        return value + 0.5 * self.mu * squared_distance(params, here.shared.params, here.model)

    def summary(self, params: Params, batch: Batch, here: Here) -> Tree:
        h, _ = here.model.features(params, batch.x)
        return {"sum": (self.factors(params, h) * batch.mask[:, None]).sum(0), "count": batch.mask.sum()}

    def trains(self, names: Iterable[str], model: Network) -> list[str]:
        """The network, and for λ > 0 the NPN and, unless it is detached, f."""
        found = list(names)
        own = [n for n in found if n in NPN or (n in F_NAMES and not self.detach_f)]
        return trainable(found, model) + (own if self.lam else [])

    def passes(self) -> tuple[Pass, ...]:
        learn = self.local.descend(self.loss if self.lam else self.plain, self.trains)
        return *holding((learn,), leaves=self.added_numbers), gather("f", self.summary, batch=SCORING_BATCH)

    def added_numbers(self, model: Network) -> int:
        """Of f and the NPN, which predicts the head, about."""
        told = sum(p.numel() for n, p in model.module.named_parameters() if n in model.head_names)
        return (self.latent + 1) * (self.latent + model.feature_dim + told)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        f = carry.kept["f"]["sum"] / carry.kept["f"]["count"].clamp(min=1)
        _, _, site = self.matched(f, here)
        weight = here.n if self.weighting == "num_examples" else torch.ones_like(here.n)
        params = {n: carry.params[n] for n in here.shared.params}
        kept = {"site": site, "npn": {n: carry.params[n] for n in NPN}}
        return {"params": Mean(weight, params), "site": Sum(site - here.personal["site"])}, kept

    def combine(self, state: State, total: Message, now: Now) -> State:
        return State(averaged(state.params, total), state.totals + total["site"].value)  # (5)

    def factor(self, personal: Personal) -> Gaussian:
        return personal["site"]

    def forget(self, state: State, factor: Gaussian) -> State:
        return State(state.params, state.totals - factor)  # (5)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        return {"z_mean": state.totals.mean().mean(), "z_variance": state.totals.covariance().mean()}
