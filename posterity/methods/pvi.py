"""PVI: one Gaussian over the weights that is a product of a prior and a factor (site) from every client.

q(θ) ∝ p(θ) Π_k t_k(θ). All are Gaussians with a diagonal precision Λ, held as Λ and the shift η = Λ·mean: where
densities are multiplied, these add up. All sites are flat at first (Λ_k = η_k = 0), so that q is the prior.

    cavity   q_−k = q / t_k                                                                                   # (a)
    client   q_k = argmin_q E_q[n_k f_k(θ)] + KL(q ‖ q_−k)                                                    # (b)
             Δ_k = ρ (q_k − q) in natural parameters,   t_k ← t_k + Δ_k                                       # (c)
    server   q ← q + Σ_k Δ_k                                                                                  # (d)

A client that is absent is remembered: its site stays a factor of q. Fixed points do not depend on ρ; where all
factors are Gaussian, one round with ρ = 1 reaches the posterior. Predictions are averaged over draws from q.

Reference: Bui, Nguyen, Swaroop and Turner, "Partitioned variational inference: a unified framework encompassing
federated and continual learning", 2018; Ashman et al., "Partitioned variational inference: a framework for
probabilistic federated learning", 2022. The letters are ours.

Differs from the paper: (b) is approached by the client's passes, from q. The expectation is a mean over pairs of
opposite draws m ± σε, whose ε are scaled so that each weight's have a variance of exactly one: a quadratic loss
without interactions then has its exact expectation. The means move by the client's optimiser on the loss of a sample,
f + KL / n, and log σ along its natural gradient, at most `scale_lr` a step. The prior is centred on the common first
weights and not on 0, where a network has no gradient. A site whose precision would become negative in a weight is not
renewed in that weight (elementwise, Λ and η): cavities and q then are as narrow as the prior at least, but noise can
only raise a precision that is 0. ρ is 1/K by default: clients that have not converged move the common mean together,
and not K times as far. Running statistics of batch norm have no posterior; those of the first draw are averaged by
samples. A newcomer has q, and adapts by (b).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad_and_value

from posterity import core

SCALE = "log_scale/"  # before a leaf's name: the logarithm of its standard deviation
DRAWS = 2**21  # from here on, numbers that draws fold into the key
PAPER = core.Training(lr=1e-3, optimiser="adam")
Factors = dict[str, core.Gaussian]  # of every trainable leaf, flattened


@core.record
class State:
    params: core.Params  # the mean of q, and running statistics
    precision: core.Params  # of q, for every trainable leaf
    clients: int = field(metadata={core.STATIC: True})  # K


def factors(mean: core.Params, precision: core.Params) -> Factors:
    """Natural parameters of the leaves that have a precision."""
    return {n: core.Gaussian.of(mean[n].flatten(), p.flatten()) for n, p in precision.items()}


def precisions(params: core.Params) -> core.Params:
    """1 / σ² of the leaves that have a scale."""
    return {n.removeprefix(SCALE): torch.exp(-2 * p) for n, p in params.items() if n.startswith(SCALE)}


def opposite_draws(key: Tensor, like: Tensor, pairs: int) -> Tensor:
    """2 · `pairs` standard draws for each number of `like` (2 · pairs, ...): ε and −ε, with a variance of exactly 1."""
    half = core.normal(key, (pairs, *like.shape), like.dtype)
    half = half / torch.sqrt((half**2).mean(0).clamp(min=torch.finfo(like.dtype).tiny))
    return torch.cat((half, -half))


def drawn(params: core.Params, key: Tensor, pairs: int) -> list[core.Params]:
    """Networks m ± σε."""
    names = [n.removeprefix(SCALE) for n in params if n.startswith(SCALE)]
    noise = {n: opposite_draws(core.fold(key, DRAWS + i), params[n], pairs) for i, n in enumerate(names)}
    network = {n: p for n, p in params.items() if not n.startswith(SCALE)}
    return [
        {**network, **{n: params[n] + torch.exp(params[SCALE + n]) * noise[n][i] for n in names}}
        for i in range(2 * pairs)
    ]


@dataclass(frozen=True)
class PVI(core.Method):
    label = "PVI"
    reference = "Bui et al., 2018; Ashman et al., 2022"
    absent = "remembered factor: an absent client's site stays in q"
    outside = "the server's Gaussian over the weights"

    local: core.Training = core.hyper(core.Training(), "how the clients train the means", paper=PAPER)
    prior_scale: float = core.hyper(
        0.1, "standard deviation of the prior around the first weights", "ours", search=(0.01, 1.0, "log"), gt=0
    )
    damping: float | None = core.hyper(
        None, "ρ: share of its update that a client makes; none: 1/K", "Ashman et al. 2022", ge=0, le=1
    )
    scale_lr: float = core.hyper(0.1, "longest step of a log σ", "ours", ge=0)
    draws: int = core.hyper(1, "pairs of draws for a step", "ours", ge=1)
    samples: int = core.hyper(4, "pairs of draws for a prediction; 0: the mean predicts", "ours", ge=0)
    loss: core.Loss = core.fit  # a wrapper may replace it

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        prior = {n: torch.full_like(params[n], self.prior_scale**-2) for n in core.trainable(params, model)}
        return State(params, prior, facts.clients)

    def join(self, here: core.Here) -> core.Personal:
        return core.tree_map(torch.zeros_like, factors(here.shared.params, here.shared.precision))

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **{SCALE + n: -0.5 * torch.log(p) for n, p in here.shared.precision.items()}}

    def cavity(self, here: core.Here) -> Factors:
        """q without the client's own site; rounding leaves it as narrow as the prior."""
        q = factors(here.shared.params, here.shared.precision)
        without = {n: q[n] - here.personal[n] for n in q}  # (a)
        return {n: core.Gaussian(g.precision.clamp(min=self.prior_scale**-2), g.shift) for n, g in without.items()}

    def free_energy(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """(b), divided by the client's samples."""
        found = [self.loss(each, batch, here) for each in drawn(params, here.key, self.draws)]
        mine, cavity = factors(params, precisions(params)), self.cavity(here)
        divergence = torch.stack([core.kl(mine[n], cavity[n]) for n in cavity]).sum()
        value = torch.stack([value for value, _ in found]).mean()
        return value + divergence / here.n.clamp(min=1), found[0][1]  # (b)

    def direction(self, moving: core.Params, still: core.Params, batch: core.Batch, here: core.Here) -> core.Update:
        """The gradient of the means; the scales make their step here."""
        scales = {n: p for n, p in still.items() if n.startswith(SCALE)}
        slope, (value, buffers) = grad_and_value(
            lambda some: self.free_energy({**still, **some}, batch, here), has_aux=True
        )({**moving, **scales})
        natural = {n: (0.5 * here.n * slope[n]).clamp(-1, 1) for n in scales}  # log σ has a Fisher information of 2
        moved = {n: p - self.scale_lr * natural[n] for n, p in scales.items()}
        return {n: slope[n] for n in moving}, value, {**buffers, **moved}

    def passes(self) -> core.Passes:
        copies = 24 + 7 * self.draws
        how = self.local.schedule()
        return (core.directed(self.direction, self.local.make_optimiser(), core.trainable, copies=copies, **how),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        before = factors(here.shared.params, here.shared.precision)
        after = factors(carry.params, precisions(carry.params))
        rate = 1 / here.shared.clients if self.damping is None else self.damping
        asked = {n: (after[n] - before[n]) * rate for n in before}  # (c)
        change = {n: self.allowed(here.personal[n], d) for n, d in asked.items()}
        site = {n: here.personal[n] + d for n, d in change.items()}  # (c)
        rest = {n: p for n, p in carry.params.items() if n in here.shared.params and n not in change}
        return {"change": core.Sum(change)} | ({"rest": core.Mean(here.n, rest)} if rest else {}), site

    def allowed(self, site: core.Gaussian, change: core.Gaussian) -> core.Gaussian:
        """`change`, and nothing where the site's precision would become negative."""
        proper = site.precision + change.precision >= 0
        return core.tree_map(lambda leaf: torch.where(proper, leaf, 0), change)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        after = self.moved(state, total["change"].value)  # (d)
        rest = total["rest"].mean() if "rest" in total else {}
        return State({**after.params, **rest}, after.precision, state.clients)

    def moved(self, state: State, change: Factors) -> State:
        """q times factors, as narrow as the prior at least."""
        params, precision = dict(state.params), dict(state.precision)
        for n, q in factors(state.params, state.precision).items():
            after = q + change[n]
            narrow = core.Gaussian(after.precision.clamp(min=self.prior_scale**-2), after.shift)
            params[n] = narrow.mean().reshape(params[n].shape)
            precision[n] = narrow.precision.reshape(params[n].shape)
        return State(params, precision, state.clients)

    def factor(self, personal: core.Personal) -> Factors:
        return personal

    def forget(self, state: State, factor: Factors) -> State:
        return self.moved(state, {n: site * -1 for n, site in factor.items()})

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {"scale": torch.cat([p.flatten() for p in state.precision.values()]).rsqrt().mean()}

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        if not self.samples:
            return core.log_predictive(carry.params, x, here)
        found = torch.stack(
            [core.log_predictive(each, x, here) for each in drawn(carry.params, here.key, self.samples)]
        )
        if here.model.task == "regression":  # mean and variance of the mixture
            mean, variance = found.unbind(-1)
            return torch.stack((mean.mean(0), variance.mean(0) + mean.var(0, unbiased=False)), -1)
        return torch.logsumexp(found, 0) - math.log(len(found))
