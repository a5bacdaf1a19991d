"""Names that are known without PyTorch, which help and shell completion must not import: engines, and names for specs.

A name for a spec is what the literature calls a method of its own, and here is another one with a wrapper or a setting:
`posterity run --method metavd` is `reptile+metavd`, and says so. A name may have suffixes (`metavd+ft`), settings and
`@paper`, which is then said of everything that it stands for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class Named:
    """What a name stands for."""

    spec: str
    label: str
    reference: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """The method that must exist for the name to mean anything."""
        return self.spec.partition("+")[0]

    def describe(self, name: str) -> str:
        """In a sentence."""
        settings = "".join(f" --set {key}={str(value).lower()}" for key, value in self.settings.items())
        return f"{name} is {self.spec}{f' with{settings}' if settings else ''}"


METAVD = "Jeon et al., NeurIPS 2023"
NAMES: dict[str, Named] = {
    "ensemblevd": Named("reptile+metavd", "EnsembleVD", METAVD, {"metavd.family": "ensemble"}),
    "fedsep": Named("fedep", "FedSEP", "Guo et al., ICLR 2023", {"sites": False}),
    "metavd": Named("reptile+metavd", "MetaVD", METAVD),
    "vd": Named("reptile+metavd", "VD", METAVD, {"metavd.family": "naive"}),
}


def expand(spec: str, known: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A spec without its name, and the settings that the name stands for; one whose method is not `known` is none."""
    first, plus, rest = spec.partition("+")
    name, at, preset = first.partition("@")
    named = NAMES.get(name)
    if named is None or named.needs not in known or name in known:
        return spec, {}
    return "+".join(word + at + preset for word in named.spec.split("+")) + plus + rest, dict(named.settings)


@cache
def engine_names() -> tuple[str, ...]:
    """The engines of the package: two that need nothing, and those that are there only to be faster.

    A file of `posterity/fast` without an underscore is an engine of its name; without that folder there are two.
    """
    try:
        fast = find_spec("posterity.fast")
    except ModuleNotFoundError:
        fast = None
    files = iter_modules(fast.submodule_search_locations) if fast else ()
    return ("stacked", "oracle", *sorted(file.name for file in files if not file.name.startswith("_")))
