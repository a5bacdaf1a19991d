"""pFedGP: a shared embedding under Gaussian-process classifiers that every client builds anew from its own data.

A client arranges its classes in a binary tree: the class means of its embeddings are split in two by 2-means, and each
half again, until every leaf is one class. A node is a binary Gaussian-process classifier for "left" (κ = +½) against
"right" (κ = −½) on the samples of the classes below it, with the kernel

    k(u, v) = s exp(−‖u − v‖² / 2ℓ²),   u = z / ‖z‖,   K = k(U, U) + δI                                     # (a)

Pólya-Gamma variables ω make it conditionally Gaussian. Gibbs sampling, several chains of a few steps, draws by turns

    f | ω ~ N(Σ̃κ, Σ̃),   Σ̃ = K − K√Ω S⁻¹ √Ω K,   S = I + √Ω K √Ω                                            # (b)
    ω | f ~ PG(1, f)                                                                                        # (c)

and the last ω of each chain gives the prediction at a new point, averaged over the chains:

    f* | ω ~ N(k*ᵀ(κ − √Ω S⁻¹ √Ω K κ),  k** − k*ᵀ√Ω S⁻¹ √Ω k*),   k** = s + δ                               # (d)
    p(left) = E σ(f*),   p(right) = E σ(−f*)                                                                # (e)
    p(y | x) = product of the branches on the way to y                                                      # (f)

The client trains its embedding on −log p(y | x) of one half of each class given the other half (g); nothing flows
through ω. The server takes the plain mean of the embeddings (h). For a prediction all training samples are given.

Reference: Achituve, Shamsian, Navon, Chechik and Fetaya, "Personalized federated learning with Gaussian processes",
NeurIPS 2021. The letters (a) to (h) are ours: the paper's own numbers were not at hand.

Differs from the paper: only the full model, without inducing points. (b) and (d) are written with S, whose smallest
eigenvalue is 1, instead of (K + Ω⁻¹)⁻¹: ω is never divided by, and rows that are not at a node have ω = 0. A factor of
K itself is needed for draws of the prior alone: δ is the first of 1, 10 and 100 times `jitter` for which there is one.
The trees' 2-means starts from the two classes that are farthest apart, instead of 50 random starts, so that a tree is a
function of the embedding. The sum over the nodes is divided by the predicted samples, so that the step size does not
depend on a client's size. PG(1, c) is drawn as the first three terms of its infinite sum of exponentials and one more
with the mean and variance of all that follow: both moments of a draw are exact, the third to 1e-4. The released code
takes exp(E log σ(f*)) for a probability, and one minus it for "right", which is too low for "left" (0.29 instead of 0.5
where nothing is known): `branch="log_mean"` is that. `inference="vb"` replaces the chains by one mean field,
ω = tanh(c/2) / 2c with c² = E f², which draws nothing. A class of one sample is given, never predicted. Classes that a
client has not seen have a probability of about 0 (e⁻³⁰). Kernels and their factors are exact with `--precision tf32`,
too, but in steps that are compiled. The head of the network is neither trained nor sent, and clients keep nothing
between rounds: a newcomer builds its classifier from its labelled data without training; one without data finds all
classes equally likely. Second derivatives of the loss are not available.
"""

from __future__ import annotations

from posterity.methods.pfedgp.method import PFedGP

__all__ = ["PFedGP"]
