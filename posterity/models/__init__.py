"""Small networks, each split into base and head, as pure functions of their parameters.

A file of this folder with a function `build(shape, classes, task, **options)` is a network under the file's name;
`my_package.net:make` names one of your own. Layers, and how a network is called with weights handed in, are in `nn/`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from torch import nn

from posterity.core.network import Task
from posterity.core.outside import import_outside
from posterity.core.parse import declared
from posterity.nn._call import seeded
from posterity.nn._names import unknown
from posterity.nn.assembly import assemble, wrap
from posterity.nn.functional import Model

__all__ = ["Model", "NetworkInfo", "Task", "assemble", "available", "build", "wrap"]


@dataclass(frozen=True)
class NetworkInfo:
    """What `available` says about one network."""

    name: str
    summary: str
    options: dict[str, Any]  # name -> default


def build(name: str, shape: tuple[int, ...], classes: int, task: Task = "classification", **options: Any) -> Model:
    """The network called `name` for inputs of `shape`; `package.module:attribute` is one of your own.

    Your own may be an `nn.Module` class built with `(shape, classes, **options)` or a function of the same arguments
    that returns a module (or a `Model`); it says where its head begins by an attribute or the option `head`.
    """
    shape = tuple(int(s) for s in shape)
    if ":" in name:
        return _build_outside(name, shape, classes, task, options)
    found = _networks()
    if name not in found:
        raise ValueError(unknown("model", name, found) + " Your own: 'package.module:attribute'.")
    maker: Callable[..., Model] = found[name].build
    defaults = _options(maker)
    _check(name, options, defaults)
    return maker(shape, classes, task, **{k: _like(defaults.get(k), v) for k, v in options.items()})


def available() -> tuple[NetworkInfo, ...]:
    """Every network of this folder: name, first line of its file, options with defaults."""
    return tuple(NetworkInfo(n, _summary(m), _options(m.build)) for n, m in sorted(_networks().items()))


def _networks() -> dict[str, ModuleType]:
    files = [f.name for f in pkgutil.iter_modules(__path__) if not f.name.startswith("_")]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in files}
    return {name: module for name, module in modules.items() if callable(getattr(module, "build", None))}


def _build_outside(path: str, shape: tuple[int, ...], classes: int, task: Task, options: dict[str, Any]) -> Model:
    source, _, attribute = path.partition(":")
    module = import_outside(source)
    if module is None:
        raise ValueError(f"There is no module {source!r} to take the model {path!r} from; is it on the path?")
    make = getattr(module, attribute, None)
    if not callable(make):
        raise ValueError(
            unknown(f"callable of {source}", attribute, [n for n in vars(module) if not n.startswith("_")])
        )
    head = options.pop("head", None)
    _check(path, options, _options(make))
    with seeded(0):
        made = make(shape, classes, **options)
    if isinstance(made, Model):
        return made
    if not isinstance(made, nn.Module):
        raise ValueError(f"{path!r} returned {type(made).__name__}; it must return an nn.Module.")
    head = head or getattr(make, "head", None) or getattr(made, "head", None)
    if isinstance(head, nn.Module):
        head = "head"  # a sub-module called head names itself
    if head is None:
        names = ", ".join(n for n, _ in made.named_children())
        raise ValueError(f"{path!r} does not say where its head begins: pass head=…, one of {names}.")
    head = tuple(head) if isinstance(head, list) else cast("str | tuple[str, ...]", head)
    return assemble(lambda: make(shape, classes, **options), head, shape, classes, task, attribute)


def _like(default: Any, value: Any) -> Any:
    """`value` as a tuple where the option takes several numbers: `hidden=32` is `hidden=(32,)`."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(default, tuple) and not isinstance(value, tuple) else value


def _options(make: Callable[..., Any]) -> dict[str, Any]:
    found = declared(make, ("shape", "classes", "task"))
    return {name: known.default for name, known in found.items() if not known.required}


def _check(name: str, options: dict[str, Any], possible: dict[str, Any]) -> None:
    for option in options:
        if option not in possible:
            raise ValueError(unknown(f"option of {name}", option, possible))


def _summary(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]
