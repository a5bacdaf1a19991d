"""Making a `Model` of a network: yours (`wrap`), or one that a function builds (`assemble`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from posterity.core.network import Task
from posterity.nn._call import leaves_of, seeded
from posterity.nn.first_run import same_outputs
from posterity.nn.functional import Model
from posterity.nn.layers import twin, unstackable


def wrap(
    module: nn.Module,
    head: str | tuple[str, ...],
    classes: int,
    task: Task = "classification",
    *,
    name: str = "",
    shape: tuple[int, ...] | None = None,
    fresh: bool = True,
) -> Model:
    """Any network as a `Model`; with `fresh=False`, `init` returns the weights it has now (a pretrained network)."""
    name = name or type(module).__name__
    new = twin(module)
    return checked(Model(new, head, classes, task, name, unstackable(new), shape, None, fresh))


def assemble(
    make: Callable[[], nn.Module],
    head: str | tuple[str, ...],
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    name: str = "model",
) -> Model:
    """The model of the network that `make()` builds; `init(seed)` calls `make` again with PyTorch's seed set."""
    with seeded(0):
        module = twin(make())
    return checked(Model(module, head, classes, task, name, unstackable(module), tuple(shape), make))


def checked(model: Model) -> Model:
    """`model`, after one run on zeros where its input shape is known: outputs, and head after base = the whole."""
    if model.shape is None:
        return model
    out = model._probe[1]
    if model.task == "classification" and out != (model.classes,):
        raise ValueError(f"The network {model.name!r} gives outputs of shape {out} for {model.classes} classes.")
    if model._tail_part is not None:
        own = {n: t.detach() for n, t in leaves_of(model.module).items()}
        x = torch.linspace(-1, 1, 2 * torch.Size(model.shape).numel()).reshape(2, *model.shape)
        x = torch.zeros_like(x) if model.integers else x.to(next((t.dtype for t in own.values()), torch.float32))
        full, split = model.logits(own, x), model.classify(own, model.features(own, x)[0])
        if full.shape != split.shape or not same_outputs(full, split, model.task):
            raise ValueError(
                f"Running {model.name!r} up to {model.heads[0]!r} and from there on does not give its output: "
                "its forward does something else after the head. Name the sub-module after which nothing happens."
            )
    return model
