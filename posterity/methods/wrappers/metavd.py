"""MetaVD: a hyper-network on the server predicts how noisy each client's weights are, and so how much each one counts.

One linear layer has Gaussian weights w^m ~ N(θ, diag v^m) with a variance of its own for every client,

    ρ^m = h_ψ(e^m),   v^m = exp ρ^m   (or α^m θ² with α^m = exp ρ^m)                                              # (3)

A client receives θ and its ρ^m and trains both on the mean loss under the noise plus β times the mean divergence,

    ℓ = E_ε[−log p(y | x, θ + √v ε)] + β (1/K) Σ_k ½ log(1 + θ̄_k²/v_k)          θ̄: no gradient                  # (4)

The server weights that layer by precision, hands everything else to its host (FedAvg, Reptile, MAML, Per-FedAvg), and
moves the hyper-network along what the clients did to their ρ:

    θ^agg = Σ_m g^m θ^m/v^m ÷ Σ_m g^m/v^m                                                                         # (5)
    ψ ← ψ + η Σ_m g^m J_ψ(e^m)ᵀ Δρ^m,   e^m ← e^m + η g^m J_e(e^m)ᵀ Δρ^m,   Δρ^m = ρ^m_* − ρ^m           # Algorithm 1

In training ψ and the embeddings never leave the server: a client costs K numbers more each way than its host.
A newcomer that fits its embedding (`test_noise = fit_embedding`) is lent ψ.

Reference: Jeon, Hong, Yun and Kim, "Federated learning via meta-variational dropout", NeurIPS 2023.

Differs from the paper (errata of the specification):
  M1, M3  the extra 1/M of (5) and of the step of ψ are dropped: ten equal models would shrink to a tenth.
  M2      the clients descend on −ELBO; as printed they ascend.
  M4      J_eᵀ Δρ: ψ is no function of e.   M8  three hidden layers, no exponential at the output.
  M5      ρ = log v by default: with α (`noise_param = alpha`) near-zero weights win (5).
  M6      the mean divergence times β, annealed, as released; `kl = elbo` weighs by K/n.
  M11     at test the personal noise is replaced by the floor, as released (`test_noise`); the mean weights predict
          (`test_draws = 0`), where the release averages the logits of three draws.
Momentum and decay move the embeddings of the cohort only. The first ψ and e depend on the seed.
`family = ensemble` learns every ρ^m without a hyper-network, `naive` one ρ for all: the paper's ablations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from posterity.core import dropout
from posterity.core.draw import fold
from posterity.core.hyper import check_fields, hyper, within
from posterity.core.method import Batch, Carry, Facts, Here, Message, Method, Now, Params, Pass, Personal
from posterity.core.monoid import Bag, Mean
from posterity.core.optimise import SGD
from posterity.core.tree import STATIC, Tree, record
from posterity.core.wrapper import Wrapper
from posterity.models.hypernet import FAMILIES, Predictor, Source
from posterity.models.noisy import Noisy, linear_layer

RHO = "metavd.rho"  # the client's leaf beside the network's
FIT = "metavd.embedding"  # what a newcomer fits, kept between steps
HOSTS = "fedavg, reptile, maml, perfedavg"
CODE = "released code 5d70c2b"
QUERY, SUPPORT, TEST = 1, 2, 3  # draws of one call
TEST_NOISE = ("floor", "personal", "mean_embedding", "fit_embedding")


@record
class State:
    host: Tree
    source: Source  # ψ, e and their momenta
    leaf: str = field(metadata={STATIC: True})  # the weight that is Gaussian

    @property
    def params(self) -> Params:
        """θ."""
        params: Params = self.host.params
        return params


@record
class Own:
    host: Tree
    rho: Tensor  # ρ^m
    fit: Tree = ()  # newcomers that fit their embedding are lent ψ


@dataclass(frozen=True)
class MetaVD(Wrapper):
    layer: str = hyper("", "the Gaussian layer; none named: the last linear layer before the head", "paper §4")
    noise_param: str = hyper("log_variance", "what ρ is the logarithm of: v or α", f"{CODE}; erratum M5", dropout.FORMS)
    beta: float = hyper(10.0, "β: weight of the mean divergence", f"{CODE}; the paper searches 1 … 15")
    anneal: int = hyper(20, "rounds over which β rises from near 0", f"{CODE}: 2 % of 1000 rounds")
    kl: str = hyper("mean", "β times the mean divergence, or K/n times it (β unused)", "erratum M6", ("mean", "elbo"))
    prior: str = hyper("hierarchical", "prior of the weights", "paper §3.2", dropout.PRIORS)
    draws: int = hyper(3, "noise draws of a step, logits averaged; 0: no noise", CODE)
    family: str = hyper("hyper", "where ρ comes from: hyper-network, one per client, one for all", "§4.2", FAMILIES)
    embedding: int | None = hyper(None, "length of e; none: 1 + clients/4", CODE)
    width: int = hyper(200, "units of the hyper-network's hidden layers", "appendix; erratum M8")
    depth: int = hyper(3, "hidden layers of the hyper-network", f"{CODE}; erratum M8")
    hyper_lr: float = hyper(0.9, "η: step size of ψ and e", CODE)
    hyper_momentum: float = hyper(0.6, "momentum of ψ", CODE)
    embedding_momentum: float = hyper(0.3, "momentum of e", CODE)
    hyper_decay: float = hyper(5e-4, "weight decay of ψ and e", CODE)
    hyper_clip: float | None = hyper(100.0, "longest step of ψ and e together", CODE)
    test_noise: str = hyper("floor", "noise at scoring: the floor for all, or the client's", CODE, TEST_NOISE)
    test_draws: int = hyper(0, "draws whose probabilities are averaged; 0: the mean weights", "ours; M11")
    fit_steps: int = hyper(10, "steps on e for newcomers (fit_embedding)", "ours")
    fit_lr: float = hyper(0.1, "step size on e for newcomers (fit_embedding)", "ours")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, beta=(0, None), anneal=(0, None), draws=(0, None), test_draws=(0, None))
        within(self, embedding=(1, None), width=(1, None), depth=(1, None), fit_steps=(1, None), fit_lr=(0, None))
        within(self, hyper_lr=(0, None), hyper_momentum=(0, 1), embedding_momentum=(0, 1), hyper_decay=(0, None))
        within(self, hyper_clip=(0, None))
        names = {f.name for f in fields(self.method)} if is_dataclass(self.method) else set()
        if not {"loss", "support_loss"} <= names:
            given = type(self.method).__name__
            raise ValueError(f"+metavd needs a host with loss and support_loss ({HOSTS}); {given} has not both")

    @property
    def inner(self) -> Method:
        method: Method = replace(self.method, loss=self.elbo, support_loss=self.noisy_support)
        return method

    @property
    def label(self) -> str:
        name = {"hyper": "MetaVD", "ensemble": "EnsembleVD", "naive": "VD"}[self.family]
        return f"{self.method.label}+{name}"

    # --- the client's objective ----------------------------------------------------------------------------------
    def noisy(self, params: Params, here: Here, draw: int, count: int) -> Here:
        """`here` with a model whose layer is noisy."""
        if count == 0:
            return here
        layer = linear_layer(here.model, self.layer)
        spread = dropout.variance(params[RHO], params[f"{layer}.weight"], self.noise_param)  # (3)
        return replace(here, model=Noisy(here.model, layer, spread, fold(here.key, draw), count))

    def elbo(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = self.method.loss(params, batch, self.noisy(params, here, QUERY, self.draws))
        if self.kl == "mean" and self.beta == 0:
            return value, buffers
        theta = params[f"{linear_layer(here.model, self.layer)}.weight"]
        each = dropout.divergence(params[RHO], theta, self.noise_param, self.prior)
        weight = theta.numel() / here.n.clamp(min=1) if self.kl == "elbo" else self.beta
        return value + weight * dropout.ramp(here.round, self.anneal).to(value) * each.mean(), buffers  # (4)

    def noisy_support(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The adaptation that MAML simulates: no divergence."""
        noisy = self.noisy(params, here, SUPPORT, self.draws)
        found: tuple[Tensor, Params] = self.method.support_loss(params, batch, noisy)
        return found

    # --- the server ----------------------------------------------------------------------------------------------
    @property
    def predictor(self) -> Predictor:
        momenta = (self.hyper_momentum, self.embedding_momentum)
        movers = [SGD(self.hyper_lr, m, self.hyper_decay) for m in momenta]
        shape = (self.embedding, self.width, self.depth)
        return Predictor(self.family, *shape, movers[0], movers[1], self.hyper_clip)

    def init(self, model: Any, params: Params, facts: Facts) -> State:
        leaf = f"{linear_layer(model, self.layer)}.weight"
        source = self.predictor.first(params[leaf], facts.clients, facts.key)
        return State(self.inner.init(model, params, facts), source, leaf)

    def offer(self, state: State, client: Tensor | None) -> tuple[Any, Own]:
        shared, own = self.inner.offer(state.host, client)
        net, table, weight = state.source.net, state.source.embedding, state.params[state.leaf]
        if client is not None:
            row = table.index_select(0, client[None])[0]
            return shared, Own(own, self.predictor.ask(net, row, weight.shape))  # (3)
        if self.test_noise in ("floor", "personal"):
            return shared, Own(own, torch.full_like(weight, dropout.LEAST))
        lent = {"net": net, FIT: table.mean(0)} if self.test_noise == "fit_embedding" else ()
        return shared, Own(own, self.predictor.ask(net, table.mean(0), weight.shape), lent)

    def for_host(self, state: State, total: Message) -> Message:
        """The host's total, with the Gaussian layer weighted by precision."""
        mean, value = total["params"], total["metavd"].value
        log_v = dropout.log_variance(value["rho"], value["theta"], self.noise_param)
        weights, _ = dropout.precision_weights(value["weight"], log_v)
        layer = Mean.fold(Mean(weights, value["theta"]))  # (5)
        each = dict.fromkeys(mean.value, mean.weight)
        params = Mean({**each, state.leaf: layer.weight}, {**mean.value, state.leaf: layer.value})
        return {**{n: part for n, part in total.items() if n != "metavd"}, "params": params}

    def combine(self, state: State, total: Message, now: Now) -> State:
        bag, like = total["metavd"], state.source.embedding
        if not len(bag.client):
            raise ValueError("the mean of nothing: no client sent a message")
        host = self.inner.combine(state.host, self.for_host(state, total), now)
        share = (bag.value["weight"] / bag.value["weight"].sum()).to(like)  # g^m
        clients, rho = bag.client.to(like.device), bag.value["rho"].to(like)
        return State(host, self.predictor.step(state.source, clients, share, rho), state.leaf)  # Algorithm 1

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        value = total["metavd"].value
        pair = (value["rho"], value["theta"], self.noise_param)
        mine = {"kl": dropout.divergence(*pair, self.prior).mean(), "dropout_rate": dropout.rate(*pair).mean()}
        return {**self.inner.report(state.host, self.for_host(state, total)), **mine}

    # --- one client ----------------------------------------------------------------------------------------------
    def join(self, here: Here) -> Personal:
        return self.inner.join(replace(here, own=here.own.host))

    def start(self, here: Here) -> Params:
        return {**self.inner.start(replace(here, own=here.own.host)), RHO: here.own.rho}

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        leaf = f"{linear_layer(here.model, self.layer)}.weight"
        plain = {n: p for n, p in carry.params.items() if n != RHO}
        sent, personal = self.inner.message(replace(carry, params=plain), replace(here, own=here.own.host))
        mean = sent["params"]
        rest = {n: p for n, p in mean.value.items() if n != leaf}
        mine = {"weight": mean.weight, "theta": mean.value[leaf], "rho": carry.params[RHO]}
        return {**sent, "params": Mean(mean.weight, rest), "metavd": Bag(here.client, mine)}, personal

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        passes = self.inner.adapt(epochs)
        if self.test_noise == "fit_embedding" and epochs:
            how: dict[str, Any] = {"epochs": self.fit_steps, "most": self.fit_steps, "batch": 64, "learns": False}
            return Pass(self.fit_step, self.lend, self.lend, **how), *passes
        return _opened(passes, _floor) if self.test_noise == "floor" else passes

    def lend(self, carry: Carry, here: Here) -> Carry:
        """A newcomer's noise from the embedding that it has fitted, at first the mean one; members keep theirs."""
        if here.own.fit == ():
            return carry
        row: Any = carry.kept.get(FIT, here.own.fit[FIT])
        rho = self.predictor.ask(here.own.fit["net"], row, carry.params[RHO].shape)
        return Carry({**carry.params, RHO: rho}, {**carry.kept, FIT: row}, carry.opt)

    def fit_step(self, carry: Carry, batch: Batch, here: Here) -> Carry:
        if here.own.fit == ():
            return carry

        def value(row: Tensor) -> Tensor:
            rho = self.predictor.ask(here.own.fit["net"], row, carry.params[RHO].shape)
            return self.elbo({**carry.params, RHO: rho}, batch, here)[0] * (batch.mask.sum() > 0)

        row: Any = carry.kept[FIT]
        return replace(carry, kept={**carry.kept, FIT: row - self.fit_lr * grad(value)(row)})

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        here = replace(here, own=here.own.host)
        if self.test_draws == 0:
            return self.inner.predict(carry, x, here)
        models = [self.noisy(carry.params, here, TEST + i, 1) for i in range(self.test_draws)]
        each = torch.stack([self.inner.predict(carry, x, noisy) for noisy in models])
        return dropout.mixture(each, here.model.task)


def _floor(carry: Carry, here: Here) -> Carry:
    """The carry with the least noise everywhere."""
    return replace(carry, params={**carry.params, RHO: torch.full_like(carry.params[RHO], dropout.LEAST)})


def _opened(passes: tuple[Pass, ...], change: Any) -> tuple[Pass, ...]:
    """`passes` after `change`; without passes, one that does nothing else."""
    if not passes:
        return (Pass(lambda carry, batch, here: carry, open=change, batch=1, most=1, shuffle=False, learns=False),)
    first = passes[0]
    return (replace(first, open=lambda carry, here: first.open(change(carry, here), here)), *passes[1:])
