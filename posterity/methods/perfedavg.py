"""Per-FedAvg: MAML across clients with the second derivatives by a difference of gradients, or without them.

The objective is (1/N) Σ_k f_k(θ − α ∇f_k(θ)). A meta-step takes disjoint batches B, B′ and, for a difference, B″:

    θ′ = θ − α g_B(θ),   v = g_B′(θ′)
    θ ← θ − β [ v − α (g_B″(θ + δv) − g_B″(θ − δv)) / 2δ ]        hvp = difference   (HF-MAML)
    θ ← θ − β v                                                   hvp = none         (FO-MAML)
    θ ← θ − β ∇_θ f_B′(θ′(θ))                                     hvp = exact

    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v         p_k = 1/m, or n_k / Σ_j n_j (`balance = samples`)
    test     one step of size α on the client's own training data, then predict

Reference: Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020.

Differs from the paper: an epoch of meta-steps instead of τ of them (`local.steps` is τ); sampling without replacement;
a client of one sample has no query and stays where it is. MetaVD counts clients by their samples (`balance = samples`).
Its release shifts the minus point from the already shifted plus point and so halves the Hessian-vector product (its
erratum M13; 2.0757 instead of 1.92 on two quadratics): here the difference is central. It also clips g_B, v and the
product, each by itself (`part_clip`). With `inner` > 1 a product is taken at the start of every inner step. Running
statistics of batch norm are the mean of the clients'.
"""

from dataclasses import dataclass

import torch

from posterity import core
from posterity.methods import _meta
from posterity.methods._meta import APPENDIX, CODE
from posterity.methods.feddyn import BALANCES

ORDERS = {"difference": "hessian_free", "exact": "exact", "none": "first"}


@dataclass(frozen=True)
class PerFedAvg(core.Method):
    label = "Per-FedAvg"
    reference = "Fallah et al., NeurIPS 2020"
    absent = "cohort only"
    scored = "adapted"

    local: core.Training = core.hyper(core.Training(), "how the clients train; lr is β", paper=core.Training(steps=10))
    fast: float = core.hyper(0.02, "α: step size of the adaptation", CODE, search=(1e-3, 0.2, "log"), ge=0)
    hvp: str = core.hyper("difference", "Hessian-vector products of the gradient", "Fallah et al. 2020", tuple(ORDERS))
    delta: float = core.hyper(1e-3, "δ: width of the difference", "FL-bench; 1e-4: too little for float32", gt=0)
    inner: int = core.hyper(1, "steps of the simulated adaptation", "Fallah et al. 2020", ge=0)
    part_clip: float | None = core.hyper(None, "longest inner gradient; by differences, also of the query, and product",
                                         f"{CODE} uses 5; off by default", ge=0)  # fmt: skip
    server_lr: float = core.hyper(1.0, "η_s: step size of the server", f"Fallah et al. 2020; {CODE} uses 0.9", ge=0)
    server_momentum: float = core.hyper(0.0, "μ: momentum of the server", f"Fallah et al.; {CODE} uses 0.9", ge=0, le=1)
    server_clip: float | None = core.hyper(None, "longest mean update", f"{CODE} uses 100; off by default", ge=0)
    balance: str = core.hyper("clients", "whose objective is averaged", f"Fallah et al.; {CODE}: samples", BALANCES)
    adapt_steps: int | None = core.hyper(1, "steps of adaptation per epoch of `adapt`; none: epochs", APPENDIX, ge=1)
    adapt_batch: int = core.hyper(64, "batch size of the adaptation", APPENDIX, ge=1)
    loss: core.Loss = core.fit  # on the query; a wrapper may replace it
    support_loss: core.Loss = core.fit  # of the adaptation; a wrapper may replace it

    init = _meta.init
    offer = _meta.offer
    combine = _meta.combine
    adapt = _meta.adapt

    def passes(self) -> core.Passes:
        return (_meta.meta_steps(self, ORDERS[self.hvp], delta=self.delta),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        if self.balance == "samples":
            return core.weighted(carry.params, here), ()
        return {"params": core.Mean(torch.ones_like(here.n), carry.params)}, ()
