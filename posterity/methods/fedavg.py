"""FedAvg: clients train the broadcast model, the server averages what comes back.

    client   θ_k ← E epochs of SGD on f_k from w
    server   w ← w + η_s Σ_k p_k (θ_k − w),   p_k = n_k / Σ_j n_j over the cohort

Reference: McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, Algorithm 1.

Differs from the paper: the whole state is averaged, the running statistics of batch norm included (many code bases keep
them local without saying so); the last, smaller batch is kept; the optimiser starts anew each round.
"""

from dataclasses import dataclass

from posterity import core


@dataclass(frozen=True)
class FedAvg(core.Method):
    label = "FedAvg"
    reference = "McMahan et al., AISTATS 2017"
    absent = "cohort only"

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    server_lr: float = core.hyper(1.0, "η_s: step size of the server", "McMahan et al. 2017", ge=0)
    loss: core.Loss = core.fit  # a wrapper may replace it

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(carry.params, here), ()

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:
        return core.Leaves(core.averaged(state.params, total, self.server_lr, now.model))
