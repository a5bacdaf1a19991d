"""A method as a comparison names it: with settings of its own in brackets, so that it may appear twice.

    METHOD[NAME=VALUE,NAME=VALUE]     fedprox[mu=0.1]   pfedvmp@paper+ft[xi=5,ft.epochs=2]   fedavg[model.hidden=32,16]

The brackets stand at the end, behind all suffixes. What may stand in them is what `--set` takes, and it wins over
`--set`; only `data.` may not, because all methods are to have the same clients. The configuration of the run has the
plain method and the settings, as if they had been given by `--set`. "all" stands for every method that is not named
beside it, by itself or with settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posterity.core.parse import split_list
from posterity.methods import available

ALL = "all"
PLAIN = set("+-_.=")  # besides letters and digits: what a folder's name may have
FORM = "fedprox[mu=0.1] or pfedvmp+ft[xi=5,ft.epochs=2], the brackets behind all suffixes"


@dataclass(frozen=True)
class Variant:
    """A method and the settings that it alone has in a comparison."""

    name: str  # as it was typed
    method: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its folder: `fedprox-mu=0.1`."""
        told = [self.method, *(f"{name}={value}" for name, value in self.settings.items())]
        return "".join(c if c.isalnum() or c in PLAIN else "-" for c in "-".join(told))


def parse_variant(text: str) -> Variant:
    """One method of a comparison."""
    method, bracket, inner = text.partition("[")
    if not bracket and "]" not in text:
        return Variant(text, text)
    settings: dict[str, str] = {}
    last = ""
    for piece in split_list(inner.removesuffix("]")):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if equals and name in settings:
            raise ValueError(f"{text!r} sets {name} twice: give it one value")
        if equals:
            last = name
        if not last or not inner.endswith("]") or set("[]") & set(method + inner[:-1]):
            raise ValueError(f"{text!r} is not understood as a method with settings: expected {FORM}")
        settings[last] = value if equals else f"{settings[last]},{piece}"  # a list, as in model.hidden=32,16
    if not settings or not method:
        raise ValueError(f"{text!r} is not understood as a method with settings: expected {FORM}")
    if wrong := next((name for name in settings if name.startswith("data.")), None):
        raise ValueError(f"{text!r} sets {wrong}, but all methods of a comparison have the same clients: use --set")
    return Variant(text, method, settings)


def name_all(names: Sequence[str]) -> list[str]:
    """`names`, with every method that they do not name in the place of "all"."""
    given = {parse_variant(name).method for name in names}
    rest = [name for name in sorted(available()) if name not in given]
    return [each for name in names for each in (rest if name == ALL else [name])]


def parse_variants(names: Sequence[str]) -> list[Variant]:
    """The methods of a comparison, each with a folder of its own."""
    found: dict[str, Variant] = {}
    for name in names:
        variant = parse_variant(name)
        if (other := found.get(variant.folder)) is not None:
            same = f"{name!r} is named twice" if other.name == name else f"{other.name!r} and {name!r} look the same"
            raise ValueError(f"{same}: give each method once, or other settings in brackets ({FORM})")
        found[variant.folder] = variant
    return list(found.values())


__all__ = ["FORM", "Variant", "name_all", "parse_variant", "parse_variants"]
