"""FedPA: federated averaging of posteriors. Clients send where the product of all posteriors is, as seen from w.

If client k's posterior is N(µ_k, C_k), the mode of their product is where Σ_k q_k C_k⁻¹(θ − µ_k) = 0; FedAvg's mean of
the θ_k is somewhere else. So the server descends on that objective, and each client sends its part of the gradient:

    Δ_k = Ĉ_k⁻¹ (x̄ − w),    w ← server step along Σ_k q_k Δ_k,    q_k = n_k / Σ_j n_j                    # (a)

The samples x_1 … x_ℓ are averages of SGD's iterates over stretches of the round (iterate-averaged stochastic gradient
sampling), after a first stretch for mixing. Their covariance S is shrunk towards the identity,

    Ĉ = ρ_ℓ I + (1 − ρ_ℓ) S,    ρ_ℓ = 1 / (1 + (ℓ − 1) ρ)                                                # (b)

and never formed: adding a sample is a change of rank one, so the formula of Sherman and Morrison gives Δ_k in O(ℓ² d).
With u_t = x_t − x̄_{t−1}, γ_t = ρ (t − 1)/t and δ_1 = x_1 − w,

    v_t = u_t − Σ_{k<t} γ_k (v_k·u_t) / (1 + γ_k u_k·v_k) v_k                                            # (c)
    δ_t = δ_{t−1} + [1 − γ_t (t δ_{t−1}·u_t + u_t·v_t) / (1 + γ_t u_t·v_t)] v_t / t,   Δ_k = δ_ℓ / ρ_ℓ   # (d)

ρ = 0 sends the plain mean x̄ − w; rounds 1 … `burn_rounds` and clients without samples send FedAvg's θ_last − w.

Reference: Al-Shedivat, Gillenwater, Xing and Rostamizadeh, "Federated learning via posterior averaging: a new
perspective and practical algorithms", ICLR 2021.

The letters (a) to (d) are ours: the paper's own numbers were not at hand.

Differs from the paper: a sample is a stretch and not an epoch, since other studies train for one epoch: the steps of a
round are cut into `burn + samples` stretches of equal length, which are epochs when `local.epochs` is that number. A
client with fewer steps has empty stretches, which are skipped. Running statistics of batch norm are averaged. The
optimiser of the clients starts anew each round, with the same momentum in all stretches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity import core

AUTHORS = "authors' EMNIST example"
AUTHORS_TRAINING = core.Training(lr=0.02, epochs=5, batch=20, momentum=0.9)  # that example's: the preset "paper"


@core.record
class State:
    params: core.Params  # w
    velocity: core.Params  # the server's momentum; not broadcast


def posterior_delta(samples: Tensor, filled: Tensor, w: Tensor, rho: float) -> Tensor:
    """Ĉ⁻¹(x̄ − w) (d,) from samples (ℓ, d), of which those with `filled` 0 (ℓ,) do not count; 0 if none does."""
    count, mean, delta = filled[0] * 0, torch.zeros_like(w), torch.zeros_like(w)
    past: list[tuple[Tensor, Tensor]] = []  # v_k and γ_k / (1 + γ_k u_k·v_k); both 0 for skipped samples
    for x, full in zip(samples.unbind(0), filled.unbind(0), strict=True):
        first, t = full * (count == 0), count + 1
        later = (full - first).to(w.dtype)
        u = later * (x - mean)
        v = u
        for v_k, share in past:
            v = v - share * (v_k @ u) * v_k  # (c)
        gamma, uv = rho * (t - 1) / t, u @ v
        share = later * gamma / (1 + gamma * uv)
        step = (1 - gamma * (t * (delta @ u) + uv) / (1 + gamma * uv)) * v / t  # (d)
        delta = torch.where(first > 0, x - w, delta + later * step)
        mean = torch.where(first > 0, x, mean + u / t)
        past.append((v, share))
        count = count + full
    return delta * (1 + (count - 1).clamp(min=0) * rho)  # (b)


def flattened(params: core.Params, batched: int = 0) -> Tensor:
    """All leaves as one vector (d,), or (ℓ, d) where they have a first axis of samples."""
    return torch.cat([leaf.flatten(batched) for leaf in params.values()], batched)


def restored(vector: Tensor, like: core.Params) -> core.Params:
    parts = torch.split(vector, [leaf.numel() for leaf in like.values()])
    return {n: part.reshape(leaf.shape) for (n, leaf), part in zip(like.items(), parts, strict=True)}


@dataclass(frozen=True)
class FedPA(core.Method):
    label = "FedPA"
    reference = "Al-Shedivat et al., ICLR 2021"
    absent = "cohort only"
    differences = ("delta",)

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    rho: float = core.hyper(0.01, "ρ: trust in the sample covariance; 0 = none", AUTHORS + "; 0.1 by their flags",
                            search=(1e-3, 1.0, "log"), ge=0)  # fmt: skip
    samples: int = core.hyper(4, "ℓ: posterior samples of a round", AUTHORS + ": 5 epochs, 1 for mixing", ge=1)
    burn: int = core.hyper(1, "stretches for mixing before the first sample", AUTHORS, ge=0)
    burn_rounds: int = core.hyper(100, "first rounds, which send FedAvg's deltas", "authors' flags", paper=400, ge=0)
    server_lr: float = core.hyper(0.5, "η_s: step size of the server", AUTHORS, ge=0)
    server_momentum: float = core.hyper(0.9, "momentum of the server", AUTHORS, ge=0, lt=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly

    def server(self) -> core.SGD:
        return core.SGD(self.server_lr, self.server_momentum)

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(params, core.zeros(params, model))

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Leaves, core.Own]:
        return core.Leaves(state.params), ()

    def passes(self) -> core.Passes:
        how, stretches = self.local.schedule(), self.burn + self.samples
        walk = core.sample(self.loss, self.local.make_optimiser(), 0, stretches, core.trainable, **how)
        return core.holding((walk,), copies=4 + stretches)  # (c) of all samples

    def delta(self, last: Tensor, samples: Tensor, filled: Tensor, w: Tensor, round: Tensor) -> Tensor:
        """What a client sends: FedAvg's delta in rounds 1 … burn_rounds or without samples, else the posterior's."""
        plain = (round <= self.burn_rounds) | (filled.sum() == 0)
        return torch.where(plain, last - w, posterior_delta(samples, filled, w, self.rho))

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        names = core.trainable(carry.params, here.model)
        last, w = ({n: tree[n] for n in names} for tree in (carry.params, here.shared.params))
        kept = flattened({n: carry.kept["samples"][n] for n in names}, 1)[self.burn :]
        filled = carry.kept["filled"][self.burn :]
        delta = restored(self.delta(flattened(last), kept, filled, flattened(w), here.round), w)
        rest = {n: p for n, p in carry.params.items() if n not in w}
        sent = {"delta": core.Mean(here.n, delta)}
        return sent | ({"rest": core.Mean(here.n, rest)} if rest else {}), ()

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        slope = core.tree_map(torch.neg, total["delta"].mean())  # the server descends, so the sign turns
        w = {n: state.params[n].to(g) for n, g in slope.items()}
        velocity = {n: state.velocity[n].to(g) for n, g in slope.items()}
        moved, after = self.server().update(slope, velocity, w)  # (a)
        new = moved | (total["rest"].mean() if "rest" in total else {})
        kept = after if self.server_momentum else velocity
        return State({n: new[n] for n in state.params}, kept)
