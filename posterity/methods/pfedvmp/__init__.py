"""pFedVMP: a shared base and personal heads, tied by Gaussian messages about where each class lies in feature space.

Wanted are the base θᵇ, the heads θʰ_n and the class centroids that explain everybody's data best (1). Their posterior
is approximated (2) by independent factors for the three (3); the shared ones are products of what clients say and of a
prior (4), class by class, since a product of the clients' mixtures (5) would have too many parts. Client n replaces its
factor, given the others' (6), so that (7) is least; with a surrogate of the posterior (8a), (8b) this becomes a loss.

A client trains base and head on the cross-entropy plus a pull of its features z = ψ(x; θᵇ) to the global centroids,

    L_n = 1/|B| Σ_i [ −log p(y_i | x_i) + ξ₁ ρ(z_i − µ_{y_i}) ]                                           # (9)

then summarises its features class by class as a Gaussian factor over the centroid, with precision and mean

    Λ_{k,n} = (Σ_{k,n})† + α I,     µ_{k,n} = mean of z in class k                                         # (11)

and the server multiplies the factors: the base is averaged by size (10, 12), and the centroids are

    µ_k = (Σ_n Λ_{k,n})⁻¹ Σ_n Λ_{k,n} µ_{k,n}                                                              # (13)

Reference: "Personalized federated learning via variational message passing" (pFedVMP), manuscript.

Differs from the paper (errata, numbered by us):
  E1  ξ₁ = 50 is only possible if the pull is averaged over the features: `reduction="mean"`; "sum" is as printed.
  E2  (11) trusts a client where its data vary: the default `shrinkage` inverts a regularised covariance instead;
      `printed` is (11), in float64 from the centred features with a rank cut (Σ is never formed to be inverted):
      deviations below 1e-5 of the class's largest, or that rounding of the features explains, count as none, and
      none as less than 1e-6 of the features' root mean square, for float64 sums hold no wider range of precisions.
  E3  (11) is the precision of a feature, not of its mean: all modes but `printed` multiply by the class count Z.
      A class's variance s² is its own, but at least ν₀ v / (Z − 1 + ν₀), what ν₀ samples of variance v would leave of
      v: equal rows must not outweigh everybody. v is that of the client's other classes and of ν₀ samples with that at
      a typical client of the last round. A client without any spread sends its counts until this is known.
  E4  a class that a client does not have sends the zero factor.
  E5  (4) has a prior over the centroids, (13) has not: left out unless `prior` says so.
  E6  ξ₁ is the coefficient in the loss, so the equivalent precision is 2 ξ₁.
Centroids are unknown, and pull nobody, until somebody has reported the class (`warmup="zero"`: the prior mean instead).
A newcomer's head is the nearest-centroid rule w_k = 2µ_k, b_k = −‖µ_k‖² where the head is one linear layer. Fine-tuning
repeats the round's training, (9) with its pull, of base and head (the paper does not fine-tune).
"""

from __future__ import annotations

from posterity.methods.pfedvmp.method import PFedVMP

__all__ = ["PFedVMP"]
