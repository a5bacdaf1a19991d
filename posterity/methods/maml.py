"""MAML: the server learns a model from which one step on a client's own data goes far.

    client   repeat, with disjoint batches B, B′:
                 θ′ = θ, then I times θ′ ← θ′ − α ∇f_B(θ′)
                 θ ← θ − γ ∇_θ f_B′(θ′(θ))                                second derivatives included
    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v
    test     one step of size α on the client's own training data, then predict

For a quadratic f with curvature A the gradient is A(1 − αA)^2I (θ − m).

Reference: Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017;
federated: Chen, Luo, Dong, Li and He, "Federated meta-learning", 2018.

Differs from the paper: a meta-step takes a batch of B samples for the support and `queries` such batches for the query
(two in MetaVD's released code), so an epoch has a third of FedAvg's steps. A client of one sample has no query and
stays where it is. Server momentum and η_s as in that code, which also clips the gradients of inner steps, as a part of
what is differentiated (`part_clip`). Running statistics of batch norm are the mean of the clients'.
"""

from dataclasses import dataclass

from posterity import core
from posterity.methods import _meta
from posterity.methods._meta import APPENDIX, CODE


@dataclass(frozen=True)
class MAML(core.Method):
    label = "MAML"
    reference = "Finn et al., ICML 2017; Chen et al., 2018"
    absent = "cohort only"
    scored = "adapted"

    local: core.Training = core.hyper(core.Training(), "how the clients train; lr is γ, the step size of meta-steps",
                                 paper=core.Training(lr=0.1, epochs=5, batch=64, clip=5.0))  # fmt: skip
    fast: float = core.hyper(0.02, "α: step size of the adaptation", CODE, search=(1e-3, 0.2, "log"), ge=0)
    order: str = core.hyper("exact", "with second derivatives, or without (FO-MAML)", "Finn et al.", ("exact", "first"))
    inner: int = core.hyper(1, "I: steps of the simulated adaptation", CODE, ge=0)
    part_clip: float | None = core.hyper(None, "longest gradient of an inner step", "ours: off", paper=5.0, ge=0)
    queries: int = core.hyper(2, "batches of a query, each as large as the support", CODE, ge=1)
    server_lr: float = core.hyper(0.9, "η_s: step size of the server", f"{CODE}; the paper searches 0.6 … 1", ge=0)
    server_momentum: float = core.hyper(0.9, "μ: momentum of the server", CODE, ge=0, le=1)
    server_clip: float | None = core.hyper(None, "longest mean update", "ours: off", paper=100.0, ge=0)
    adapt_steps: int | None = core.hyper(1, "steps of adaptation per epoch of `adapt`; none: epochs", APPENDIX, ge=1)
    adapt_batch: int = core.hyper(64, "batch size of the adaptation", APPENDIX, ge=1)
    loss: core.Loss = core.fit  # on the query; a wrapper may replace it
    support_loss: core.Loss = core.fit  # of the adaptation; a wrapper may replace it

    init = _meta.init
    offer = _meta.offer
    combine = _meta.combine
    adapt = _meta.adapt

    def passes(self) -> core.Passes:
        return (_meta.meta_steps(self, self.order, self.queries),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(carry.params, here), ()
