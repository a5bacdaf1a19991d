"""FedMAP: each client's model is a maximum a posteriori estimate under a prior that the federation learns.

Training alone is maximum likelihood (1) and learns nothing from others. FedMAP gives every client the same prior
ρ_γ = N(γ, σ²I) over its parameters θ_k (5). A client minimises the negative log-posterior (2), from where it stopped
last time,

    ℓ̄_batch(θ) + λ/(2σ²) ‖θ − γ‖²,    λ = 1/N_k (6) or 1 (7)

and the server fits the prior to the estimates, each weighted by how well it explains its data (3), (8). For a Gaussian
this is a weighted mean (9):

    γ ← Σ_k ω_k θ_k / Σ_k ω_k,    log ω_k = log p(Z_k | θ_k) + log ρ_γ(θ_k) = L_k − R_k

The two steps in turn are a descent on the bi-level problem (4). For regression p(y | x, θ) is N(y; f(x; θ), 1), the
density that is also scored, and L_k has its −N_k/2 · log 2π: it differs between clients of different sizes.

Reference: "FedMAP: Unlocking potential in personalized federated learning through bi-level MAP optimization", 2024.

Differs from the paper (errata, numbered by us):
  A1  ω underflows and is one-hot as printed, and favours small clients: weights are kept as logarithms, and the default
      `per_sample` divides them by N_k (what the authors' later code does). `posterior` is (8) as printed.
  A2  (3) weights by the likelihood alone: `likelihood`. The released 2024 code averages by size: `num_examples`.
  A3  (7) adds the whole prior to a mean loss, (6) to a sum: `prior_scale` chooses; they differ by the factor N_k.
  A4  the constant of (5) should have exponent −d/2; it is the same for all clients and cancels.
The printed arg min is `local.epochs` epochs of minibatch steps. γ and all θ_k begin at one common model made from the
seed; the paper takes that of a client chosen at random. The weights are known through their sums only, so what is
reported each round is the effective number of clients, (Σ ω)² / Σ ω², and not each client's share.
Running statistics of batch norm stay with their client; the server's average of them serves newcomers only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity import core

WEIGHTINGS = ("per_sample", "posterior", "likelihood", "num_examples", "uniform")
REPRESENTABLE = ("num_examples", "uniform")  # weights that need no logarithm: a plain, secure-sum compatible mean
SCORING_BATCH = 256  # samples at once when L_k is computed; has no influence on the result
AUTHORS = core.Training(lr=1e-3, epochs=50, batch=64, optimiser="adam")  # Adam: §4.2 (synthetic data); code 2cb8dee


@dataclass(frozen=True)
class FedMAP(core.Method):
    label = "FedMAP"
    reference = "FedMAP, 2024"
    absent = "cohort only: an absent client keeps its estimate and does not vote on γ"
    scored = "trained"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS)
    sigma2: float = core.hyper(15.0, "σ²: variance of the prior", "authors' code 2cb8dee; the paper gives no value",
                               search=(0.1, 100.0, "log"), infinite=True, gt=0)  # fmt: skip
    weighting: str = core.hyper("per_sample", "log ω_k", "authors' 2025 code; A1", WEIGHTINGS, paper="posterior")
    prior_scale: str = core.hyper("per_batch", "λ: 1 (eq. 7) or 1/N_k (eq. 6)", "eq. 7; A3", ("per_batch", "bayes"))
    start_at: str = core.hyper("own", "where training starts: the client's estimate or γ", "Alg. 2", ("own", "prior"))
    loss: core.Loss = core.fit  # a wrapper may replace it

    def join(self, here: core.Here) -> core.Personal:
        return here.shared.params

    def start(self, here: core.Here) -> core.Params:
        if self.start_at == "own":
            return here.personal
        buffers = here.model.buffers
        return {n: here.personal[n] if n in buffers else p for n, p in here.shared.params.items()}

    def log_prior(self, params: core.Params, here: core.Here) -> Tensor:
        """log ρ_γ(θ) up to its constant: −R_k."""
        return -core.squared_distance(params, here.shared.params, here.model) / (2 * self.sigma2)  # (5)

    def posterior_loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """Minus the log-likelihood per sample, minus the log-prior in the chosen scale."""
        value, buffers = self.loss(params, batch, here)  # (1)
        log_prior = self.log_prior(params, here)
        if self.prior_scale == "bayes":
            return value - log_prior / here.n.clamp(min=1), buffers  # (6)
        return value - log_prior, buffers  # (7)

    def passes(self) -> core.Passes:
        estimate = self.local.descend(self.posterior_loss)  # (2)
        return estimate, core.gather("log_likelihood", core.log_likelihood, batch=SCORING_BATCH)

    def log_weight(self, log_lik: Tensor, log_prior: Tensor, n: Tensor) -> Tensor:
        """log ω_k of the weightings that underflow as plain numbers."""
        if self.weighting == "likelihood":
            return log_lik  # (3)
        joint = log_lik + log_prior  # (8)
        return joint / n if self.weighting == "per_sample" else joint

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        if self.weighting in REPRESENTABLE:
            weight = here.n if self.weighting == "num_examples" else torch.ones_like(here.n)
            return {"params": core.Mean(weight, carry.params), "square": core.Sum(weight**2)}, carry.params
        log_prior = self.log_prior(carry.params, here)
        log_weight = self.log_weight(carry.kept["log_likelihood"].double(), log_prior.double(), here.n.double())
        return {"params": core.LogMean(log_weight, carry.params)}, carry.params

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:  # (4)
        return core.Leaves(total["params"].mean())  # (9)

    def report(self, state: core.Leaves, total: core.Message) -> dict[str, Tensor]:
        mean = total["params"]
        if isinstance(mean, core.Mean):
            return {"effective_clients": mean.weight**2 / total["square"].value}
        return {"effective_clients": mean.effective()}
