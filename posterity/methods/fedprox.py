"""FedProx: FedAvg whose clients are held near the broadcast model.

    client   θ_k ← E epochs of SGD on f_k(θ) + (µ/2) ‖θ − w‖² from w                                  # (2)
    server   w ← Σ_k p_k θ_k

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks",
MLSys 2020.

Differs from the paper: weights p_k by samples, as FedAvg (the paper samples clients by size and averages equally); all
clients finish their epochs (no stragglers). The penalty covers trainable leaves only, never the buffers of batch norm.
FedNP's released code adds an unsquared norm, so its µ is not comparable. Fine-tuning is plain training.
"""

from dataclasses import dataclass

from torch import Tensor

from posterity import core


@dataclass(frozen=True)
class FedProx(core.Method):
    label = "FedProx"
    reference = "Li et al., MLSys 2020"
    absent = "cohort only"

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    mu: float = core.hyper(0.01, "µ: pull towards the broadcast", "FedNP's tuned value; the paper tries 0.001 … 1",
                           search=(1e-3, 1.0, "log"), ge=0)  # fmt: skip
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly
    combine = core.combine_mean

    def penalised(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(params, batch, here)
        return value + 0.5 * self.mu * core.squared_distance(params, here.shared.params, here.model), buffers  # (2)

    def passes(self) -> core.Passes:
        return (self.local.descend(self.penalised if self.mu else self.loss),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(carry.params, here), ()
