"""Making a `Model` of a network: yours (`wrap`), or one that a function builds (`assemble`).

One that somebody else wrote is run once before anything is trained (`try_out`, `refuse_draws`): what it takes, gives
and draws. What is wrong is said in a sentence: what went in and came out, what was expected, and the line that failed.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posterity.core.network import Task
from posterity.nn.layers import twin, unstackable
from posterity.nn.model import BoundModule, Model, global_generators, leaves_of, seeded
from posterity.settings.plugins import describe_error


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
            given = f"Running {model.name!r} up to {model.heads[0]!r} and from there on does not give its output"
            raise ValueError(
                f"{given}: something happens after the head. Name the sub-module after which nothing happens."
            )
    return model


ROWS = 2  # samples of a trial run; two, for batch norm


@dataclass(frozen=True)
class FirstRun:
    """What one run of a network showed."""

    integers: bool  # it takes integers, to look something up with
    head: str  # its last linear layer, if what that returns is what the network returns; else empty
    last: str  # the linear layer that was called last, if any


def try_out(module: nn.Module, name: str, classes: int, task: Task, x: Tensor) -> FirstRun:
    """Run `module`, twinned, on a few rows of x; an error says in a sentence why it cannot be used."""
    rows, integers = _usable(module, name, x)
    names = {layer: layer_name for layer_name, layer in module.named_modules() if layer_name}
    ends: list[tuple[str, Tensor]] = []
    with ExitStack() as hooks:
        for linear in (layer for layer in names if isinstance(layer, nn.Linear)):
            handle = linear.register_forward_hook(lambda layer, _, output: ends.append((names[layer], output)))
            hooks.callback(handle.remove)
        output = _called(module, rows)
    _check_output(output, name, classes, task, rows)
    last, end = ends[-1] if ends else ("", None)
    once = [layer_name for layer_name, _ in ends].count(last) == 1
    return FirstRun(integers, last if once and _is_end(end, output, task) else "", last)


def refuse_draws(module: nn.Module, name: str, x: Tensor) -> None:
    """Refuse a network that moves a global generator in training: no key could repeat what it draws."""
    before = global_generators()
    _called(module, x, train=True)
    if global_generators() == before:
        return
    where = "; ".join(unstackable(module)) or "its forward"
    raise ValueError(
        f"the network {name!r} draws random numbers by itself in training ({where}), so that the same seed would not "
        "give the same bits: use nn.Dropout layers, which are replaced by keyed ones"
    )


def sample_rows(x: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Rows for a trial run: the first, and those with the smallest and the largest number; zeros without data."""
    if x is None or not len(x):
        return torch.zeros(ROWS, *shape)
    flat = x.reshape(len(x), -1)
    ends = [int(flat.amin(1).argmin()), int(flat.amax(1).argmax())] if flat.shape[1] else []
    rows = x[[0, min(1, len(x) - 1), *ends]].cpu()
    return torch.where(rows.isfinite(), rows, 0)  # data that are missing


def _called(module: nn.Module, x: Tensor, train: bool = False) -> Any:
    leaves = {n: t.detach() for n, t in leaves_of(module).items()}
    with torch.no_grad():
        return BoundModule(module, module)(leaves, x, None, train, torch.zeros(2, dtype=torch.int64), {}, ())[0]


def _usable(module: nn.Module, name: str, x: Tensor) -> tuple[Tensor, bool]:
    """`x` in the kind of numbers that the network runs on, and whether these are integers."""
    kind = next((t.dtype for t in leaves_of(module).values() if t.is_floating_point()), torch.float32)
    try:
        _called(module, x.to(kind))
        return x.to(kind), False
    except Exception as error:
        floats = error
    looks_up = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in module.modules())
    odd = x[x != x.long()]
    if len(odd) and looks_up:
        given = f"the network {name!r} takes integers (to look something up), but the data hold {float(odd[0]):g}"
        raise ValueError(f"{given}; features of a table are standardised unless you say --set data.scale=none")
    try:
        if not len(odd):
            _called(module, x.long())
            return x.long(), True
    except Exception as error:
        floats = error if looks_up else floats
    given = f"the network {name!r} does not run on inputs of shape {tuple(x.shape[1:])}, {x.min():g} to {x.max():g}"
    raise ValueError(f"{given}: {describe_error(floats)}") from floats


def _check_output(output: Any, name: str, classes: int, task: Task, x: Tensor) -> None:
    batch = len(x)
    one, several = [(batch, 1), (batch,)], (batch, classes)
    wanted = f"{several}: one logit for each class" if task == "classification" else f"({batch}, 1)"
    given = f"the network {name!r}, given a batch {tuple(x.shape)}, returned"
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        raise ValueError(f"{given} a {kind}; expected one tensor {wanted}. Return the logits alone.")
    shapes = one if task == "regression" else [several, *(one if classes == 2 else [])]  # one sigmoid unit
    if tuple(output.shape) not in shapes:
        raise ValueError(f"{given} outputs of shape {tuple(output.shape)}; expected {wanted}")
    if task == "classification" and output.shape[-1] > 1 and _probabilities(output):
        raise ValueError(f"{given} probabilities (rows that sum to 1); expected logits: leave the softmax out")


def _probabilities(output: Tensor) -> bool:
    return bool((output >= 0).all() and torch.allclose(output.sum(-1), torch.ones_like(output[..., 0]), atol=1e-5))


def same_outputs(one: Tensor, other: Tensor, task: Task) -> bool:
    """Whether two outputs mean the same: logits do so up to a constant, as a log-softmax behind them adds."""
    if task == "classification" and other.dim() > 1 and other.shape[-1] > 1:
        one, other = one.log_softmax(-1), other.log_softmax(-1)
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _is_end(end: Any, output: Tensor, task: Task) -> bool:
    """Whether nothing that counts happens behind the layer that returned `end`."""
    if not isinstance(end, Tensor) or end.shape[:1] != output.shape[:1] or end.numel() != output.numel():
        return False
    return same_outputs(end.reshape(output.shape), output, task)
