"""Reptile: the clients' mean update is a step of meta-learning, and every client adapts before it predicts.

    client   θ_k ← E epochs of SGD on f_k from w
    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v,   p_k = n_k / Σ_j n_j over the cohort
    test     one step on the client's own training data, then predict

Reference: Nichol, Achiam and Schulman, "On first-order meta-learning algorithms", 2018, Algorithm 2; as a federated
method in MetaVD (NeurIPS 2023), Algorithm 1, "Reptile variant".

Differs from the paper: clients count by their samples; the server has momentum and may clip, as in MetaVD's released
code (neither paper mentions them); running statistics of batch norm are the mean of the clients'.
"""

from dataclasses import dataclass

from posterity import core
from posterity.methods import _meta
from posterity.methods._meta import APPENDIX, CODE


@dataclass(frozen=True)
class Reptile(core.Method):
    label = "Reptile"
    reference = "Nichol et al., 2018"
    absent = "cohort only"
    scored = "adapted"

    local: core.Training = core.hyper(
        core.Training(), "how the clients train", paper=core.Training(lr=0.02, epochs=5, batch=64, clip=5.0)
    )
    server_lr: float = core.hyper(0.9, "η_s: step size of the server", f"{CODE}; the paper searches 0.6 … 1",
                                  search=(0.6, 1.0, "linear"), ge=0)  # fmt: skip
    server_momentum: float = core.hyper(0.9, "μ: momentum of the server", CODE, ge=0, le=1)
    server_clip: float | None = core.hyper(None, "longest mean update", "ours: off", paper=100.0, ge=0)
    adapt_steps: int | None = core.hyper(1, "steps of adaptation per epoch of `adapt`; none: epochs", APPENDIX, ge=1)
    adapt_batch: int = core.hyper(64, "batch size of the adaptation", APPENDIX, ge=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    init = _meta.init
    offer = _meta.offer
    combine = _meta.combine

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(carry.params, here), ()

    def adapt(self, epochs: int) -> core.Passes:
        return _meta.adaptation(self, self.local.descend(self.loss), epochs)
