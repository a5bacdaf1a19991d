"""FedRep: clients fit their own head to the shared base first, then the base under that head.

    client   h_k ← E_h epochs of SGD on f_k(b, ·) from h_k, the base b as received                           # (1)
             b_k ← E_b epochs of SGD on f_k(·, h_k) from b, under the new head                               # (2)
    server   b ← Σ_k p_k b_k,   p_k = n_k / Σ_j n_j over the cohort;  the heads stay at home                 # (3)

E_b is `local.epochs`, E_h is `head_epochs`; the two phases have an optimiser each, so no momentum of one pushes the
other. In the head phase the base is in evaluation mode: not even running statistics of batch norm move.

A client that has never trained has the common first head, which fits no base: newcomers must adapt. Adaptation trains
the head alone, on the base as received. The paper's last step, ten more epochs of every client's head, is
`fedrep+ft` with `ft.epochs=10`.

Reference: Collins, Hassani, Mokhtari and Shakkottai, "Exploiting shared representations for personalized federated
learning", ICML 2021, Algorithm 1.

Differs from the paper: one epoch of the head by default, as other studies run it; p_k by samples (the paper's clients
have equal sizes); the head is the model's own (the last linear layer unless the model says otherwise) and all heads
start from one common head. The paper's weight decay spares the biases, ours does not. `local.steps` counts the steps of
the base phase; the head phase always counts epochs.
"""

from dataclasses import dataclass, replace

from posterity import core
from posterity.methods.fedper import FedPer, State

AUTHORS_TRAINING = core.Training(lr=0.01, epochs=1, batch=10, momentum=0.5, weight_decay=1e-4)


@dataclass(frozen=True)
class FedRep(core.Method):
    label = "FedRep"
    reference = "Collins et al., ICML 2021"
    absent = "cohort only: an absent client keeps its head"
    outside = "the server's base with the initial head"

    local: core.Training = core.hyper(
        core.Training(), "how the clients train; its epochs are those of the base", paper=AUTHORS_TRAINING
    )
    head_epochs: int = core.hyper(
        1, "E_h: epochs of the head, before the base", "PFLlib; not in pFedVMP", paper=10, ge=0
    )
    loss: core.Loss = core.fit  # of the base phase; a wrapper may replace it

    offer = FedPer.offer
    join = FedPer.join
    start = FedPer.start
    message = FedPer.message
    combine = FedPer.combine  # (3)

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        core.require_two_parts(params, model, "FedRep")
        return State(params, model.head_names)

    def head_phase(self, epochs: int) -> core.Passes:
        if not epochs:
            return ()
        return (replace(self.local.descend(core.fit_head, core.head), epochs=epochs, max_steps=None),)  # (1)

    def passes(self) -> core.Passes:
        return (*self.head_phase(self.head_epochs), self.local.descend(self.loss, core.base))  # (2)

    def adapt(self, epochs: int) -> core.Passes:
        return self.head_phase(epochs)
