"""Where tuning looks: the fields of a method, of its wrappers and of its training that say so (`search` of `hyper`).

What says nothing stays at its default, and so does what the user has given. Nothing here needs Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posterity import methods
from posterity.core.hyperparameters import Knob, knobs
from posterity.core.training import Training
from posterity.core.wrapper import Wrapper

DIGITS = 3  # of a value that is tried: readable, and the same in a file and in a table
SCALES = ("log", "linear")
Values = dict[str, Any]


@dataclass(frozen=True)
class Dimension:
    """One setting that is tuned: a range of numbers, or some values."""

    name: str  # as `--set` has it
    default: Any
    low: float = math.nan
    high: float = math.nan
    scale: str = "linear"
    choices: tuple[Any, ...] = ()
    integer: bool = False  # numbers without a fraction

    def at(self, share: float) -> Any:
        """The value so far along the dimension, from 0 to 1."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.scale == "log":
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return self.rounded(value)

    def rounded(self, value: float) -> Any:
        """A number with few digits that is still within the range."""
        if self.integer:
            return round(value)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value can be tried."""
        if self.choices:
            return value in self.choices
        return isinstance(value, (int, float)) and self.low <= value <= self.high


def search_space(spec: str, given: Iterable[str] = ()) -> list[Dimension]:
    """The dimensions of a method with its wrappers; without settings that were `given`, with prefix or without."""
    method, fixed = methods.build(spec), set(given)
    found: list[Dimension] = []
    for prefix, layer in layers(spec, method):
        for knob in (k for k in knobs(type(layer)) if k.search is not None):
            name = f"{prefix}{knob.name}"
            if not fixed & {name, name if isinstance(layer, Training) else knob.name}:
                found.append(_dimension(name, knob, getattr(layer, knob.name)))
    return found


def tell_space(name: str, spec: str, given: Iterable[str] = ()) -> str:
    """In a sentence: what is searched of a method, what of its own fields is not, and how a range is declared."""
    given = set(given)
    searched = [each.name for each in search_space(spec, given)]
    fixed = [(f"{prefix}{knob.name}", knob.name, getattr(layer, knob.name))
             for prefix, layer in layers(spec, methods.build(spec)) if not isinstance(layer, Training)
             for knob in knobs(type(layer)) if knob.search is None and knob.kind is not Training]  # fmt: skip
    rest = {full: value for full, short, value in fixed if not given & {full, short}}
    said = f"{name}: searched {', '.join(searched) or 'nothing'}"
    said += f"; not searched {told(rest)}" if rest else ""
    return said + ('; a field of yours is searched that says where: hyper(0.5, "…", search=(0.1, 0.9, "linear"))'
                   if rest and ":" in spec else "")  # fmt: skip


def layers(spec: str, method: Any) -> list[tuple[str, Any]]:
    """What settings a method has, from the inside out: the prefix of their names and the record that has them."""
    names = methods.words_of(spec)
    found: list[tuple[str, Any]] = []
    for name in reversed(names[1:]):
        found.append((f"{name}.", method))
        method = method.method
    while isinstance(method, Wrapper):  # one that another brought along: its settings have no name in the spec
        method = method.method
    trainings = [(f"{name}.", value) for name, value in vars(method).items() if isinstance(value, Training)]
    return [*trainings, ("", method), *reversed(found)]


def _dimension(name: str, knob: Knob, default: Any) -> Dimension:
    search = knob.search or ()
    if len(search) == 3 and search[2] in SCALES:
        low, high, scale = search
        if not low < high or (scale == "log" and not low > 0):
            raise ValueError(f"{name} is searched in {search}, which is no range: expected (lowest, highest, scale)")
        return Dimension(name, default, low, high, scale, integer=knob.kind is int)
    return Dimension(name, default, choices=tuple(search))


def first_values(space: list[Dimension]) -> Values | None:
    """The defaults, which are tried first; None if one of them is outside of its range."""
    values = {each.name: each.default for each in space}
    return values if all(each.holds(values[each.name]) for each in space) else None


def told(values: Mapping[str, Any]) -> str:
    """Settings in a line."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "its defaults"


__all__ = ["Dimension", "Values", "first_values", "layers", "search_space", "tell_space", "told"]
