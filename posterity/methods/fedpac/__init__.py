"""FedPAC: features drawn to common class prototypes, and for every client its own combination of all heads.

Client k gets the base b, the prototypes P_c and a head. On the received base it describes its features z, with class
frequencies π_c and class means µ_c, by where the classes lie and by how uncertain that is,

    H_k = (π_c µ_c)_c,     V_k = (1/n_k) Σ_c [ π_c E‖z‖²_c − π_c² ‖µ_c‖² ]                                  # (a)

trains the head for one epoch on the cross-entropy with the base held still, then the base for E epochs with the head
held still, on

    f_k + λ (1/D) ‖z − P_y‖²        from round 2 on; in round 1 there are no prototypes                     # (b)

and sends base, head, H_k, V_k and the class means of its features on the trained base. The server takes means, of bases
by n_k and of class means by class counts, and looks for each participant i for the weights of everybody's heads,

    α_i = argmin αᵀ (diag V + G_i) α on the simplex,     G_i[j, l] = ⟨H_i − H_j, H_i − H_l⟩                  # (c)

which trade the variance of the estimate against its bias. Weights below 1e-3 are dropped and the rest made to sum to 1.

    h_i ← Σ_j α_ij h_j                                                                                      # (d)

Reference: Xu, Tong and Huang, "Personalized federated learning with feature alignment and classifier collaboration",
ICLR 2023.

Differs from the paper: (c) is solved for all participants by pivoting, to rounding (`programme.py`), after 1e-8 was
added to the diagonal; the authors' code calls a library and first drops eigenvalues below 0.01, which only rounding
makes small, and curvature with them. If the programme cannot be solved a client keeps its head. G_i comes from one
table of inner products. A class that nobody has reported yet pulls to the client's own mean before training. The
statistics (a) of the received base and the trained head travel in one message, so a round has one exchange and not two.
A client of one sample has V = 0 by (a). The server keeps the head that it made for a client until that client takes
part again. A newcomer, and a client that has not taken part yet, gets the mean of the last cohort's heads, by n_k;
adaptation trains the head alone. Classification only.

Cost: a round has two more passes over the data without gradients and an epoch for the head; the server takes O(m³) for
each of m participants, in all about 0.15 s for m = 100 and 4 s for m = 300 on one core.
"""

from __future__ import annotations

from posterity.methods.fedpac.method import FedPAC

__all__ = ["FedPAC"]
