"""pFedGP: a shared embedding under Gaussian-process classifiers that every client builds anew from its own data.

A client arranges its classes in a binary tree: the class means of its embeddings are split in two by 2-means, and each
half again, until every leaf is one class. A node is a binary Gaussian-process classifier for "left" (κ = +½) against
"right" (κ = −½) on the samples of the classes below it, with the kernel

    k(u, v) = s exp(−‖u − v‖² / 2ℓ²),   u = z / ‖z‖,   K = k(U, U) + δI                                     # (a)

Pólya-Gamma variables ω make it conditionally Gaussian. Gibbs sampling, several chains of a few steps, draws by turns

    f | ω ~ N(Σ̃κ, Σ̃),   Σ̃ = K − K√Ω S⁻¹ √Ω K,   S = I + √Ω K √Ω                                            # (b)
    ω | f ~ PG(1, f)                                                                                        # (c)

and the last ω of each chain gives the prediction at a new point, averaged over the chains:

    f* | ω ~ N(k*ᵀ(κ − √Ω S⁻¹ √Ω K κ),  k** − k*ᵀ√Ω S⁻¹ √Ω k*),   k** = s + δ                               # (d)
    p(left) = E σ(f*),   p(right) = E σ(−f*)                                                                # (e)
    p(y | x) = product of the branches on the way to y                                                      # (f)

The client trains its embedding on −log p(y | x) of one half of each class given the other half (g); nothing flows
through ω. The server takes the plain mean of the embeddings (h). For a prediction all training samples are given.

Reference: Achituve, Shamsian, Navon, Chechik and Fetaya, "Personalized federated learning with Gaussian processes",
NeurIPS 2021. The letters (a) to (h) are ours: the paper's own numbers were not at hand.

Differs from the paper: only the full model, without inducing points. (b) and (d) are written with S, whose smallest
eigenvalue is 1, instead of (K + Ω⁻¹)⁻¹: ω is never divided by, and rows that are not at a node have ω = 0. A factor of
K itself is needed for draws of the prior alone: δ is the first of 1, 10 and 100 times `jitter` for which there is one.
The trees' 2-means starts from the two classes that are farthest apart, instead of 50 random starts, so that a tree is a
function of the embedding. The sum over the nodes is divided by the predicted samples, so that the step size does not
depend on a client's size. PG(1, c) is drawn as the first three terms of its infinite sum of exponentials and one more
with the mean and variance of all that follow: both moments of a draw are exact, the third to 1e-4. The released code
takes exp(E log σ(f*)) for a probability, and one minus it for "right", which is too low for "left" (0.29 instead of 0.5
where nothing is known). `inference="vb"` replaces the chains by one mean field, ω = tanh(c/2) / 2c with c² = E f²,
which draws nothing. A class of one sample is given, never predicted. Classes that a client has not seen have a
probability of about 0 (e⁻³⁰). Kernels and their factors are exact with `--precision tf32`, too, but in steps that are
compiled. The head of the network is neither trained nor sent, and clients keep nothing between rounds: a newcomer
builds its classifier from its labelled data without training; one without data finds all classes equally likely. Second
derivatives of the loss are not available.

A node's mathematics is in `node.py`, with the draws of `polya_gamma.py`.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from posterity import core
from posterity.methods.fedper import FedPer, State
from posterity.methods.pfedgp import node
from posterity.methods.pfedgp.memory import FIELD, HELD, at_once, conditioning_room, training_room

AUTHORS = "authors' code"
AUTHORS_TRAINING = core.Training(lr=0.05, epochs=3, momentum=0.9, weight_decay=1e-3, clip=50.0)  # of CIFAR-10
CHAINS = 1  # folded into the key of a step: the chains' draws are not dropout's


@core.record
class Split:
    """Half of each class, and the other half: embeddings, which rows are real, and their sides (nodes, rows)."""

    given: Tensor  # (m, d)
    asked: Tensor  # (t, d)
    mask: Tensor  # (m,)
    given_sides: Tensor  # (nodes, m)
    asked_sides: Tensor  # (nodes, t)


def halves(u: Tensor, batch: core.Batch, sides: Tensor) -> Split:
    """Of each class the first, third, … sample is given and the others are asked: a class of one is given.

    Either half is moved to the front and cut to the most rows that it can have: a quarter of the kernel's numbers.
    """
    rows, classes = len(batch.mask), sides.shape[1]
    hot = core.one_hot(batch.y, classes, batch.mask)
    rank = ((hot.cumsum(0) - 1) * hot).sum(-1)  # of a sample within its class
    given = batch.mask * (rank % 2 == 0).to(batch.mask)
    asked = batch.mask - given
    front, other = (torch.argsort(1 - half, stable=True)[:most] for half, most in
                    ((given, min(rows, (rows + classes) // 2)), (asked, max(1, rows // 2))))  # fmt: skip
    all_sides = sides.to(u) @ hot.T
    return Split(u[front], u[other], given[front], (all_sides * given)[:, front], (all_sides * asked)[:, other])


@dataclass(frozen=True)
class PFedGP(core.Method):
    label = "pFedGP"
    reference = "Achituve et al., NeurIPS 2021"
    absent = "cohort only: clients keep nothing"
    outside = "nobody: a classifier needs a client's labelled data, so that all classes are equally likely"

    local: core.Training = core.hyper(
        AUTHORS_TRAINING, "how the clients train; an epoch is one step on all data, so batch is not used", AUTHORS
    )
    inference: str = core.hyper("gibbs", "chains of draws, or one mean field without any", AUTHORS, ("gibbs", "vb"))
    chains: int = core.hyper(20, "chains of a node in training (gibbs)", AUTHORS, ge=1)
    test_chains: int = core.hyper(30, "chains of a node for a prediction (gibbs)", AUTHORS, ge=1)
    gibbs_steps: int = core.hyper(5, "steps of a chain, or of the mean field", AUTHORS, ge=1)
    scale: float = core.hyper(8.0, "s: variance of the kernel", AUTHORS, gt=0)
    length: float = core.hyper(1.0, "ℓ: length of the kernel", AUTHORS, search=(0.1, 10.0, "log"), gt=0)
    jitter: float = core.hyper(
        1e-3, "added to the kernel's diagonal; up to 100 times as much if need be", AUTHORS, gt=0
    )

    offer = FedPer.offer
    combine = FedPer.combine

    # --- server
    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if facts.classes < 2:
            what = f"{facts.classes} classes" if facts.classes else "a regression"
            raise ValueError(f"pFedGP builds a tree of classes and needs two or more; {what} was given: take fedavg")
        return State(params, model.head_names)

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        said = f"pFedGP does not use the head of the network {model.name!r}: it is neither trained nor sent"
        if model.base_names:
            return (said,)
        return (said, f"pFedGP learns nothing here: all of the network {model.name!r} is head")

    # --- client
    def start(self, here: core.Here) -> core.Params:
        return {n: here.shared.base.get(n, p) for n, p in here.initial.items()}

    def passes(self) -> core.Passes:
        sums = core.gather("classes", self.class_sums, anew=True, batch=None)
        learn = replace(self.local.descend(self.predictive_loss, core.base), batch=None, scratch=self.training_scratch)
        return replace(sums, close=self.plant), learn

    def prepare(self) -> core.Passes:
        """The classifier from all training data, before any prediction."""
        return (core.Pass(self.condition, batch=None, shuffle=False, learns=False, scratch=self.conditioning_scratch),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        sent = {n: p for n, p in carry.params.items() if n in here.model.base_names}
        return {"params": core.Mean(torch.ones_like(here.n), sent)}, ()  # (h)

    def class_sums(self, params: core.Params, batch: core.Batch, here: core.Here) -> dict[str, Tensor]:
        u = node.unit(here.model.features(params, batch.x)[0])
        return core.sum_classes(u, batch.y, batch.mask, here.model.classes)

    def plant(self, carry: core.Carry, here: core.Here) -> core.Carry:
        """The tree of this round; it does not change while the embedding is trained."""
        sums = carry.kept["classes"]
        sides = node.grow_tree(sums["sum"] / sums["count"].clamp(min=1)[:, None], sums["count"])
        return replace(carry, kept={**carry.kept, "sides": sides})

    # --- training
    def predictive_loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """−log p of the asked half given the other. Nodes are differentiated one group after another, to save memory:
        the loss returned is linear in the embeddings, with its value and slope there."""
        z, buffers = here.model.features(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
        half = halves(node.unit(z), batch, here.kept["sides"])
        given, asked = half.given.detach(), half.asked.detach()
        with core.exact_products(z):  # kernels rounded to ten bits have no factors
            delta, omega = self.augment(given, half.mask, half.given_sides, core.fold(here.key, CHAINS), self.chains)
            nodes, chains, rows = omega.shape
            of_node = grad_and_value(partial(self.node_loss, half.mask, delta), argnums=(0, 1))
            slopes, values = vmap(of_node, (None, None, 0, 0, 0), chunk_size=at_once(nodes, chains, rows, self.held))(
                given, asked, half.given_sides, half.asked_sides, omega
            )
        count = (half.asked_sides != 0).any(0).to(z).sum().clamp(min=1)
        linear = (slopes[0].sum(0) * (half.given - given)).sum() + (slopes[1].sum(0) * (half.asked - asked)).sum()
        return (values.sum() + linear) / count, buffers  # (g)

    def node_loss(
        self, mask: Tensor, delta: Tensor, given: Tensor, asked: Tensor, sides: Tensor, wanted: Tensor, omega: Tensor
    ) -> Tensor:
        """Σ −log p of the side that each asked sample takes at one node; ω (chains, m) is 0 off the node."""
        k = node.alone(node.kernel(given, given, self.scale, self.length), mask) + torch.diag(delta.expand(len(mask)))
        cross = node.kernel(given, asked, self.scale, self.length)
        look = vmap(lambda each: node.predictive(k, cross, self.scale + delta, 0.5 * sides, each))
        left, right = node.branch_log_probabilities(*look(omega))
        return -(torch.where(wanted > 0, left, right) * wanted.abs()).sum()

    def augment(self, u: Tensor, mask: Tensor, sides: Tensor, key: Tensor, chains: int) -> tuple[Tensor, Tensor]:
        """δ, and ω (nodes, chains, n), 0 for rows that are not at the node; one chain of `vb`."""
        k = node.alone(node.kernel(u, u, self.scale, self.length), mask)
        delta, root = node.steadied(k, self.jitter)
        k = k + torch.diag(delta.expand(len(mask)))
        nodes, rows = sides.shape
        if self.inference == "vb":
            field_of = vmap(
                partial(node.mean_field, k, steps=self.gibbs_steps), chunk_size=at_once(nodes, 1, rows, self.held)
            )
            omega = field_of(0.5 * sides)[:, None]
        else:
            run = vmap(partial(node.gibbs, k, root, steps=self.gibbs_steps),
                       chunk_size=at_once(nodes * chains, 1, rows, self.held))  # fmt: skip
            keys = core.fold(key, torch.arange(nodes * chains, device=key.device))
            omega = run(0.5 * sides.repeat_interleave(chains, 0), keys).reshape(nodes, chains, rows)
        return delta, omega * (sides != 0).to(omega)[:, None]

    # --- prediction
    def condition(self, carry: core.Carry, batch: core.Batch, here: core.Here) -> core.Carry:
        """Keep what predictions need: the embeddings of all training data, the tree, and ω."""
        u = node.unit(here.model.features(carry.params, batch.x)[0])
        sums = core.sum_classes(u, batch.y, batch.mask, here.model.classes)
        sides = node.grow_tree(sums["sum"] / sums["count"].clamp(min=1)[:, None], sums["count"]).to(u)
        row_sides = sides @ core.one_hot(batch.y, here.model.classes, batch.mask).T  # (nodes, n)
        with core.exact_products(u):
            delta, omega = self.augment(u, batch.mask, row_sides, here.key, self.test_chains)
        classifier = {"u": u, "mask": batch.mask, "row_sides": row_sides, "sides": sides, "count": sums["count"],
                      "delta": delta, "omega": omega}  # fmt: skip
        return replace(carry, kept={**carry.kept, "classifier": classifier})

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        features = node.unit(here.model.features(carry.params, x)[0])
        with core.exact_products(x):
            return self.classify(features, carry.kept["classifier"])

    def classify(self, asked: Tensor, known: dict[str, Tensor]) -> Tensor:
        """log p(y | x) (B, C) of unit embeddings (B, d), by all training data."""
        u, omega = known["u"], known["omega"]
        nodes, chains, rows = omega.shape
        k = node.alone(node.kernel(u, u, self.scale, self.length), known["mask"]) + torch.diag(
            known["delta"].expand(rows)
        )
        cross = node.kernel(u, asked, self.scale, self.length)
        look = vmap(partial(node.predictive, k, cross, self.scale + known["delta"]),
                    chunk_size=at_once(nodes * chains, 1, rows, self.held))  # fmt: skip
        mean, variance = look(0.5 * known["row_sides"].repeat_interleave(chains, 0), omega.flatten(0, 1))
        branches = vmap(node.branch_log_probabilities, out_dims=1)
        sides = branches(mean.reshape(nodes, chains, -1), variance.reshape(nodes, chains, -1))
        return node.leaf_log_probabilities(sides, known["sides"], known["count"])

    # --- memory
    @property
    def held(self) -> int:
        """Numbers in one matrix of all chains that are computed at once."""
        return FIELD if self.inference == "vb" else HELD

    def training_scratch(self, rows: int, model: core.Network) -> int:
        chains = 1 if self.inference == "vb" else self.chains
        return training_room(rows, model.classes, model.feature_dim, chains, self.gibbs_steps, self.held)

    def conditioning_scratch(self, rows: int, model: core.Network) -> int:
        chains = 1 if self.inference == "vb" else self.test_chains
        return conditioning_room(rows, model.classes, model.feature_dim, chains, self.gibbs_steps, self.held)
