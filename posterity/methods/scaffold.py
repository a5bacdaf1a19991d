"""SCAFFOLD: control variates correct the drift of clients whose losses pull in different directions.

The server keeps c and every client c_k, estimates of the gradients of the mean loss and of its own loss.

    client   θ_k ← SGD from w with steps θ ← θ − η (g(θ) − c_k + c), τ of them                               # (3)
             c_k⁺ = ∇f_k(w)                               (option I)
             c_k⁺ = c_k − c + (w − θ_k) / (τ η)           (option II)                                        # (4)
    server   w ← w + η_g (1/|S|) Σ_{k∈S} (θ_k − w),    c ← c + (1/K) Σ_{k∈S} (c_k⁺ − c_k)                    # (5)

All variates begin at 0, so c = (1/K) Σ_k c_k over all K clients after every round, whoever took part: what is sent are
differences, and an absent client's variate still counts in c.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled averaging for federated
learning", ICML 2020, Algorithm 1.

Differs from the paper: several epochs of batches instead of τ steps, so τ differs between clients and (4) uses the
client's own; option I averages the gradients of all batches at w in training mode. (4) reads a mean gradient off the
distance moved, which holds for plain SGD alone: momentum, a gradient-norm clip (it shortens the step, correction
included) and other optimisers are refused except with option I. Weight decay is allowed: it is the gradient of
½λ‖θ‖², a part of the loss, and so of the variates of option II (option I leaves it out, where it would cancel in
c − c_k). Variates cover trainable leaves, never the buffers of batch norm, whose plain mean is taken. Fine-tuning
(`adapt`) is uncorrected: it looks for the client's own minimum. `fednp` is what FedNP's released baseline does: c_k⁺ is
the mean gradient of one more, uncorrected epoch from θ_k.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import grad

from posterity import core

VARIATES = ("II", "I", "fednp")


@core.record
class State:
    params: core.Params  # w
    control: core.Params  # c, for every trainable leaf
    clients: int = field(metadata={core.STATIC: True})  # K


@dataclass(frozen=True)
class SCAFFOLD(core.Method):
    label = "SCAFFOLD"
    reference = "Karimireddy et al., ICML 2020"
    absent = "delta messages: an absent client's variate stays part of c"
    differences = ("params",)

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    server_lr: float = core.hyper(
        1.0, "η_g: step size of the server", "Karimireddy et al. 2020, §7", search=(0.5, 1.5, "linear"), ge=0
    )
    variate: str = core.hyper("II", "how c_k is renewed: option I, II, or FedNP's code", "the common choice", VARIATES)
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly

    def __post_init__(self) -> None:
        core.check_fields(self)
        if self.variate != "I":
            core.require_plain_sgd(self.local, f"variate {self.variate!r}", ", or variate 'I'")

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(params, core.zeros(params, model), facts.clients)

    def join(self, here: core.Here) -> core.Personal:
        return core.tree_map(torch.zeros_like, here.shared.control)

    def corrected(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """The loss, with c − c_k added to its gradient and nothing to its value."""
        value, buffers = self.loss(params, batch, here)
        control = here.shared.control
        linear = torch.stack([((control[n] - here.personal[n]) * params[n]).sum() for n in control]).sum()  # (3)
        return value + (linear - linear.detach()), buffers

    def slope(self, params: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
        """The gradient at the received w, times the rows of the batch."""
        still, names = here.shared.params, core.trainable(here.shared.params, here.model)
        found = grad(lambda moving: self.loss({**still, **moving}, batch, here)[0])({n: still[n] for n in names})
        return core.tree_map(lambda g: g * batch.mask.sum(), found)

    def passes(self) -> core.Passes:
        train = self.local.descend(self.corrected)
        if self.variate == "I":
            return train, core.gather("slope", self.slope, batch=self.local.batch)
        if self.variate == "fednp":
            return train, self.another_epoch()

        def close(carry: core.Carry, here: core.Here) -> core.Carry:
            end, control = train.close(carry, here), here.shared.control
            moved = core.mean_slope(here.shared.params, end.params, list(control), self.local.lr, here)
            new = {n: here.personal[n] - control[n] + moved[n] for n in control}  # (4), option II
            return replace(end, kept={**end.kept, "variate": new})

        return (replace(train, close=close),)

    def another_epoch(self) -> core.Pass:
        """An uncorrected epoch that leaves nothing but its mean gradient."""
        more = self.local.descend(self.loss)

        def begin(carry: core.Carry, here: core.Here) -> core.Carry:
            first = more.open(carry, here)
            return replace(first, kept={**first.kept, "before": carry})

        def close(carry: core.Carry, here: core.Here) -> core.Carry:
            before = carry.kept["before"]
            new = core.mean_slope(before.params, carry.params, list(here.shared.control), self.local.lr, here)
            return replace(before, kept={**before.kept, "variate": new})

        return replace(more, open=begin, close=close, epochs=1, max_steps=None, learns=False)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        if self.variate == "I":
            new = core.tree_map(lambda g: g / here.n.clamp(min=1), carry.kept["slope"])  # (4), option I
        else:
            new = carry.kept["variate"]
        moved = {n: p - here.shared.params[n] for n, p in carry.params.items()}
        change = core.tree_map(torch.sub, new, here.personal)
        return {"params": core.Mean(torch.ones_like(here.n), moved), "control": core.Sum(change)}, new

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        moved, change = total["params"].mean(), total["control"].value
        rate = {n: self.server_lr if n in state.control else 1.0 for n in moved}  # buffers have no step size
        params = {n: p + rate[n] * moved[n] for n, p in state.params.items()}
        control = core.tree_map(lambda c, d: c + d / state.clients, state.control, change)
        return State(params, control, state.clients)  # (5)
