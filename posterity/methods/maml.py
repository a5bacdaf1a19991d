"""MAML: the server learns a model from which one step on a client's own data goes far.

    client   repeat, with disjoint batches B, B′:
                 θ′ = θ − α ∇f_B(θ),   θ ← θ − γ ∇_θ f_B′(θ′(θ))          second derivatives included
    server   v ← μ v + Σ_k p_k (θ_k − w),   w ← w + η_s v
    test     one step of size α on the client's own training data, then predict

For a quadratic f with curvature A the gradient is A(1 − αA)²(θ − m).

Reference: Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017;
federated: Chen, Luo, Dong, Li and He, "Federated meta-learning", 2018.

Differs from the paper: one inner step; each meta-step takes three batches of B samples and deals them to support,
query and (Per-FedAvg's) second query, so an epoch has a third of FedAvg's steps, and the last third of a batch is idle
here. A client of one sample has no query and stays where it is. Server momentum and η_s as in MetaVD's released code,
which adapts with a *differentiable* gradient clip (not here).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from posterity.core.averaging import weighted
from posterity.core.hyper import check_fields, hyper, within
from posterity.core.losses import fit
from posterity.core.method import Carry, Facts, Here, Message, Method, Now, Params, Pass, Personal, Point
from posterity.core.passes import Loss, descend, meta
from posterity.core.training import Training
from posterity.methods.reptile import CODE, State, adaptation, first, server_step

WAYS = 3  # batches of one meta-step
Order = Literal["exact", "first", "hessian_free"]


def meta_pass(
    local: Training, support_loss: Loss, loss: Loss, fast: float, order: Order = "exact", delta: float = 1e-3
) -> Pass:
    """Meta-steps on batches of three times the local size."""
    how = {**local.schedule(), "batch": WAYS * local.batch}
    return meta(support_loss, loss, fast, local.make_optimiser(), order=order, delta=delta, **how)


def fast_step(local: Training, loss: Loss, fast: float) -> Pass:
    """Plain descent of size `fast`: what a client does before it is scored."""
    return descend(loss, replace(local, lr=fast, optimiser="sgd", momentum=0.0).make_optimiser())


@dataclass(frozen=True)
class MAML(Method):
    label: ClassVar[str] = "MAML"
    reference: ClassVar[str] = "Finn et al., ICML 2017; Chen et al., 2018"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "adapted"

    local: Training = hyper(Training(), "how the clients train; lr is γ, the step size of the meta-steps")
    fast: float = hyper(0.02, "α: step size of the adaptation", CODE)
    order: str = hyper("exact", "with second derivatives, or without (FO-MAML)", "Finn et al.", ("exact", "first"))
    server_lr: float = hyper(0.9, "η_s: step size of the server", f"{CODE}; the paper searches 0.6 … 1")
    server_momentum: float = hyper(0.9, "μ: momentum of the server", CODE)
    server_clip: float | None = hyper(None, "longest mean update", f"{CODE} uses 100; off by default")
    adapt_steps: int | None = hyper(1, "steps of adaptation per epoch of `adapt`; none: whole epochs", "MetaVD §4")
    adapt_batch: int = hyper(64, "batch size of the adaptation", "MetaVD §4")
    loss: Loss = fit  # on the query; a wrapper may replace it
    support_loss: Loss = fit  # of the adaptation; a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, fast=(0, None), server_lr=(0, None), server_momentum=(0, 1), server_clip=(0, None))
        within(self, adapt_steps=(1, None), adapt_batch=(1, None))

    def init(self, model: Any, params: Params, facts: Facts) -> State:
        return first(model, params, self.server_momentum)

    def offer(self, state: State, client: Any) -> tuple[Params, tuple[()]]:
        return state.params, ()  # the velocity stays on the server

    def start(self, here: Here) -> Params:
        return here.shared

    def passes(self) -> tuple[Pass, ...]:
        order: Order = "exact" if self.order == "exact" else "first"
        return (meta_pass(self.local, self.support_loss, self.loss, self.fast, order),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(carry.params, here), ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        return server_step(state, total, self.server_lr, self.server_momentum, self.server_clip)

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return adaptation(fast_step(self.local, self.loss, self.fast), epochs, self.adapt_steps, self.adapt_batch)
