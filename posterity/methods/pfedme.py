"""pFedMe: personal models around a common one, which learns from where they go (Moreau envelopes).

The common model minimises the mean of the envelopes F_k(w) = min_θ f_k(θ) + (λ/2) ‖θ − w‖², whose gradient at w is
λ (w − θ_k(w)), where θ_k(w) is the minimiser: the client's personal model. For every batch, from w_k = w:

    θ_k ≈ argmin_θ f_batch(θ) + (λ/2) ‖θ − w_k‖²       K steps of size η_p from w_k                           # (a)
    w_k ← w_k − η λ (w_k − θ_k)                                                                               # (b)
    server   w ← (1 − β) w + β Σ_k p_k w_k                                                                    # (c)

θ_k stays with its client and predicts.

Reference: Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, Algorithm 1.
The letters are ours.

Differs from the paper: epochs of batches instead of R of them (`local.steps` is R); weights p_k by samples, as the
authors' code (the paper averages equally). (b) is a step of the client's optimiser along λ (w_k − θ_k): with SGD it is
the paper's; momentum, Adam, decay and clip then mean what they mean elsewhere. The paper does not say where the K steps
begin; the authors' code goes on from the θ_k of the visit's batch before. Its µ, a decay of θ, is left out. Running
statistics of batch norm are renewed by the K steps, and are both models'; their mean has no β. A newcomer has θ = w
until it adapts, which is the work of a round. In FL-bench the personal model is not renewed after training, and the
first one is scored; here θ_k is what the last batch left.
"""

from dataclasses import dataclass

from posterity import core
from posterity.methods.ditto import Ditto

AUTHORS = "authors' code"


@dataclass(frozen=True)
class PFedMe(core.Method):
    label = "pFedMe"
    reference = "Dinh et al., NeurIPS 2020"
    absent = "cohort only: an absent client keeps its model"

    local: core.Training = core.hyper(
        core.Training(), "how the clients train; lr is η", paper=core.Training(lr=0.005, steps=20, batch=20)
    )
    lam: float = core.hyper(
        15.0, "λ: pull of the personal to the local model", AUTHORS, search=(1.0, 50.0, "log"), ge=0
    )
    prox_steps: int = core.hyper(5, "K: steps of the personal model for a batch", AUTHORS, ge=1)
    prox_lr: float = core.hyper(
        0.05, "η_p: step size of the personal model", "ours: K steps come near the minimiser", paper=0.01, ge=0
    )
    beta: float = core.hyper(1.0, "β: step size of the server", AUTHORS, ge=0)
    loss: core.Loss = core.fit  # a wrapper may replace it

    join = Ditto.join
    start = Ditto.start
    message = Ditto.message
    predict = Ditto.predict

    def direction(self, moving: core.Params, still: core.Params, batch: core.Batch, here: core.Here) -> core.Update:
        """The gradient of the envelope at the local model, and the personal model that it comes from."""
        theta, value, buffers = core.proximal(
            self.loss, moving, moving, core.first_of(still), batch, here, self.lam, self.prox_lr, self.prox_steps
        )  # (a)
        slope = {n: self.lam * (w - theta[n]) for n, w in moving.items()}  # (b)
        return slope, value, {**buffers, **core.as_second({**theta, **buffers})}

    def passes(self) -> core.Passes:
        how = self.local.schedule()
        return (core.directed(self.direction, self.local.make_optimiser(), core.first_network, copies=12, **how),)

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:
        return core.Leaves(core.averaged(state.params, total, self.beta, now.model))  # (c)

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        step = self.lam * max(self.prox_lr, self.local.lr)
        if step <= 1:
            return ()
        return (f"{self.label}'s steps may overshoot: lam · lr and lam · prox_lr should be at most 1, not {step:g}",)
