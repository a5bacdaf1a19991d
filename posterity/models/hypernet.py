"""Where a client's noise comes from: a hyper-network and an embedding per client, kept and trained by the server.

hyper      ρ^m = h_ψ(e^m), fully connected with LeakyReLU between the layers
ensemble   ρ^m = e^m: a table, every row trained by its own client alone
naive      ρ^m = ψ: one for all
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from posterity.core.draw import normal
from posterity.core.dropout import centred
from posterity.core.optimise import SGD, clipped
from posterity.core.tree import Tree, record, tree_map, tree_rows

FAMILIES = ("hyper", "ensemble", "naive")
SLOPE = 0.1  # of LeakyReLU
Weights = dict[str, Tensor]


@record
class Source:
    """What the server keeps."""

    net: Weights  # ψ
    embedding: Tensor  # (clients, length): e
    velocity: Tree  # momenta of ψ and e


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
    of_net: SGD
    of_embedding: SGD
    clip: float | None

    def first(self, weight: Tensor, clients: int, key: Tensor) -> Source:
        """The source before the first round, for a layer's weight; what is drawn depends on `key`."""
        net, embedding = Weights(), weight.new_zeros((clients, 1))
        if self.family == "hyper":
            length = 1 + clients // 4 if self.length is None else self.length
            net = first_weights(int(key[0]), (length, *[self.width] * self.depth, weight.numel()), weight)
            embedding = normal(key, (clients, length), torch.float64).to(weight)
        elif self.family == "ensemble":
            embedding = weight.new_zeros((clients, weight.numel()))
        else:
            net = {"rho": weight.new_zeros(weight.numel())}
        return Source(net, embedding, (self.of_net.open(net), self.of_embedding.open(embedding)))

    def ask(self, net: Weights, rows: Tensor, shape: torch.Size) -> Tensor:
        """ρ (..., *shape) of embeddings (..., length)."""
        if self.family == "hyper":
            raw = evaluate(net, rows)
        else:
            raw = rows if self.family == "ensemble" else net["rho"].expand(*rows.shape[:-1], -1)
        return centred(raw).reshape(*rows.shape[:-1], *shape)

    def step(self, source: Source, clients: Tensor, share: Tensor, rho: Tensor) -> Source:
        """ψ and e moved along Σ_m g^m J(e^m)ᵀ (ρ^m_* − ρ^m): one product for the cohort; other rows stay."""
        shape, rows = rho.shape[1:], source.embedding[clients]
        made: Any = vjp(lambda net, rows: self.ask(net, rows, shape), source.net, rows)
        before, pull = made
        slope = pull(share.reshape(-1, *[1] * len(shape)) * (rho - before))  # g^m Δρ^m
        of_net, of_rows = clipped(tree_map(torch.neg, slope), self.clip)
        net, net_speed = self.of_net.update(of_net, source.velocity[0], source.net)
        rows, speed = self.of_embedding.update(of_rows, tree_rows(source.velocity[1], clients), rows)
        table, speeds = tree_map(
            lambda old, new: old.index_copy(0, clients, new), (source.embedding, source.velocity[1]), (rows, speed)
        )
        return replace(source, net=net, embedding=table, velocity=(net_speed, speeds))
