"""One file or folder per paper; `methods/foo.py` is `--method foo`. Wrappers (`wrappers/ft.py` is `+ft`) are suffixes.

Adding a file is all it takes to add a method; `package.module:Class` names one that lives elsewhere. `@paper` behind a
method or a wrapper (`pfedvmp@paper`, `fedavg+metavd@paper`) takes the values of its paper instead of our defaults.
Some specs have a name (`metavd` is `reptile+metavd`, see `posterity/settings/names.py`); a spec may begin with one.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from posterity.core.passes import Training
from posterity.core.wrapper import Withholding, Wrapper
from posterity.settings.hyperparameters import Knob, flat_settings, knobs, nearest, paper_values, parse
from posterity.settings.names import NAMES, Named, expand
from posterity.settings.plugins import find_outside

PROTOCOL = ("passes", "message", "combine")
PRESET = "paper"
TRAINING = {knob.name: knob for knob in knobs(Training)}


def available() -> dict[str, type]:
    """Every method of this folder by its name on the command line."""
    return {name: _class_of(f"{__name__}.{name}") for name in _files(__name__) if name != "wrappers"}


def suffixes() -> dict[str, type]:
    """Every wrapper by its suffix."""
    package = f"{__name__}.wrappers"
    return {name: _class_of(f"{package}.{name}") for name in _files(package)}


def names() -> dict[str, Named]:
    """Every name for a spec, and what it stands for; those whose method there is."""
    return {name: named for name, named in NAMES.items() if named.needs in _files(__name__)}


def tell_name(spec: str) -> tuple[str, ...]:
    """In a sentence: what the name at the beginning of a spec stands for; none if it begins with a method."""
    name, _ = split_preset(spec.partition("+")[0])
    return (names()[name].describe(name),) if name in names() else ()


def find(name: str) -> type:
    """The class of a method's name or dotted path."""
    if ":" in name:
        return _outside(name)
    found = available()
    if name not in found:
        if name in _files(f"{__name__}.wrappers"):
            raise ValueError(f"{name!r} is a wrapper, which stands behind a method: fedavg+{name}")
        possible = [*found, *names()]
        raise ValueError(f"there is no method {name!r}: {nearest(name, possible)}; your own: 'package.module:Class'")
    return found[name]


def build(
    spec: str, settings: Mapping[str, Any] | None = None, training: Mapping[str, Any] | None = None, min_count: int = 1
) -> Any:  # fmt: skip
    """The method of a spec such as `fedavg+ft`, with its fields set.

    A setting is `name` (a field of the method or of a wrapper), `wrapper.name`, or `local.name` (a field of Training),
    where `local` is any field of the method that is a Training; a whole Training may be given for it.
    Both settings and `training` win over the values of the paper, where the spec asks for those (`@paper`). With a
    `min_count` above 1, clients send nothing about classes of which they have fewer samples.
    """
    parts, implied = _parts(spec)
    host = parts[0].cls
    chosen = [paper_values(part.cls) if part.paper else {} for part in parts]
    trained: dict[str, dict[str, Any]] = {name: {} for name in _trainings(host)}
    trained["local"] |= training or {}
    for key, value in (*implied.items(), *flat_settings(settings or {}).items()):
        field, _, name = key.partition(".")
        if field in trained and name in TRAINING:
            trained[field][name] = value
        elif found := _found(key, parts):
            place, knob = found
            chosen[place][knob.name] = parse(value, knob)
        else:
            own = [name for part in parts for name in part.settings]
            possible = [*own, *(f"{field}.{name}" for field in trained for name in TRAINING)]
            shown = "+".join(part.word for part in parts)
            raise ValueError(f"{shown} has no setting {key!r}: {nearest(key, possible)}")
    for name, asked in trained.items():
        if asked:
            chosen[0][name] = _training(host, name, chosen[0], asked)
    method = host(**chosen[0])
    for part, values in zip(parts[1:], chosen[1:], strict=True):
        method = part.cls(method, **values)
    return method if min_count == 1 else Withholding(method, min_count)


def has_setting(spec: str, key: str) -> bool:
    """Whether a setting of this name can be given to a spec, whatever its value."""
    parts, _ = _parts(spec)
    return key.partition(".")[0] in _trainings(parts[0].cls) or _found(key, parts) is not None


@dataclass(frozen=True)
class SpecPart:
    """One word of a spec: the method, or a wrapper."""

    word: str
    paper: bool  # `@paper` stands behind it
    cls: type

    @property
    def name(self) -> str:
        """Without the module of a class that lives elsewhere."""
        return self.word.rpartition(":")[2]

    @property
    def settings(self) -> dict[str, Knob]:
        return {k.name: k for k in knobs(self.cls) if k.name != "local" and k.kind is not Training}


def _parts(spec: str) -> tuple[list[SpecPart], dict[str, Any]]:
    """A spec written out, from the inside out, and the settings that its name stands for."""
    full, implied = expand(spec, _files(__name__))
    (first, paper), *rest = [split_preset(word) for word in full.split("+")]
    return [
        SpecPart(first, paper, find(first)),
        *(SpecPart(word, each, _wrapper(word)) for word, each in rest),
    ], implied


def split_preset(word: str) -> tuple[str, bool]:
    """One name of a spec, and whether it has the suffix `@paper`."""
    name, at, preset = word.partition("@")
    if at and preset != PRESET:
        raise ValueError(f"{name} has no preset {preset!r}: {nearest(preset, [PRESET])}; our defaults need none")
    return name, bool(at)


def words_of(spec: str) -> list[str]:
    """The method and the wrappers of a spec by their names, from the inside out."""
    return [part.name for part in _parts(spec)[0]]


def title(spec: str, method: Any) -> str:
    """The label of the method that `build` made of `spec`, and whose values are those of a paper."""
    parts, _ = _parts(spec)
    papers = [part.name for part in parts if part.paper]
    if not papers:
        return str(method.label)
    whose = "" if len(papers) == len(parts) else f"{', '.join(papers)}: "
    return f"{method.label} ({whose}{PRESET})"


def training_fields(cls: type) -> list[str]:
    """The fields of a method that say how something is trained; most have one, `local`."""
    return [knob.name for knob in knobs(cls) if knob.kind is Training]


def _trainings(cls: type) -> list[str]:
    """The same with `local` first, which flags are about even where a method has none."""
    return ["local", *(name for name in training_fields(cls) if name != "local")]


def _training(cls: type, name: str, chosen: Mapping[str, Any], asked: Mapping[str, Any]) -> Training:
    """A field of a method that is a Training, with what is asked for: what the others may be can depend on it."""
    usual = {f.name: f.default for f in fields(cls)}
    if name not in usual:
        raise ValueError(f"{cls.__name__} has no field {name!r}, so it takes none of {sorted(asked)}")
    if "epochs" in asked:
        asked = {"steps": None, **asked}  # a paper's number of steps would win over the epochs that were asked for
    found: Training = replace(chosen.get(name, usual[name]), **{n: parse(v, TRAINING[n]) for n, v in asked.items()})
    return found


def _found(key: str, parts: list[SpecPart]) -> tuple[int, Knob] | None:
    """Which part of the spec a setting belongs to: the outermost that has a field of this name; None: no part."""
    prefix, _, name = key.rpartition(".")
    for place, part in reversed(list(enumerate(parts))):
        if name in part.settings and prefix in ("", part.name):
            return place, part.settings[name]
    return None


def _wrapper(suffix: str) -> type:
    found = suffixes()
    if suffix not in found:
        raise ValueError(f"there is no wrapper +{suffix}: {nearest(suffix, found)}")
    return found[suffix]


def _files(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def _class_of(module: str) -> type:
    """The one public dataclass with the protocol's functions that a file, or the folder of a paper, defines."""
    classes = [c for c in vars(importlib.import_module(module)).values() if _is_method(c)]
    found = [c for c in classes if f"{c.__module__}.".startswith(f"{module}.")]
    if len(found) != 1:
        raise ValueError(f"{module} must define exactly one method (a dataclass with {', '.join(PROTOCOL)}); "
                         f"it defines {len(found)}: {[c.__name__ for c in found]}")  # fmt: skip
    return found[0]


def _is_method(value: Any) -> bool:
    if not (isinstance(value, type) and is_dataclass(value)):
        return False
    return issubclass(value, Wrapper) or all(callable(getattr(value, name, None)) for name in PROTOCOL)


def _outside(path: str) -> type:
    cls, home = find_outside(path, "method")
    if not _is_method(cls):
        classes = [n for n, c in vars(home).items() if _is_method(c)]
        raise ValueError(f"{path!r} is not a method (a frozen dataclass with {', '.join(PROTOCOL)}); "
                         f"methods in {home.__name__}: {', '.join(classes) or 'none'}")  # fmt: skip
    found: type = cls
    return found
