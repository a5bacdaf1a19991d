"""FedROD: a generic model that no client's class frequencies distort, and a personal head on top of it.

Features z = b(x) and the generic logits h(z) are shared, q_k is a linear head of client k alone. On each batch, from
one forward pass, with sg[·] held constant and n_k the class counts of the client's training samples (at least 1),

    b, h   descend on  CE(h(z) + γ log n_k, y)              balanced softmax                                # (a)
    q_k    descends on CE(sg[h(z)] + q_k(sg[z]), y)         the client's own risk                           # (b)
    server (b, h) ← Σ_k p_k (b_k, h_k),   p_k = n_k / Σ_j n_j over the cohort                               # (c)
    predict softmax(h(z) + q_k(z));  `predicts="generic"`: softmax(h(z))                                    # (d)

Because n_k takes the client's own frequencies into account, all clients fit the h that would be right for equally
frequent classes; the personal head learns what is particular, and is never sent. It begins at 0, so a client that has
not trained, a newcomer, and a test set of nobody's get the generic model. γ = 0 leaves the frequencies alone: (b, h) is
then FedAvg's model, bit for bit.

Reference: Chen and Chao, "On bridging generic and personalized federated learning for image classification", ICLR 2022.

The letters are ours: the paper's own numbers were not at hand.

Differs from the paper: the hypernetwork that makes q_k of the class frequencies is left out, so newcomers begin with
the generic model. The count of a class that a client lacks is 1 and not 0: log 0 would rule out a label that new data
may bring. FL-bench adds no generic logits in (b) and lets (b) reach the base, which is another method; as in PFLlib the
generic logits in (b) are those of before the step. Each of (a) and (b) has its own optimiser, so that a clip or a
momentum of one knows nothing of the other.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from posterity import core

WEIGHT, BIAS = HEAD = ("fedrod/weight", "fedrod/bias")  # q_k: (C, d) and (C,)
COUNTING_BATCH = 256  # samples at once when labels are counted; has no influence on the result
PREDICTS = ("personal", "generic")


def balanced(logits: Tensor, counts: Tensor, gamma: float) -> Tensor:
    """Logits (B, C) whose softmax is what a client with these class counts (C,) should see."""
    return logits + gamma * counts.clamp(min=1).log()


def added(params: core.Params, z: Tensor) -> Tensor:
    """q_k(z): what the personal head adds to the generic logits (B, C)."""
    return F.linear(z, params[WEIGHT], params[BIAS])


@dataclass(frozen=True)
class FedROD(core.Method):
    label = "FedROD"
    reference = "Chen and Chao, ICLR 2022"
    absent = "cohort only: an absent client keeps its head"
    outside = "the server's generic model: no head is added"

    local: core.Training = core.hyper(core.Training(), "how clients train", paper=core.Training(epochs=5, momentum=0.9))
    gamma: float = core.hyper(1.0, "γ: power of the class counts in the softmax; 0 = none", "FL-bench: 1", ge=0)
    predicts: str = core.hyper("personal", "which model predicts", "the personalised task", PREDICTS)

    combine = core.combine_mean  # (c)

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> core.Leaves:
        if model.task != "classification":
            raise ValueError("FedROD balances classes; this task is regression. Use fedper for a personal head there")
        return core.Leaves(params)

    def join(self, here: core.Here) -> core.Personal:
        zero, classes = here.n * 0, here.model.classes
        return {WEIGHT: zero.expand(classes, here.model.feature_dim) * 1, BIAS: zero.expand(classes) * 1}

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **here.personal}

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """Both risks in one value: no leaf has a gradient from both."""
        generic, z, buffers = core.run_features(params, batch, here)
        shown = balanced(generic, here.kept["labels"], self.gamma) if self.gamma else generic
        common = core.pointwise(shown, batch.y, here.model)  # (a)
        personal = generic.detach() + added(params, z.detach())
        return core.masked_mean(common + core.pointwise(personal, batch.y, here.model), batch.mask), buffers  # (b)

    def passes(self) -> core.Passes:
        each = self.local.make_optimiser()
        apart = core.Groups(lambda name: int(name in HEAD), (each, each))
        learn = core.descend(self.loss, apart, core.everything, **self.local.schedule())
        return (core.gather("labels", core.count_labels, batch=COUNTING_BATCH), learn) if self.gamma else (learn,)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        common = {n: carry.params[n] for n in here.initial}
        return core.weighted(common, here), {n: carry.params[n] for n in HEAD}

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        first = here.model.heads[0]
        logits, _, seen = here.model(carry.params, x, want=(first,))
        if self.predicts == "personal":
            logits = logits + added(carry.params, seen[first].flatten(1))  # (d)
        return F.log_softmax(logits, -1)
