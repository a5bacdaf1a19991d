"""FedBE: the server samples models around those of the clients, and distils what all of them say into one.

Clients train as in FedAvg and send their models θ_k, p_k = n_k / Σ_j n_j. With public rows U that have no labels,

    server   w̄ = Σ_k p_k θ_k,   s² = Σ_k p_k (θ_k − w̄)², entry by entry                                     # (a)
             teachers: w̄, the θ_k, and M models w̄ + c s ε with ε ~ N(0, I)                                   # (b)
             p̄(y | x) = mean over the teachers of their probabilities, to the power 1/T and normalised       # (c)
             student: SGD from w̄ on the mean of KL(p̄ ‖ p_student) over batches of U                          # (d)
             w ← mean of the student at every few of its last steps (SWA)                                    # (e)

Without server steps this is FedAvg.

Reference: Chen and Chao, "FedBE: making Bayesian model ensemble applicable to federated learning", ICLR 2021. The
letters (a) to (e) are ours: the paper's own numbers were not at hand.

Differs from the paper: models are drawn from a Gaussian only, not from a Dirichlet mixture of the clients'; mean and
variance are those of the weights, as in MetaVD's release, where the authors fit normalised updates; s² is at least
`floor`. Only trained weights are sampled: a drawn model has the mean's running
statistics of batch norm, those of draws mean nothing; a client's model keeps its own. Teachers and student predict in
evaluation mode, so that the student's statistics are the mean's. The divergence is averaged over rows; the authors'
code divides by the classes too. The authors sharpen with T = ½, our default is plain (T = 1). MetaVD's release averages
the teachers' logits instead (`mean_of`). Labels of U are never used; that the server has such rows at all is an
assumption that other methods do not make. Regression is refused. A newcomer gets w.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from posterity import core

PAPER, METAVD = "authors' code", "MetaVD's released code"
AUTHORS_TRAINING = core.Training(lr=0.01, epochs=20, momentum=0.9, weight_decay=1e-3)  # of their CNN
ROWS = 512  # public rows that a teacher predicts at once
SAMPLE, ORDER = 1, 2  # folded into the key of the round


def gaussian_fit(each: core.Params, share: Tensor) -> tuple[core.Params, core.Params]:
    """Mean and variance of models (m, ...) with shares (m,)."""
    mean = core.Mean.fold(core.Mean(share, each)).value
    return mean, core.tree_map(lambda t, w: torch.tensordot(share / share.sum(), (t - w) ** 2, 1), each, mean)  # (a)


@dataclass(frozen=True)
class FedBE(core.Method):
    label = "FedBE"
    reference = "Chen and Chao, ICLR 2021"
    absent = "cohort only"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    samples: int = core.hyper(10, "M: models that are drawn", PAPER, ge=0)
    scale: float = core.hyper(0.1, "c: share of the standard deviation", PAPER, ge=0)
    floor: float = core.hyper(1e-6, "least variance of an entry", METAVD, ge=0)
    clients_teach: bool = core.hyper(True, "whether the clients' models are teachers", PAPER)
    mean_of: str = core.hyper("probabilities", "what of the teachers is averaged", PAPER, ("probabilities", "logits"))
    temperature: float = core.hyper(1.0, "T: below 1 sharpens the teachers' mean", "ours: none", paper=0.5, gt=0)
    server_steps: int = core.hyper(72, "steps of distillation; 0 = FedAvg", METAVD, paper=1580, ge=0)
    server_batch: int = core.hyper(64, "public rows of a step", METAVD, paper=128, ge=1)
    server_lr: float = core.hyper(1e-3, "step size of distillation", PAPER, search=(0.0001, 0.01, "log"), ge=0)
    server_momentum: float = core.hyper(0.9, "momentum of distillation", PAPER, ge=0, lt=1)
    server_weight_decay: float = core.hyper(1e-5, "weight decay of distillation", PAPER, ge=0)
    swa_start: float = core.hyper(0.75, "share of steps before the averaged", METAVD, paper=0.3165, ge=0, le=1)
    swa_every: int = core.hyper(3, "steps from one that is averaged to the next", METAVD, paper=25, ge=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> core.Leaves:
        if not facts.classes:
            raise ValueError("FedBE averages the teachers' class probabilities; a regression was given: take fedavg")
        if not facts.public:
            raise ValueError("FedBE distils on rows of the server, and there are none: give it some with --public 4%")
        return core.Leaves(params)

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        return ("FedBE trains on public rows at the server, without labels: other methods do not assume such rows",)

    def passes(self) -> core.Passes:
        return (self.local.descend(self.loss),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return {"models": core.Bag(here.client, {"n": here.n, "params": carry.params})}, ()

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:
        sent = total["models"].value
        if not len(sent["n"]):
            raise ValueError("the mean of nothing: no client sent a model")
        fitted = gaussian_fit(sent["params"], sent["n"])
        if not self.server_steps or now.public is None:
            return core.Leaves(fitted[0])
        like = next(iter(state.params.values()))  # the run's own precision; sums come in float64
        trees = core.tree_map(lambda leaf: leaf.to(like), (fitted, sent["params"], now.public))
        return core.Leaves(now.play("learn", partial(self.learn, now.model), *trees, now.key))

    def learn(
        self, model: core.Network, fitted: core.Tree, each: core.Params, public: Tensor, key: Tensor
    ) -> core.Params:
        """The student of a round's teachers."""
        mean, variance = fitted
        drawn = self.draws(mean, variance, core.trainable(mean, model), core.fold(key, SAMPLE))
        target = self.target(self.teachers(mean, each, drawn), public, model)
        return self.distilled(mean, target, public, model, core.fold(key, ORDER))

    # --- the ensemble
    def draws(self, mean: core.Params, variance: core.Params, names: list[str], key: Tensor) -> list[core.Params]:
        """M models; leaves that are not `names` are the mean's."""
        drawn = []
        for number in range(self.samples):
            model = dict(mean)
            for place, n in enumerate(names):
                noise = core.normal(core.fold(core.fold(key, number), place), mean[n].shape, mean[n].dtype)
                model[n] = mean[n] + self.scale * variance[n].clamp(min=self.floor).sqrt() * noise  # (b)
            drawn.append(model)
        return drawn

    def teachers(self, mean: core.Params, each: core.Params, drawn: list[core.Params]) -> list[core.Params]:
        count = len(next(iter(each.values()))) if self.clients_teach else 0
        return [mean, *({n: leaf[k] for n, leaf in each.items()} for k in range(count)), *drawn]

    def target(self, teachers: list[core.Params], public: Tensor, model: core.Network) -> Tensor:
        """p̄ (rows, classes)."""

        def told(params: core.Params) -> Tensor:
            logits = torch.cat([model(params, some)[0] for some in torch.split(public, ROWS)])
            return logits if self.mean_of == "logits" else torch.softmax(logits, -1)

        mean = torch.stack([told(params) for params in teachers]).mean(0)
        logits = mean if self.mean_of == "logits" else mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
        return torch.softmax(logits / self.temperature, -1)  # (c)

    # --- the student
    def distilled(
        self, mean: core.Params, target: Tensor, public: Tensor, model: core.Network, key: Tensor
    ) -> core.Params:
        def divergence(student: core.Params, rows: Tensor) -> Tensor:
            told = torch.log_softmax(model({**mean, **student}, public[rows])[0], -1)
            return F.kl_div(told, target[rows], reduction="sum") / len(rows)  # (d)

        tool = core.SGD(self.server_lr, self.server_momentum, self.server_weight_decay)
        student = {n: mean[n] for n in core.trainable(mean, model)}
        state, kept = tool.open(student), list[core.Params]()
        for step, rows in enumerate(self.batches(len(public), key)):
            student, state = tool.update(grad(divergence)(student, rows), state, student)
            if self.averages(step):
                kept.append(student)
        kept = kept or [student]
        average = {n: torch.stack([some[n] for some in kept]).mean(0) for n in student}  # (e)
        return {**mean, **average}

    def batches(self, rows: int, key: Tensor) -> list[Tensor]:
        """Which public rows each step sees: every epoch has an order of its own, its last batch may be smaller."""
        per = -(-rows // self.server_batch)
        orders = (core.permutation(core.fold(key, epoch), rows) for epoch in range(-(-self.server_steps // per)))
        return [some for order in orders for some in torch.split(order, self.server_batch)][: self.server_steps]

    def averages(self, step: int) -> bool:
        """Whether the student after this step (from 0) is one of those averaged."""
        first = int(self.swa_start * self.server_steps)
        return step >= first and (step - first) % self.swa_every == 0
