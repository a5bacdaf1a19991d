"""Ditto: FedAvg, and beside it a model of every client's own that is held near the broadcast one.

    client   θ_k ← E epochs of SGD on f_k from w                                        (sent)
             v_k ← E_p epochs of SGD on f_k(v) + (λ/2) ‖v − w‖² from v_k                (kept, predicts)      # (a)
    server   w ← Σ_k p_k θ_k

w is what was received, so the common model is FedAvg's whatever λ is. λ = 0 is local training; λ → ∞ holds every client
at FedAvg's model.

Reference: Li, Hu, Beirami and Smith, "Ditto: Fair and robust federated learning through personalization", ICML 2021,
Algorithm 1. The letter is ours.

Differs from the paper: epochs instead of steps, and E_p of them for the personal model (`personal_epochs`), with the
client's own optimiser started anew for each of the two; weights p_k by samples, as FedAvg. A client's v_k begins at the
first broadcast that it receives, so a newcomer has w until it adapts, and `adapt` moves its v_k alone, by (a). The pull
covers trainable leaves only; each model has running statistics of batch norm of its own. FL-bench moves both models by
one optimiser, whose momentum then leaks from one to the other; PFLlib's pull is 0 unless it is set.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from posterity import core

TWO = 2  # more copies of the leaves that a step holds: there are two networks, of which it moves one


@dataclass(frozen=True)
class Ditto(core.Method):
    label = "Ditto"
    reference = "Li et al., ICML 2021"
    absent = "cohort only: an absent client keeps its model"

    local: core.Training = core.hyper(core.Training(), "how the clients train, both models")
    lam: float = core.hyper(1.0, "λ: pull of v_k to w", "FL-bench; paper: 0.1, 1, 2", search=(0.01, 10.0, "log"), ge=0)
    personal_epochs: int = core.hyper(1, "E_p: epochs of the personal model in a round", "FL-bench and PFLlib", ge=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    combine = core.combine_mean

    def join(self, here: core.Here) -> core.Personal:
        return dict(here.shared.params)

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **core.as_second(here.personal)}

    def pulled(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(params, batch, here)
        return value + 0.5 * self.lam * core.squared_distance(params, here.shared.params, here.model), buffers  # (a)

    def personal_pass(self) -> core.Pass:
        train = self.local.descend(core.on_second(self.pulled if self.lam else self.loss), core.second_network)
        return core.holding((replace(train, epochs=self.personal_epochs, max_steps=None),), copies=TWO)[0]

    def passes(self) -> core.Passes:
        return *core.holding((self.local.descend(self.loss, core.first_network),), copies=TWO), self.personal_pass()

    def adapt(self, epochs: int) -> core.Passes:
        return core.tuned((self.personal_pass(),), epochs)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(core.first_of(carry.params), here), core.second_of(carry.params)

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        return core.log_predictive(core.second_of(carry.params), x, here)
