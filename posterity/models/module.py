"""A network in whatever form it is given: a module, a class or function that makes one, or a `Model`.

It is run once on a few rows before anything else (`nn/adopt.py`), so that what is wrong with it is said in a
sentence. Names are read by `models.build`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from posterity.core.network import Network, Task
from posterity.nn.adopt import FirstRun, checked, refuse_draws, sample_rows, try_out
from posterity.nn.layers import twin, unstackable
from posterity.nn.model import Model, leaves_of, seeded
from posterity.settings.hyperparameters import MISTAKES, Declared, declared, describe, unknown
from posterity.settings.plugins import describe_error

Options = Mapping[str, Any]
KEPT = ("the network's weights are those that it came with; the seed does not move them (hand over its class, or a "
        "function that makes it, to draw them from the seed)")  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What a network is wanted for."""

    shape: tuple[int, ...]
    classes: int
    task: Task
    options: Options
    x: Tensor | None


def from_object(given: Any, wanted: Wanted, name: str = "") -> Network:
    """The network of an object that is no name."""
    if isinstance(given, Model):
        return _looked_at(given, wanted, wanted.options)
    name = name or getattr(given, "__name__", type(given).__name__)
    if isinstance(given, nn.Module):
        return _from_module(given, None, wanted, name)
    if not callable(given) or hasattr(given, "leaves"):
        if all(hasattr(given, name) for name in ("leaves", "init", "trainable")):  # a network of another make
            return given
        kind = type(given).__name__
        raise ValueError(f"model is a {kind}; expected a name, an nn.Module, or a class or function that makes one")
    maker = Maker(given, name, wanted)
    with seeded(0):
        made = maker()
    if isinstance(made, Model):
        return _looked_at(made, wanted, {})
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name!r} returned {type(made).__name__}; it must return an nn.Module.")
    return _from_module(made, maker, wanted, name)


class Maker:
    """A class or function that makes a network, and what it is called with."""

    def __init__(self, make: Callable[..., Any], name: str, wanted: Wanted) -> None:
        self.make, self.name, self.shape = make, name, wanted.shape
        shape, classes = wanted.shape, wanted.classes
        known = {"shape": shape, "classes": classes, "num_classes": classes, "task": wanted.task}
        known |= {"in_features": prod(shape), "in_channels": shape[0] if shape else 1}
        takes = declared(make)
        free = {n: d for n, d in takes.items() if n not in known}
        chosen = read_options(name, {n: v for n, v in wanted.options.items() if n != "head"}, free)
        missing = [n for n, d in free.items() if d.required and n not in chosen]
        if len(missing) == 2 and missing == list(takes)[:2]:  # (shape, classes) by other names
            chosen |= dict(zip(missing, (shape, classes), strict=True))
        elif missing:
            raise ValueError(
                f"{name} needs {' and '.join(map(repr, missing))}, which nobody gave: it is called with those of "
                f"{', '.join(known)} that it names; give the others a default, or --set model.{missing[0]}=VALUE"
            )
        self.options = {**{n: v for n, v in known.items() if n in takes}, **chosen}

    def __call__(self) -> Any:
        try:
            made = self.make(**self.options)
        except ValueError:
            raise  # a sentence of its author
        except Exception as error:
            raise ValueError(f"{self.name!r} could not make the network: {describe_error(error)}") from error
        if isinstance(made, nn.Module) and any(is_lazy(p) for p in made.parameters()):
            with torch.no_grad():  # lazy layers take their shapes from a first batch
                made.eval()(torch.zeros(2, *self.shape))
        return made


def read_options(name: str, given: Options, possible: Mapping[str, Declared]) -> dict[str, Any]:
    """Options as what the maker of a network declares: by its annotation, else like its default."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        if option not in possible:
            raise ValueError(unknown(f"option of {name}", option, possible))
        found[option] = _read(option, value, possible[option])
    return found


def _read(option: str, value: Any, known: Declared) -> Any:
    several = isinstance(known.default, tuple)
    try:
        read = known.read((value,) if several and isinstance(value, (int, float)) else value)
    except MISTAKES:
        what = "numbers such as 32,16" if several else describe(known.kind)
        raise ValueError(f"model.{option} takes {what}; {value!r} was given") from None
    if several and known.kind is None and not isinstance(read, tuple):
        read = tuple(read) if isinstance(read, list) else (read,)
    return tuple(read) if isinstance(read, list) else read


def _from_module(module: nn.Module, maker: Maker | None, wanted: Wanted, name: str) -> Model:
    """The model of a module that is made: by `maker`, or by the user, whose weights are then kept."""
    extra = [n for n in wanted.options if n != "head"]
    if maker is None and extra:
        raise ValueError(f"the network {name!r} is made already and takes no option {extra[0]!r}: hand over its class")
    new = twin(module)
    seen = _tried(new, name, wanted)
    head = _head(wanted.options.get("head"), module, maker, name, seen)
    model = Model(
        new,
        head,
        wanted.classes,
        wanted.task,
        name,
        unstackable(new),
        wanted.shape,
        make=maker,
        fresh=maker is not None,
        integers=seen.integers,
    )
    return replace(checked(model), notes=_notes(model))


def _head(asked: Any, module: nn.Module, maker: Maker | None, name: str, seen: FirstRun) -> str | tuple[str, ...]:
    """Where the head begins: as asked, as the class says, or the last linear layer."""
    head = asked or getattr(maker and maker.make, "head", None) or getattr(module, "head", None)
    if isinstance(head, nn.Module):
        return "head"  # a sub-module called head names itself
    if head or seen.head:
        return tuple(head) if isinstance(head, list) else head or seen.head
    names = ", ".join(n for n, _ in module.named_children())
    why = (
        f": something happens after its last linear layer, {seen.last!r}"
        if seen.last
        else ": it calls no linear layer last"
    )
    raise ValueError(
        f"{name!r} does not say where its head begins{why}. Name the part after which nothing happens: "
        f'--set model.head=NAME, or head = "NAME" in the class; one of {names}.'
    )


def _looked_at(model: Model, wanted: Wanted, options: Options) -> Model:
    """A `Model` that was put together before the data were known: does it fit them?"""
    shape, classes = wanted.shape, wanted.classes
    if options:
        raise ValueError(f"the network {model.name!r} is made already and takes no option {next(iter(options))!r}")
    if model.shape is not None and model.shape != shape:
        raise ValueError(f"the network {model.name!r} is made for inputs of shape {model.shape}; the data have {shape}")
    if model.task == "classification" and model.classes != classes:
        raise ValueError(f"the network {model.name!r} is made for {model.classes} classes; the data have {classes}")
    seen = _tried(model.module, model.name, replace(wanted, task=model.task))
    model = replace(model, integers=seen.integers)
    return replace(model, notes=(*model.notes, *_notes(model)))


def _notes(model: Model) -> tuple[str, ...]:
    """What a reader must know about the weights that a run begins with."""
    if not model.fresh:
        return (KEPT,)
    first, again, other = model.init(0), model.init(0), model.init(1)
    if odd := [n for n in first if not torch.equal(first[n], again[n])]:
        given = f"made twice with the same seed, the network {model.name!r} has other weights ({odd[0]})"
        raise ValueError(f"{given}: draw with torch's functions, without a generator of its own.")
    same = [n for n in first if n not in model.buffers and torch.equal(first[n], other[n])]
    fixed = [n for n in same if bool((first[n] != first[n].flatten()[:1]).any())]  # no constants
    return (f"the seed does not draw {', '.join(fixed[:5])}, which the network's maker sets itself",) * bool(fixed)


def _tried(module: nn.Module, name: str, wanted: Wanted) -> FirstRun:
    """What a run of the network on a few rows shows; one that cannot be used is refused."""
    rows = sample_rows(wanted.x, wanted.shape)
    seen = try_out(module, name, wanted.classes, wanted.task, rows)
    kind = next((t.dtype for t in leaves_of(module).values() if t.is_floating_point()), torch.float32)
    refuse_draws(module, name, rows.long() if seen.integers else rows.to(kind))
    return seen
