"""FedNP: clients share a latent z by expectation propagation, and a network of z says where classifiers should lie.

Expectation propagation (2), (3) for the posterior of z given everybody's data (4): it is approximated by a Gaussian
q(z) ∝ p(z) Π_k q_k(z) (5). Client k takes its site q_k out, multiplies the cavity q_{−k} = N(m, s) (6) with its factor
σ(f z), f = f(X_k) (8), and takes over the moments of this tilted density (7),

    z_m = m + s f (1 − r₂),     z_s = s − s² f² κ,     κ = r₂ + r₂² − 2 r₃                                # (9), (10)

with r_d = E σ(C)^d / E σ(C), C ~ N(f m, f² s) (14), (15). An NPN turns q(z) into a Gaussian over the classifier (17),
and the client minimises, with θ̂ the classifier that it trains,

    J + λ { KL[NPN(q(z)) ‖ N(θ̂, ε)] + KL[q(z) ‖ p(z)] }                                                 # (19), (47)

After training f is computed on all its data, and the client sends its parameters, which are averaged, and the *change*
of its site, which the server adds to the totals: prior + all sites, absent clients' included.

Reference: "FedNP: Towards non-IID federated learning via federated neural propagation", AAAI 2023.

Differs from the paper (errata, numbered by us):
  N1  (12) is not the second moment; N4 (11) and (12) divide by f: both are replaced by the update above.
  N2, N3  constants of (44), not of (28) and (29). `moments="closed"` is the paper's; "quadrature" is its Quad-FedNP.
  N5  exact sites have no negative precision; where the closed form would give one, it is clamped.
  N7  parameters are averaged by n_k / Σn, not 1/n_k (`weighting="uniform"`: released code). N8: sites go every round.
  N9  the uniform prior of (4) makes cavities improper: p(z) = N(0, 1/τ₀), counted once.
  N10 with a scalar f all coordinates of z stay equal for ever: `f_output="vector"` has one factor per coordinate.
  N11 the gradient reaches f; `detach_f=True` is the released code, which never trains it.
  N6, N12  the code's constant sites and its other KLs are not reproduced; (18) is averaged over weights.
  N13 the toy has the f of the images, not tanh(MLP((ŷ − y)²)) of the code. N14 concerns a table only.
Algorithm 1 makes the site that is sent (line 8) from the z_m and z_s of the last iteration (line 5), that is from the f
of its last mini-batch, before the last step; here f is computed anew on all of the client's data with the parameters
that are sent, so that a site does not depend on which samples came last. Within training f is the mini-batch's in both.
f is a linear layer on the features, averaged over samples; its first values depend on the seed. The NPN has no weight
variances and stays with its client, as in the code. A newcomer's cavity is q(z). Fine-tuning repeats the round's
training, (18) included. The classifier is the head of any network. The host is FedAvg, or FedProx for µ > 0: with λ = 0
its trajectory is the host's, bit for bit.
"""

from __future__ import annotations

from posterity.methods.fednp.method import FedNP

__all__ = ["FedNP"]
