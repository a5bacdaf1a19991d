"""MetaVD: a hyper-network on the server predicts how noisy each client's weights are, and so how much each one counts.

In place of the host's objective (1) stands a bound in which client m has weights w^m ~ q^m and the share g^m of the
cohort's samples (of its clients, where the host counts these: Per-FedAvg unless `balance=samples`); nobody computes it,
since every client descends on its own term (4):

    Σ_m g^m { E[log p(y^m | x^m, w^m)] − KL(q^m ‖ p) }                                                            # (2)

In one linear layer q^m is Gaussian, with a variance of its own for every client that follows from its embedding e^m,

    q^m = N(θ, diag v^m),   v^m = exp ρ^m   (or α^m θ² with α^m = exp ρ^m),   ρ^m = h_ψ(e^m)                      # (3)

A client receives θ and its ρ^m and trains both on the loss of its network f, whose outputs are averaged over S draws of
the noise (`draws`), plus β_r times the mean divergence. In round r (the first is 1) r − 1 rounds have annealed β:

    ℓ = −log p(y | f̄) + β_r (1/K) Σ_k ½ log(1 + θ̄_k²/v_k),   f̄ = (1/S) Σ_s f(x; θ + √v ε_s),   θ̄: no gradient      # (4)
    β_r = β / (1 + exp(6 − 12 (r − 1)/A)) while r − 1 ≤ A = `anneal` · rounds, then β

The server weights that layer by precision, hands everything else to its host (FedAvg, Reptile, MAML, Per-FedAvg), and
moves the hyper-network along what the clients did to their ρ:

    θ^agg = Σ_m g^m θ^m/v^m ÷ Σ_m g^m/v^m                                                                         # (5)
    ψ ← ψ + η Σ_m g^m J_ψ(e^m)ᵀ Δρ^m,   e^m ← e^m + η g^m J_e(e^m)ᵀ Δρ^m,   Δρ^m = ρ^m_* − ρ^m           # Algorithm 1

ψ and the embeddings stay on the server, but for newcomers that fit an embedding (`test_noise = fit_embedding`).

Reference: Jeon, Hong, Yun and Kim, "Federated learning via meta-variational dropout", NeurIPS 2023.

Differs from the paper (errata, numbered by us):
  M1–M4   no extra 1/M in (5) and in the step of ψ; clients descend on −ELBO; J_eᵀ Δρ, as ψ is no function of e.
  (4)     the loss is that of the mean logits, as released, and not the mean loss E[−log p] of (2), which is never
          below it: −log p is convex in the logits. With `draws = 1` it is one unbiased draw of that mean.
  M5      ρ = log v by default: with α (`noise_param = alpha`) near-zero weights win (5). The release has log v only, up
          to 0. Here log α goes up to 8.5: with 0 no rate would exceed ½, and `+drop` would drop nothing at 0.8 or 0.9.
  M6, M8  the mean divergence times β, annealed, as released (`kl = elbo`: times K/n); h ends without an exponential.
  β       1, the least value of the paper's search; the release's 10 loses 15 points to its host on CIFAR-10 in a run of
          three seeds (`docs/results/metavd.md`), and stands in the rows "released defaults" of the papers' tables.
  M11     at test the floor replaces the personal noise, as released (`test_noise`), and the mean weights predict; the
          release averages the logits of three draws (`test_draws` averages probabilities).
The inner steps of MAML see the noise but no divergence, as released. Momentum and decay move the cohort's embeddings
only; the release's move everybody's (`moves = all`). `family = ensemble` learns every ρ^m without a hyper-network,
`naive` one ρ for all: the paper's ablations. Of an ensemble's ρ^m the release's decay alone makes −2.8 of −8.5 in 1,000
rounds: noise that no client has asked for.
"""

from __future__ import annotations

from posterity.methods.wrappers.metavd.method import MetaVD

__all__ = ["MetaVD"]
