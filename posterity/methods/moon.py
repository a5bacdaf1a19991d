"""MOON: FedAvg whose clients' features are drawn to those of the broadcast model and away from their own last ones.

z is what the head is given, by the model that trains; z_glob and z_prev are what the broadcast and the client's last
model make of the same samples, in evaluation mode and without a gradient.

    ℓ_con  = −log [ e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) ]                   # (3)
    client   θ_k ← E epochs of SGD on f_k(θ) + µ · (mean of ℓ_con over the batch) from w                     # (4)
    server   w ← Σ_k p_k θ_k,   p_k = n_k / Σ_j n_j over the cohort

The record is the base of the client's last model, however long ago that was. At first contact it is the broadcast: both
cosines are then the same, ℓ_con is log 2 and has no gradient, so the first visit is FedAvg's, bit for bit, as all are
for µ = 0. A newcomer gets w. Fine-tuning (`adapt`) is without the contrast: it looks for the client's own minimum.

With `projection` two more layers stand between base and head (Linear, ReLU, Linear), z is what they make of the
features, and the head reads z; they are trained and averaged with the rest.

Reference: Li, He and Song, "Model-contrastive federated learning", CVPR 2021, Algorithm 1.

Differs from the paper: by default there is no projection and z is the input of the network's own head, as FedNP and
PFLlib have it. The paper's projection is Linear D→D, ReLU, Linear D→256 under a classifier of its own; ours ends with
D numbers instead of 256, so that the network's own head can read it. One negative, the last model (the paper's
default). At first contact the paper has no negative and no contrast: no gradient either way. The length of a vector
counts as at least 1e-8, so that features that are all 0 have a cosine of 0 and a finite gradient.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity import core
from posterity.nn.extra import Extra

AUTHORS_TRAINING = core.Training(lr=0.01, epochs=10, batch=64, momentum=0.9, weight_decay=1e-5)
SHORTEST = 1e-8  # length that a vector has at least
FIRST_LAYERS = 1  # number that the projection's first values fold into the key of the run


@functools.cache
def projection_of(dim: int) -> Extra:
    """The two layers between base and head, for features of this length."""
    return Extra("projection", nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)))


def unit(vectors: Tensor) -> Tensor:
    """Rows (B, d) of length 1, or shorter than that where they are all but 0."""
    return vectors / (vectors**2).sum(-1, keepdim=True).clamp(min=SHORTEST**2).sqrt()


def contrast(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """ℓ_con of each row (B,), as −log σ of the difference of the cosines, which is exactly 0 for equal references."""
    closer = (unit(z) * (unit(towards) - unit(away))).sum(-1)  # cos(z, z_glob) − cos(z, z_prev)
    return -F.logsigmoid(closer / temperature)  # (3)


@dataclass(frozen=True)
class MOON(core.Method):
    label = "MOON"
    reference = "Li et al., CVPR 2021"
    absent = "cohort only: an absent client keeps its last model"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    mu: float = core.hyper(
        1.0, "µ: weight of the contrast", "FedNP's tuned value", paper=5.0, search=(0.1, 10.0, "log"), ge=0
    )
    temperature: float = core.hyper(0.5, "τ: temperature of the contrast", "Li et al. 2021, §4.1", gt=0)
    projection: bool = core.hyper(False, "two more layers between base and head", "FedNP, PFLlib: none", paper=True)

    combine = core.combine_mean

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> core.Leaves:
        if not self.projection:
            return core.Leaves(params)
        like = next(iter(params.values()))
        more = projection_of(model.feature_dim).init(core.fold(facts.key, FIRST_LAYERS), like)
        return core.Leaves({**params, **more})

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        if self.projection or model.base_names:
            return ()
        return (f"MOON is FedAvg here: all of the network {model.name!r} is head, so nobody's features differ",)

    def join(self, here: core.Here) -> core.Personal:
        return self.remembered(here.shared.params, here)

    def remembered(self, params: core.Params, here: core.Here) -> core.Params:
        """What makes the features z."""
        return {n: p for n, p in params.items() if n not in here.model.head_names}

    def features(self, params: core.Params, x: Tensor, here: core.Here) -> Tensor:
        """z (B, d) in evaluation mode."""
        z, _ = here.model.features(params, x)
        return projection_of(here.model.feature_dim)(params, z) if self.projection else z

    def run(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, Tensor, core.Params]:
        """Outputs, z (B, d) and new buffers, in training mode."""
        if not self.projection:
            return core.run_features(params, batch, here)
        model = here.model
        how: dict[str, Any] = {"mask": batch.layer_mask, "train": True, "key": here.key}
        z, buffers = model.features(params, batch.x, **how)
        z = projection_of(model.feature_dim)(params, z)
        return model.classify(params, z, **how), z, buffers

    def plain(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """f_k: the loss without the contrast."""
        if not self.projection:
            return core.fit(params, batch, here)
        output, _, buffers = self.run(params, batch, here)
        return core.masked_mean(core.pointwise(output, batch.y, here.model), batch.mask), buffers

    def contrasted(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        output, z, buffers = self.run(params, batch, here)
        value = core.masked_mean(core.pointwise(output, batch.y, here.model), batch.mask)
        towards = self.features(here.shared.params, batch.x, here)
        away = self.features({**here.shared.params, **here.personal}, batch.x, here)
        contrasts = contrast(z, towards, away, self.temperature)
        return value + self.mu * core.masked_mean(contrasts, batch.mask), buffers  # (4)

    def passes(self) -> core.Passes:
        return (self.local.descend(self.contrasted if self.mu else self.plain),)

    def adapt(self, epochs: int) -> core.Passes:
        return core.tuned((self.local.descend(self.plain),), epochs)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return core.weighted(carry.params, here), self.remembered(carry.params, here)

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        if not self.projection:
            return core.log_predictive(carry.params, x, here)
        output = here.model.classify(carry.params, self.features(carry.params, x, here))
        if here.model.task == "regression":
            return torch.stack((output, torch.full_like(output, core.NOISE)), -1)
        return F.log_softmax(output, -1)
