"""Differential privacy of whole clients: what they contribute is shortened to a bound, and their sum gets noise.

    d_k = (θ_k − o) min(1, S/‖θ_k − o‖),   o = w for means of what was broadcast, else 0 (sums, differences)      # (1)
    mean   θ ← o + (Σ_k d_k + z S ε) / m,   ε ~ N(0, I),   m fixed: the clients of a round                        # (2)
    sum    Σ_k d_k + z S ε                                                                                        # (3)

All parts of a message are shortened together, each measured in its own bound S_i: Σ_i ‖d_i‖²/S_i² ≤ 1. Then one client
changes the sums by at most 1 in units of the bounds, however many parts there are, and noise of z S_i on each is one
Gaussian mechanism of noise multiplier z. Clients count alike, whatever their samples; m does not depend on who came,
so that a sum, whose sensitivity is known, is all that is seen of them. T rounds with everybody are (ε, δ)-private with

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),   μ = √T/z                                                              # (4)

(Balle and Wang 2018, Theorem 8; Gaussians compose to a Gaussian). Where each of n clients takes part by chance q,
independently and in secret (`--participation p:q`), the moments accountant for Poisson sampling is used. Both are those
of the library dp-accounting (`pip install 'posterity[dp]'`). A round that nobody joined adds no noise: then the model
stays as it is, so that who knows that the others were away, with probability b, sees whether the last client was. If
R_q(α) is the Rényi divergence of a sampled round, and R_1(α) = α/2z² that of one with everybody, a round has

    R(α) = log( b (1 − q + q e^{(α−1) R_1(α)}) + (1 − b) e^{(α−1) R_q(α)} ) / (α − 1),   b = (1 − q)^{n−1}        # (5)

Where many of the n leave or fall silent, ε is larger than was told. A cohort of fixed size gets no credit for having
been drawn: ε is that of everybody in every round. It is told with clients and rounds before the run, and stands in its
page. It is that of real numbers: the noise is made of 32 random bits a number and rounded, by no secure sampler.

What is promised: two runs, in one of which a client's contributions are zero, can hardly be told apart by whoever sees
all that the server makes of the messages: its model after every round. A client's personal record never leaves it,
and is not noisy; whoever sees its predictions sees its data's influence. Losses, scores and sizes of cohorts that a
run writes are not covered, nor is a choice of hyper-parameters by them. What the inner method reports of a round's sum
is left out, for that sum has no noise yet. Nor is anybody protected from the server itself, which adds the noise.

Reference: McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", ICLR 2018,
Algorithm 1 with the fixed-denominator estimator.

Differs from the paper: weights are 1 instead of min(n_k/ŵ, 1); full participation has the exact ε (4) instead of the
moments accountant's bound; several parts of a message are shortened together; (5), since empty rounds add no noise;
a running variance of batch norm that the noise made negative stays as it was.
Below 20 clients a run is refused: the noise would drown them, or ε be nothing to speak of. The mechanism itself is the
same for any number, so the laws look at it on their smaller federation; what refuses is the plan of a run.
"""

from __future__ import annotations

from posterity.methods.wrappers.dp.method import Private

__all__ = ["Private"]
