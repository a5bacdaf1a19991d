"""What a shell completes: methods, datasets and networks are files of a folder, so none of them is imported for it."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from posterity.spec_names import NAMES

PACKAGE = Path(__file__).parents[1]


def files(folder: str) -> list[str]:
    """The public modules of a folder of this package, by name: what `--method`, `--dataset`, `--model` may be."""
    return sorted(m.name for m in pkgutil.iter_modules([str(PACKAGE / folder)]) if not m.name.startswith("_"))


def starting(words: Sequence[str]) -> Callable[[str], list[str]]:
    """The words that begin as what was typed."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete) and ":" not in word]


def complete_method(incomplete: str) -> list[str]:
    """A method, a name for a spec, or a wrapper behind it: `fedavg+f` may go on as `fedavg+ft`."""
    before, plus, last = incomplete.rpartition("+")
    known = files("methods/wrappers") if plus else _methods()
    return [f"{before}{plus}{name}" for name in known if name.startswith(last)]


def _methods() -> list[str]:
    found = [name for name in files("methods") if name != "wrappers"]
    return sorted([*found, *(name for name, named in NAMES.items() if named.needs in found)])


def complete_methods(incomplete: str) -> list[str]:
    """The last of several methods."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_method(last)]


def complete_dataset(incomplete: str) -> list[str]:
    """A dataset, or the next of a mix."""
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in files("data/datasets") if name.startswith(last)]


def complete_model(incomplete: str) -> list[str]:
    return [name for name in files("models") if name.startswith(incomplete)]


COMPLETED: dict[str, Callable[[str], list[str]]] = {
    "method": complete_method,
    "dataset": complete_dataset,
    "model": complete_model,
}
