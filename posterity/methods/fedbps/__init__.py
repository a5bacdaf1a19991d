"""FedBPS: single parameters become personal, the ones that the federation is least certain about.

A client trains its mixed model and measures how well its data determine each parameter: a diagonal Laplace posterior

    w ~ N(w_i, v_i),    v_i = 1 / (n_i (h_i + τ)),    h_i = diagonal curvature of the mean loss at w_i   # (2)

The server replaces the mixture of these Gaussians by the one nearest to it in KL(mixture ‖ ·), which has its moments:

    w_g = Σ_i π_i w_i,    v_g = Σ_i π_i [ v_i + (w_i − w_g)² ],    π_i = n_i / Σ_j n_j                   # (5)

A parameter is uncertain if data say little about it or if clients disagree. The share p of the most uncertain ones,

    M = 1 on the round(pP) entries with the largest v_g, else 0,                                         # (3)

is personal, one mask for all clients, found anew each round; the other entries are common:

    w_i ← w_i ⊙ M + w_g ⊙ (1 − M)                                                                        # (4)

p = 0 is FedAvg and p = 1 local training. What is minimised is the mean over clients of the expected loss of their mixed
models (1), which is nowhere computed. The authors train with SGD, lr 0.01, momentum 0.9, weight decay 5e-4, batch
128 and E = 5. Moments are merged by Chan's rule: E[w²] − E[w]² would cancel in float32.

Reference: "Federated BNN for Parameter Selection" (FedBPS), conference paper, 4 pages.

Differs from the paper (errata, numbered by us):
  B1  Algorithm 1 takes the Hessian for the variance, which makes the best determined entries personal: inverted, as in
      (2); `score="hessian"` is as printed. τ, the prior that weight decay means, keeps dead units finite.
  B2  line 6 of Algorithm 1 lacks the square of (5), and the sum is then 0 for the disagreement: squared.
  B3  "σ" is a variance in (3) and (5).
  B4  a posterior needs the summed loss: `loss_scale="mean"` inflates v_i by n_i, and disagreement no longer counts.
  (3) as an inequality is ambiguous among ties: we take an exact count, the first entry of a tie first.
The estimator of the curvature, unnamed in the paper, is `curvature`. Running statistics of batch norm are averaged and
common (so p = 1 is local training for networks without them). The whole of w_g is sent down, and the mask as bits: a
client that joins late starts at w_g. Adaptation trains and then takes the common entries back from w_g (4).
"""

from __future__ import annotations

from posterity.methods.fedbps.method import FedBPS

__all__ = ["FedBPS"]
