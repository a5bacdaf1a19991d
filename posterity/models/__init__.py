"""Small networks, each split into base and head, as pure functions of their parameters.

A function `NAME(shape, outputs, **options)` in a file of this folder makes a module with a part called `head`, and is
a network under its name; `my_package.net:make` names one of your own. Layers, and how a network is called with weights
handed in, are in `nn/`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from posterity.core.network import Network, Task
from posterity.models.module import Wanted, from_object, read_options
from posterity.nn.adopt import assemble, wrap
from posterity.nn.model import Model
from posterity.settings.hyperparameters import Declared, declared, unknown
from posterity.settings.plugins import find_function

__all__ = ["Model", "NetworkInfo", "Task", "as_network", "assemble", "available", "build", "wrap"]
SIZES = ("hidden", "width", "feature_dim")  # options that count units or channels


@dataclass(frozen=True)
class NetworkInfo:
    """What `available` says about one network."""

    name: str
    summary: str
    options: dict[str, Any]  # name -> default


def as_network(
    given: Any,
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    options: Mapping[str, Any] | None = None,
    x: Tensor | None = None,
) -> Network:
    """The network that was asked for: by its name, or as an object of yours.

    An object is an `nn.Module` (its weights are kept), a class or function that makes one (weights are drawn from the
    run's seed), or a `Model`. Functions may take nothing, or `shape` and `classes`; further parameters are options. The
    head is its last linear layer where nothing happens behind that; else an attribute or the option `head` names it.
    `x` are samples of the data, on which it is tried.
    """
    shape = tuple(int(s) for s in shape)
    wanted = Wanted(shape, classes, task, options or {}, x)
    if not isinstance(given, str):
        return from_object(given, wanted)
    if ":" in given:
        return from_object(find_function(given, "model"), wanted, given.partition(":")[2])
    found = networks()
    if given not in found:
        raise ValueError(unknown("model", given, found) + " Your own: 'package.module:attribute'.")
    read = read_options(given, options or {}, _options(found[given]))
    _check_sizes(read)
    make = partial(found[given], shape, 1 if task == "regression" else classes, **read)
    made = assemble(make, "head", shape, classes, task, given)
    return made if x is None or x.is_floating_point() else replace(made, integers=False)


def build(name: str, shape: tuple[int, ...], classes: int, task: Task = "classification", **options: Any) -> Model:
    """The network called `name` for inputs of `shape`; `package.module:attribute` is one of your own."""
    made = as_network(name, shape, classes, task, options)
    assert isinstance(made, Model)
    return made


def available() -> tuple[NetworkInfo, ...]:
    """Every network of this folder: name, first line of its docstring, options with defaults."""
    found = {name: (make.__doc__ or "", _options(make)) for name, make in sorted(networks().items())}
    return tuple(
        NetworkInfo(name, text.strip().partition("\n")[0], {o: d.default for o, d in options.items()})
        for name, (text, options) in found.items()
    )


@cache
def networks() -> dict[str, Callable[..., nn.Module]]:
    """Every public function of this folder's files that begins with `shape, outputs`, by its name."""
    files = [f.name for f in pkgutil.iter_modules(__path__) if not f.name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in files]
    functions = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {
        name: made
        for name, made in functions
        if not name.startswith("_") and list(inspect.signature(made).parameters)[:2] == ["shape", "outputs"]
    }


def _check_sizes(options: Mapping[str, Any]) -> None:
    """Refuse layers without units, which train to constant predictions, and shares that are none."""
    for name, value in options.items():
        if name in SIZES and not all(each >= 1 for each in (value if isinstance(value, tuple) else (value,))):
            more = " (--model linear has no hidden layer)" if name == "hidden" else ""
            raise ValueError(f"model.{name} takes sizes of 1 or more; {value} was given{more}")
        if name == "dropout" and not 0 <= value <= 1:
            raise ValueError(f"model.{name} takes a share from 0 to 1; {value} was given")


def _options(make: Callable[..., Any]) -> dict[str, Declared]:
    return declared(make, ("shape", "outputs"))
