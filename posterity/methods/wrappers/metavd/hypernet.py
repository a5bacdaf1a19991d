"""h_ψ of (3) and Algorithm 1: a hyper-network and an embedding per client, kept and trained by the server.

hyper      ρ^m = h_ψ(e^m), fully connected with LeakyReLU between the layers
ensemble   ρ^m = e^m: a table, every row trained by its own client alone
naive      ρ^m = ψ: one for all

The tables start at the floor, and weight decay pulls them to ρ = 0; that of a hyper-network pulls ρ to the floor.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vjp

from posterity import core
from posterity.methods.wrappers.metavd.dropout import LEAST, centred

FAMILIES = ("hyper", "ensemble", "naive")
SLOPE = 0.1  # of LeakyReLU
MOVES = ("cohort", "all")
TEST_NOISE = ("floor", "personal", "mean_embedding", "fit_embedding")
FITTED = "fitted embedding"  # what a newcomer has fitted, in `kept`
Weights = dict[str, Tensor]


@core.record
class Source:
    """What the server keeps."""

    net: Weights  # ψ
    embedding: Tensor  # (clients, length): e
    velocity: core.Tree  # momenta of ψ and e


@core.record
class Lent:
    """What a newcomer needs to fit an embedding of its own."""

    net: Weights
    embedding: Tensor  # (length,): the first guess


def first_weights(seed: int, widths: tuple[int, ...], like: Tensor) -> Weights:
    """Weights and biases of layers between `widths`, uniform within 1/√fan-in as PyTorch draws them.

    Made once, by the server: a generator of its own is as good as keys here, and much faster for millions of numbers.
    """
    lot, found = torch.Generator().manual_seed(seed), Weights()
    for i, (before, after) in enumerate(pairwise(widths)):
        for name, shape in (("weight", (after, before)), ("bias", (after,))):
            draw = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=lot)
            found[f"{i}.{name}"] = (draw / before**0.5).to(like)
    return found


def evaluate(net: Weights, embedding: Tensor) -> Tensor:
    """(..., embedding) to (..., output)."""
    layers = len(net) // 2
    for i in range(layers):
        embedding = F.linear(embedding, net[f"{i}.weight"], net[f"{i}.bias"])
        embedding = F.leaky_relu(embedding, SLOPE) if i < layers - 1 else embedding
    return embedding


@dataclass(frozen=True)
class Predictor:
    """How a source is made, asked and moved; tensors of noise have the shape of the weight that they belong to."""

    family: str
    length: int | None  # of an embedding; None: 1 + clients/4
    width: int
    depth: int
    of_net: core.SGD
    of_embedding: core.SGD
    clip: float | None
    everybody: bool = False  # whether momentum and decay move the embeddings of absent clients, too
    form: str = "log_variance"  # what ρ is the logarithm of

    def first(self, weight: Tensor, clients: int, key: Tensor) -> Source:
        """The source before the first round, for a layer's weight; what is drawn depends on `key`."""
        net, embedding = Weights(), weight.new_zeros((clients, 1))
        if self.family == "hyper":
            length = 1 + clients // 4 if self.length is None else self.length
            net = first_weights(int(key[0]), (length, *[self.width] * self.depth, weight.numel()), weight)
            embedding = core.normal(key, (clients, length), torch.float64).to(weight)
        elif self.family == "ensemble":
            embedding = weight.new_full((clients, weight.numel()), LEAST)
        else:
            net = {"rho": weight.new_full((weight.numel(),), LEAST)}
        return Source(net, embedding, (self.of_net.open(net), self.of_embedding.open(embedding)))

    def ask(self, net: Weights, rows: Tensor, shape: torch.Size) -> Tensor:
        """ρ (..., *shape) of embeddings (..., length)."""
        if self.family == "hyper":
            rho = centred(evaluate(net, rows), self.form)
        else:
            rho = rows if self.family == "ensemble" else net["rho"].expand(*rows.shape[:-1], -1)
        return rho.reshape(*rows.shape[:-1], *shape)

    def serve(self, source: Source, client: Tensor | None, shape: torch.Size, noise: str) -> tuple[Tensor, core.Tree]:
        """A client's ρ; and a newcomer's, which has no embedding, with what it is lent to fit one."""
        if client is not None:
            return self.ask(source.net, source.embedding.index_select(0, client[None])[0], shape), ()
        row = source.embedding.mean(0)
        rho = self.ask(source.net, row, shape)
        if noise in ("floor", "personal") and self.family != "naive":
            rho = torch.full_like(rho, LEAST)
        return rho, Lent(source.net, row) if noise == "fit_embedding" else ()

    def step(self, source: Source, clients: Tensor, share: Tensor, rho: Tensor) -> Source:
        """ψ and e moved along Σ_m g^m J(e^m)ᵀ (ρ^m_* − ρ^m): one product for the cohort.

        Other rows stay, or momentum and decay move them without a slope of their own (`everybody`).
        """
        shape, rows = rho.shape[1:], source.embedding[clients]
        made: Any = vjp(lambda net, rows: self.ask(net, rows, shape), source.net, rows)
        before, pull = made
        slope = pull(share.reshape(-1, *[1] * len(shape)) * (rho - before))  # g^m Δρ^m
        of_net, of_rows = core.clipped(core.tree_map(torch.neg, slope), self.clip)
        net, net_speed = self.of_net.update(of_net, source.velocity[0], source.net)
        table, speeds = source.embedding, source.velocity[1]
        if self.everybody:
            table, speeds = self.of_embedding.update(_placed(torch.zeros_like(table), clients, of_rows), speeds, table)
        else:
            moved = self.of_embedding.update(of_rows, core.tree_rows(speeds, clients), rows)
            table, speeds = _placed((table, speeds), clients, moved)
        return replace(source, net=net, embedding=table, velocity=(net_speed, speeds))


def _placed(tree: core.Tree, clients: Tensor, rows: core.Tree) -> core.Tree:
    return core.tree_map(lambda old, new: old.index_copy(0, clients, new), tree, rows)


def fitting(asked: Predictor, loss: core.Loss, leaf: str, steps: int, lr: float, batch: int = 64) -> core.Pass:
    """A newcomer fits its embedding by `steps` steps on `loss`, and `leaf` becomes the ρ of it.

    `here.own.lent` is what the server lends it, or () for a member, which keeps the ρ that it has.
    """

    def edge(carry: core.Carry, here: core.Here) -> core.Carry:
        if here.own.lent == ():
            return carry
        row: Any = carry.kept.get(FITTED, here.own.lent.embedding)
        rho = asked.ask(here.own.lent.net, row, carry.params[leaf].shape)
        return core.Carry({**carry.params, leaf: rho}, {**carry.kept, FITTED: row}, carry.opt)

    def step(carry: core.Carry, data: core.Batch, here: core.Here) -> core.Carry:
        if here.own.lent == ():
            return carry

        def value(row: Tensor) -> Tensor:
            rho = asked.ask(here.own.lent.net, row, carry.params[leaf].shape)
            return loss({**carry.params, leaf: rho}, data, here)[0] * (data.mask.sum() > 0)

        row: Any = carry.kept[FITTED]
        return replace(carry, kept={**carry.kept, FITTED: row - lr * grad(value)(row)})

    return core.Pass(step, edge, edge, epochs=steps, max_steps=steps, batch=batch, learns=False)
