"""FedEP: expectation propagation between clients; each refines its own factor of a Gaussian that all have in common.

The server keeps q = N(µ, diag Λ⁻¹) in natural parameters (η, Λ), η = Λµ, meant as the product of one factor (a *site*)
for each client. A client takes its factor q_k out, puts its data in, and sends by how much that changes q:

    cavity    (η, Λ) − (η_k, Λ_k)                 with sites (FedEP), or                                 # (a)
              (1 − n_k/N) (η, Λ)                  without (FedSEP: all clients have equal shares of q)
    tilted    x = mean of the epochs' last iterates on f_k(θ) + (1/n_k) × the cavity's energy, from µ    # (b)
              precision Λ' = Λ_cavity + that of the client's data, see `precision.py`                    # (c)
    change    Δ_k = (Λ'x − η, Λ' − Λ),   its length at most `clip`                                       # (d)
    site      (η_k, Λ_k) ← the server's step along δ Δ_k                                                 # (e)
    server    (η, Λ) ← SGD step, with momentum, along δ Σ_k Δ_k;   µ = η/Λ                               # (f)

Rounds 1 … `burn_rounds` are FedAvg's (with the server's step): they find the µ about which a Gaussian makes sense. The
q with which they end has Λ = λ̄N, every client owns n_k/N of it (Λ_k = λ̄n_k), whenever it is first met, and the server
begins without momentum: so q is the product of the sites. A newcomer predicts with µ.

`sites=false` is FedSEP: clients keep nothing. With `precision="identity"` its Λ never changes, and it is FedAvg of
equal clients with a pull of λ̄(N − n_k)/n_k to µ on the mean loss; with sites it is not, and ends where Σ_k n_k ∇f_k(µ)
is 0. Either way `local.lr` times that pull should stay below 2, or clients with few samples and many steps run away.

Reference: Guo, Greengard, Wang, Gelman, Kim and Xing, "Federated learning as variational inference: a scalable
expectation propagation approach", ICLR 2023.

The letters (a) to (f) are ours: the paper's own numbers were not at hand.

Differs from the paper: burn-in is part of the run instead of a checkpoint of FedAvg, and its µ is sent along for those
who are met later. The damping δ is 1/m with m clients in the round for FedSEP as in the paper; FedEP's is 1/K, since a
client must know it too, or q would not stay the product of the sites (`damping` sets another). A site moves by the
server's own rule, step size and momentum included (the paper has an optimiser of its own for it); where a client is
absent its site waits, while the server's momentum does not, and catches up. Where Λ would fall below `floor` of its
first value, as it can with momentum, it stays there and µ stays what it was, and q is no longer that product. Who
leaves before a visit has no factor yet, and leaves its share of the first q behind. Weight decay of the clients'
optimiser is part of their likelihood, as in the paper. NGVI is not here; for the Fisher information of "laplace" each
pass draws labels from the model, so that the squares of *batch* gradients have its mean. Factors cover trainable
leaves; running statistics of batch norm are averaged by samples.
"""

from __future__ import annotations

from posterity.methods.fedep.method import FedEP

__all__ = ["FedEP"]
