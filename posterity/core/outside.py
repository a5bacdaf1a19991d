"""What you wrote yourself and name on the command line as `package.module:attribute`: a method, a network, a dataset, a
partition, a metric, an engine.

The current folder is searched for them, and for nothing else (`posterity/search_path.py`): one file there is enough.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from posterity.core.hyperparameters import nearest
from posterity.search_path import import_here


def import_outside(name: str) -> ModuleType | None:
    """The module called `name`, or None if there is none; what a module that is there fails to import is an error."""
    if not name or name.startswith("."):
        return None
    try:
        import_here(name)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the file was found; something it imports was not
        return None


def find_outside(path: str, what: str) -> tuple[Any, ModuleType]:
    """What `package.module:attribute` names (None if the module has no such), and its module."""
    source, _, attribute = path.partition(":")
    module = import_outside(source)
    if module is None:
        raise ValueError(
            f"there is no module {source!r} to take the {what} {path!r} from; is it on the path? "
            "(the current folder is searched; set PYTHONPATH for others)"
        )
    return getattr(module, attribute, None), module


def find_function(path: str, what: str) -> Any:
    """The function (or class) that `package.module:attribute` names, or an error that says what is missing."""
    found, module = find_outside(path, what)
    if not callable(found):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        kind = "nothing" if found is None else f"of type {type(found).__name__}"
        name = path.partition(":")[2]
        raise ValueError(f"{path!r} is {kind}, not a function that makes a {what}: {nearest(name, functions)}")
    return found


__all__ = ["find_function", "find_outside", "import_outside"]
