"""MetaVD: a hyper-network on the server predicts how noisy each client's weights are, and so how much each one counts.

In place of the host's objective (1) stands a bound in which client m has weights w^m ~ q^m and the share g^m of the
cohort's samples (of its clients, where the host counts these: Per-FedAvg unless `balance=samples`); nobody computes it,
since every client descends on its own term (4):

    Σ_m g^m { E[log p(y^m | x^m, w^m)] − KL(q^m ‖ p) }                                                            # (2)

In one linear layer q^m is Gaussian, with a variance of its own for every client that follows from its embedding e^m,

    q^m = N(θ, diag v^m),   v^m = exp ρ^m   (or α^m θ² with α^m = exp ρ^m),   ρ^m = h_ψ(e^m)                      # (3)

A client receives θ and its ρ^m and trains both on the loss of its network f, whose outputs are averaged over S draws of
the noise (`draws`), plus β_r times the mean divergence. In round r (the first is 1) r − 1 rounds have annealed β:

    ℓ = −log p(y | f̄) + β_r (1/K) Σ_k ½ log(1 + θ̄_k²/v_k),   f̄ = (1/S) Σ_s f(x; θ + √v ε_s),   θ̄: no gradient      # (4)
    β_r = β / (1 + exp(6 − 12 (r − 1)/A)) while r − 1 ≤ A = `anneal` · rounds, then β

The server weights that layer by precision, hands everything else to its host (FedAvg, Reptile, MAML, Per-FedAvg), and
moves the hyper-network along what the clients did to their ρ:

    θ^agg = Σ_m g^m θ^m/v^m ÷ Σ_m g^m/v^m                                                                         # (5)
    ψ ← ψ + η Σ_m g^m J_ψ(e^m)ᵀ Δρ^m,   e^m ← e^m + η g^m J_e(e^m)ᵀ Δρ^m,   Δρ^m = ρ^m_* − ρ^m           # Algorithm 1

ψ and the embeddings stay on the server, but for newcomers that fit an embedding (`test_noise = fit_embedding`).

Reference: Jeon, Hong, Yun and Kim, "Federated learning via meta-variational dropout", NeurIPS 2023.

Differs from the paper (errata, numbered by us):
  M1–M4   no extra 1/M in (5) and in the step of ψ; clients descend on −ELBO; J_eᵀ Δρ, as ψ is no function of e.
  (4)     the loss is that of the mean logits, as released, and not the mean loss E[−log p] of (2), which is never
          below it: −log p is convex in the logits. With `draws = 1` it is one unbiased draw of that mean.
  M5      ρ = log v by default: with α (`noise_param = alpha`) near-zero weights win (5). The release has log v only, up
          to 0. Here log α goes up to 8.5: with 0 no rate would exceed ½, and `+drop` would drop nothing at 0.8 or 0.9.
  M6, M8  the mean divergence times β, annealed, as released (`kl = elbo`: times K/n); h ends without an exponential.
  β       1, the least value of the paper's search; the release's 10 loses 15 points to its host on CIFAR-10 in a run of
          three seeds (`docs/results/metavd.md`), and stands in the rows "released defaults" of the papers' tables.
  M11     at test the floor replaces the personal noise, as released (`test_noise`), and the mean weights predict; the
          release averages the logits of three draws (`test_draws` averages probabilities).
The inner steps of MAML see the noise but no divergence, as released. Momentum and decay move the cohort's embeddings
only; the release's move everybody's (`moves = all`). `family = ensemble` learns every ρ^m without a hyper-network,
`naive` one ρ for all: the paper's ablations. Of an ensemble's ρ^m the release's decay alone makes −2.8 of −8.5 in 1,000
rounds: noise that no client has asked for.

MetaVD, the wrapper: a client's noise (3), its loss (4), the server's mean (5) and the step of Algorithm 1.

Variances, divergences and precision weights are in `dropout.py`, the hyper-network in `hypernet.py`.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.perfedavg import PerFedAvg
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import dropout
from posterity.methods.wrappers.metavd.dropout import Noisy
from posterity.methods.wrappers.metavd.hypernet import FAMILIES, MOVES, TEST_NOISE, Predictor, Source, fitting
from posterity.nn.extra import linear_layer

RHO = "metavd.rho"  # the client's leaf beside the network's
HOSTS = {"fedavg": FedAvg, "reptile": Reptile, "maml": MAML, "perfedavg": PerFedAvg}  # the paper's
LOSSES = {"loss", "support_loss"}  # fields of a host that are replaced; the second is of a simulated adaptation
CODE = "released code 5d70c2b"
QUERY, SUPPORT, TEST = 1, 2, 3  # draws of one call


@core.record
class State:
    host: core.Tree
    source: Source  # ψ, e and their momenta
    warmth: Tensor  # () share of β that is in force: it rises from near 0 to 1
    leaf: str = field(metadata={core.STATIC: True})  # the weight that is Gaussian

    @property
    def params(self) -> core.Params:
        return self.host.params  # θ


@core.record
class Own:
    rho: Tensor  # ρ^m
    warmth: Tensor  # ()
    lent: core.Tree = ()  # ψ, for newcomers that fit their embedding


@dataclass(frozen=True)
class MetaVD(core.Wrapper):
    layer: str = core.hyper("", "the Gaussian layer; none named: the last linear one before the head", "paper §4")
    noise_param: str = core.hyper(
        "log_variance", "ρ is the logarithm of it", f"{CODE}; M5", dropout.FORMS, paper="alpha"
    )
    beta: float = core.hyper(1.0, "β: weight of the mean divergence", "ours: 10 costs 15 points; paper: 1 … 15",
                             search=(1.0, 15.0, "linear"), paper=10.0, ge=0)  # fmt: skip
    anneal: float = core.hyper(0.02, "share of the rounds over which β rises from near 0", CODE, ge=0, le=1)
    kl: str = core.hyper("mean", "β times the mean divergence, or K/n times it (β unused)", "M6", ("mean", "elbo"))
    prior: str = core.hyper("hierarchical", "prior of the weights", "paper §3.2", dropout.PRIORS)
    draws: int = core.hyper(3, "noise draws of a step, logits averaged; 0: no noise", CODE, ge=0)
    family: str = core.hyper("hyper", "source of ρ: hyper-network, one per client, one for all", "§4.2", FAMILIES)
    embedding: int | None = core.hyper(None, "length of e; none: 1 + clients/4", "paper §4", ge=1)
    width: int = core.hyper(200, "units of the hyper-network's hidden layers", "appendix E", ge=1)
    depth: int = core.hyper(3, "hidden layers of the hyper-network", f"{CODE}; M8", ge=1)
    hyper_lr: float = core.hyper(0.9, "η: step size of ψ and e", CODE, ge=0)
    hyper_momentum: float = core.hyper(0.6, "momentum of ψ, and of ρ where there is no hyper-network", CODE, ge=0, le=1)
    embedding_momentum: float = core.hyper(0.3, "momentum of e", CODE, ge=0, le=1)
    hyper_decay: float = core.hyper(5e-4, "weight decay of ψ and e", CODE, ge=0)
    moves: str = core.hyper("cohort", "whose e momentum and decay move: the cohort's, or everybody's",
                            "ours; the release moves all", MOVES, paper="all")  # fmt: skip
    hyper_clip: float | None = core.hyper(100.0, "longest step of ψ and e together", CODE, ge=0)
    test_noise: str = core.hyper("floor", "noise at scoring: the floor for all, or the client's", CODE, TEST_NOISE)
    test_draws: int = core.hyper(0, "draws whose probabilities are averaged; 0: the mean weights", "ours; M11", ge=0)
    fit_steps: int = core.hyper(10, "steps on e for newcomers (fit_embedding)", "ours", ge=1)
    fit_lr: float = core.hyper(0.1, "step size on e for newcomers (fit_embedding)", "ours", ge=0)

    def __post_init__(self) -> None:
        core.check_fields(self)
        if not (isinstance(self.method, tuple(HOSTS.values())) or self.declared == LOSSES):
            possible, given = ", ".join(HOSTS), type(self.method).__name__
            raise ValueError(f"+metavd needs a host with loss and support_loss: {possible}; not {given}")

    @property
    def declared(self) -> set[str]:
        """The losses that the host has as fields."""
        return LOSSES & set(getattr(self.method, "__dataclass_fields__", ()))

    @property
    def inner(self) -> core.Method:
        mine = {"loss": self.elbo, "support_loss": self.noisy_support}
        return replace(self.method, **{name: mine[name] for name in self.declared})

    @property
    def label(self) -> str:
        name = {"hyper": "MetaVD", "ensemble": "EnsembleVD", "naive": "VD"}[self.family]
        return f"{self.method.label}+{name}"

    @property
    def predictor(self) -> Predictor:
        """h, and how the server moves ψ and e."""
        rows = self.hyper_momentum if self.family == "ensemble" else self.embedding_momentum  # there they are ρ
        of_net, of_rows = (
            core.SGD(self.hyper_lr, momentum, self.hyper_decay) for momentum in (self.hyper_momentum, rows)
        )
        return Predictor(self.family, self.embedding, self.width, self.depth, of_net, of_rows, self.hyper_clip,
                         self.moves == "all", self.noise_param)  # fmt: skip

    # --- one client
    def leaf(self, here: core.Here) -> str:
        return f"{linear_layer(here.model, self.layer)}.weight"

    def start(self, here: core.Here) -> core.Params:
        return {**self.inner.start(here), RHO: here.own.rho}

    def noisy(self, params: core.Params, here: core.Here, draw: int, count: int) -> core.Here:
        """`here` with a model whose layer is noisy."""
        if count == 0:
            return here
        name = self.leaf(here)
        spread = dropout.variance(params[RHO], params[name], self.noise_param)  # (3)
        layer, key = name.removesuffix(".weight"), core.fold(here.key, draw)
        model: Any = Noisy(here.model, layer, spread, key, count)
        return replace(here, model=model)

    def elbo(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.method.loss(params, batch, self.noisy(params, here, QUERY, self.draws))
        theta = params[self.leaf(here)]
        each = dropout.divergence(params[RHO], theta, self.noise_param, self.prior)
        weight = theta.numel() / here.n.clamp(min=1) if self.kl == "elbo" else self.beta
        return value + weight * here.own.warmth * each.mean(), buffers  # (4)

    def noisy_support(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """The adaptation that MAML simulates: no divergence."""
        return self.method.support_loss(params, batch, self.noisy(params, here, SUPPORT, self.draws))

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        plain = {n: p for n, p in carry.params.items() if n != RHO}
        sent, personal = self.inner.message(replace(carry, params=plain), here)
        return dropout.apart(sent, self.leaf(here), carry.params[RHO], here.client), personal

    def passes(self) -> core.Passes:
        return core.holding(self.inner.passes(), leaves=self.layer_numbers)

    def adapt(self, epochs: int) -> core.Passes:
        passes = self.inner.adapt(epochs)
        if self.test_noise == "fit_embedding" and epochs:
            passes = fitting(self.predictor, self.elbo, RHO, self.fit_steps, self.fit_lr), *passes
        if self.test_noise == "floor" and epochs:
            passes = core.opened(passes, dropout.quiet(RHO))
        return core.holding(passes, leaves=self.layer_numbers)

    def layer_numbers(self, model: core.Network) -> int:
        """Of ρ and of the variance that it gives the Gaussian layer's weights."""
        weight: Tensor = model.module.get_submodule(linear_layer(model, self.layer)).weight  # type: ignore[assignment]
        return 2 * weight.numel()

    def prepare(self) -> core.Passes:
        passes = self.inner.prepare()
        if self.test_noise == "floor":
            passes = core.opened(passes, dropout.quiet(RHO))
        return core.holding(passes, leaves=self.layer_numbers)

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        if self.test_draws == 0:
            return self.inner.predict(carry, x, here)
        models = [self.noisy(carry.params, here, TEST + i, 1) for i in range(self.test_draws)]
        return core.mixture(torch.stack([self.inner.predict(carry, x, noisy) for noisy in models]), here.model.task)

    # --- the server
    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        leaf = f"{linear_layer(model, self.layer)}.weight"
        source = self.predictor.first(params[leaf], facts.clients, facts.key)
        warmth = params[leaf].new_tensor(dropout.ramp(0, self.anneal))
        return State(self.inner.init(model, params, facts), source, warmth, leaf)

    def offer(self, state: State, client: Tensor | None) -> tuple[Any, Own]:
        shared, _ = self.inner.offer(state.host, client)
        rho, lent = self.predictor.serve(state.source, client, state.params[state.leaf].shape, self.test_noise)
        return shared, Own(rho, state.warmth, lent)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        host = self.inner.combine(state.host, dropout.together(total, state.leaf, self.noise_param), now)  # (5)
        bag, like = total[dropout.LAYER], state.source.embedding
        share = (bag.value["weight"] / bag.value["weight"].sum()).to(like)  # g^m
        source = self.predictor.step(state.source, bag.client.to(like.device), share, bag.value["rho"].to(like))
        warmth = state.warmth.new_tensor(dropout.ramp(now.round, self.anneal * now.rounds))
        return State(host, source, warmth, state.leaf)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        """Appendix H: the mean divergence and dropout rate of the cohort's weights after training."""
        value = total[dropout.LAYER].value
        pair = (value["rho"], value["theta"], self.noise_param)
        mine = {"kl": dropout.divergence(*pair, self.prior).mean(), "dropout_rate": dropout.rate(*pair).mean()}
        return {**self.inner.report(state.host, dropout.together(total, state.leaf, self.noise_param)), **mine}


__all__ = ["MetaVD"]
