"""One file or folder per paper; `methods/foo.py` is `--method foo`. Wrappers (`wrappers/ft.py` is `+ft`) are suffixes.

Adding a file is all it takes to add a method; `package.module:Class` names one that lives elsewhere. `@paper` behind a
method or a wrapper (`pfedvmp@paper`, `fedavg+metavd@paper`) takes the values of its paper instead of our defaults.
Some specs have a name (`metavd` is `reptile+metavd`, see `posterity/settings/names.py`); a spec may begin with one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from posterity.core.passes import Training
from posterity.core.wrapper import Withholding, Wrapper
from posterity.settings.hyperparameters import Knob, flat_settings, knobs, nearest, paper_values, parse
from posterity.settings.names import NAMES, Named, expand
from posterity.settings.plugins import find_outside

PROTOCOL = ("passes", "message", "combine")
PRESET = "paper"


def available() -> dict[str, type]:
    """Every method of this folder by its name on the command line."""
    return {name: _class_of(f"{__name__}.{name}", Any) for name in _files(__name__) if name != "wrappers"}


def suffixes() -> dict[str, type]:
    """Every wrapper by its suffix."""
    package = f"{__name__}.wrappers"
    return {name: _class_of(f"{package}.{name}", Wrapper) for name in _files(package)}


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


def _refuse_brackets(spec: str) -> None:
    """They are for a list of methods, of which each may have values of its own."""
    name, bracket, inside = spec.partition("[")
    if bracket:
        values = " ".join(f"--set {each}" for each in inside.rstrip("]").split(",") if each)
        raise ValueError(f"{spec!r} has values in brackets, as in --methods of a comparison; for one method they are "
                         f"settings: --method {name} {values}".rstrip())  # fmt: skip


def build(
    spec: str, settings: Mapping[str, Any] | None = None, training: Mapping[str, Any] | None = None, min_count: int = 1
) -> Any:  # fmt: skip
    """The method of a spec such as `fedavg+ft`, with its fields set.

    A setting is `name` (a field of the method or of a wrapper), `wrapper.name`, or `local.name` (a field of Training),
    where `local` is any field of the method that is a Training; a whole Training may be given for it.
    Both settings and `training` win over the values of the paper, where the spec asks for those (`@paper`). With a
    `min_count` above 1, clients send nothing about classes of which they have fewer samples.
    """
    spec, implied, words, layers = _layers(spec)
    short = [name.rpartition(":")[2] for name, _ in words]
    chosen = [paper_values(layer) if paper else {} for layer, (_, paper) in zip(layers, words, strict=True)]
    trained: dict[str, dict[str, Any]] = {name: {} for name in ("local", *training_fields(layers[0]))}
    trained["local"] |= training or {}
    for key, value in (*implied.items(), *flat_settings(settings or {}).items()):
        field, _, name = key.partition(".")
        if field in trained:
            trained[field][_training_field(field, name, value)] = value
        else:
            place, knob = _place(key, layers, short, spec)
            chosen[place][knob.name] = parse(value, knob)
    trainings = {name: _training(layers[0], name, chosen[0], asked) for name, asked in trained.items() if asked}
    method = layers[0](**{**chosen[0], **trainings})
    for layer, values in zip(layers[1:], chosen[1:], strict=True):
        method = layer(method, **values)
    return method if min_count == 1 else Withholding(method, min_count)


def has_setting(spec: str, key: str) -> bool:
    """Whether a setting of this name can be given to a spec, whatever its value."""
    spec, _, words, layers = _layers(spec)
    if key.partition(".")[0] in ("local", *training_fields(layers[0])):
        return True
    return _found(key, layers, [name.rpartition(":")[2] for name, _ in words]) is not None


def _layers(spec: str) -> tuple[str, dict[str, Any], list[tuple[str, bool]], list[type]]:
    """A spec written out: what its name stands for, the settings that go with that, its words and their classes."""
    _refuse_brackets(spec)
    spec, implied = expand(spec, _files(__name__))
    words = [split_preset(word) for word in spec.split("+")]
    return spec, implied, words, [find(words[0][0]), *(_wrapper(name) for name, _ in words[1:])]


def split_preset(word: str) -> tuple[str, bool]:
    """One name of a spec, and whether it has the suffix `@paper`."""
    name, at, preset = word.partition("@")
    if at and preset != PRESET:
        raise ValueError(f"{name} has no preset {preset!r}: {nearest(preset, [PRESET])}; our defaults need none")
    return name, bool(at)


def words_of(spec: str) -> list[str]:
    """The method and the wrappers of a spec by their names, from the inside out."""
    expanded, _ = expand(spec, _files(__name__))
    return [split_preset(word)[0].rpartition(":")[2] for word in expanded.split("+")]


def title(spec: str, method: Any) -> str:
    """The label of the method that `build` made of `spec`, and whose values are those of a paper."""
    words = [split_preset(word) for word in expand(spec, _files(__name__))[0].split("+")]
    papers = [name.rpartition(":")[2] for name, paper in words if paper]
    if not papers:
        return str(method.label)
    whose = "" if len(papers) == len(words) else f"{', '.join(papers)}: "
    return f"{method.label} ({whose}{PRESET})"


def training_fields(cls: type) -> list[str]:
    """The fields of a method that say how something is trained; most have one, `local`."""
    return [knob.name for knob in knobs(cls) if knob.kind is Training]


def _training_field(field: str, name: str, value: Any) -> str:
    """The field of Training that a setting such as `local.lr` names."""
    possible = [knob.name for knob in knobs(Training)]
    if not name:
        raise ValueError(f"{field} = {value!r} was given, but {field} is a whole training: set its fields, as in "
                         f"{field}.lr=0.1 ({', '.join(possible)}), or give a Training from Python")  # fmt: skip
    if name not in possible:
        raise ValueError(f"there is no setting {field}.{name}: {nearest(name, possible)}")
    return name


def _training(layer: type, name: str, chosen: Mapping[str, Any], asked: Mapping[str, Any]) -> Training:
    """A field of a method that is a Training, with what is asked for: what the others may be can depend on it."""
    possible = {k.name: k for k in knobs(Training)}
    usual = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(layer)}
    if name not in usual:
        raise ValueError(f"{layer.__name__} has no field {name!r}, so it takes none of {sorted(asked)}")
    if "epochs" in asked:
        asked = {"steps": None, **asked}  # a paper's number of steps would win over the epochs that were asked for
    values = {n: parse(v, possible[n]) for n, v in asked.items()}
    found: Training = replace(chosen.get(name, usual[name]), **values)
    return found


def _tables(layers: list[type]) -> list[dict[str, Knob]]:
    """The settings of each layer by their names."""
    return [{k.name: k for k in knobs(layer) if k.name != "local" and k.kind is not Training} for layer in layers]


def _found(key: str, layers: list[type], names: list[str]) -> tuple[int, Knob] | None:
    """Which layer of the spec a setting belongs to: the outermost that has a field of this name; None: no layer."""
    prefix, _, name = key.rpartition(".")
    tables = _tables(layers)
    places = (p for p in reversed(range(len(layers))) if name in tables[p] and prefix in ("", names[p]))
    return next(((place, tables[place][name]) for place in places), None)


def _place(key: str, layers: list[type], names: list[str], spec: str) -> tuple[int, Knob]:
    """As `_found`, or an error that says what is possible."""
    if (found := _found(key, layers, names)) is not None:
        return found
    tables = _tables(layers)
    trainings = ["local", *(name for name in training_fields(layers[0]) if name != "local")]
    every = [n for table in tables for n in table] + [f"{n}.{k.name}" for n in trainings for k in knobs(Training)]
    raise ValueError(f"{spec} has no setting {key!r}: {nearest(key, every)}")


def _wrapper(suffix: str) -> type:
    found = suffixes()
    if suffix not in found:
        raise ValueError(f"there is no wrapper +{suffix}: {nearest(suffix, found)}")
    return found[suffix]


def _files(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def _class_of(module: str, base: Any) -> type:
    """The one public dataclass with the protocol's functions that a file defines."""
    home = importlib.import_module(module)
    found = [c for c in vars(home).values() if isinstance(c, type) and _inside(c, module) and _is_method(c)]
    if len(found) != 1:
        raise ValueError(f"{module} must define exactly one method (a dataclass with {', '.join(PROTOCOL)}); "
                         f"it defines {len(found)}: {[c.__name__ for c in found]}")  # fmt: skip
    return found[0]


def _inside(cls: type, module: str) -> bool:
    """Whether a class was written in a file, or in the folder that holds all of a paper."""
    return f"{cls.__module__}.".startswith(f"{module}.")


def _is_method(cls: type) -> bool:
    return issubclass(cls, Wrapper) or (is_dataclass(cls) and all(callable(getattr(cls, n, None)) for n in PROTOCOL))


def _outside(path: str) -> type:
    cls, home = find_outside(path, "method")
    if not isinstance(cls, type) or not _is_method(cls):
        classes = [n for n, c in vars(home).items() if isinstance(c, type) and _is_method(c)]
        lacks = [n for n in PROTOCOL if not callable(getattr(cls, n, None))] if isinstance(cls, type) else []
        why = f": it has no {', '.join(lacks)}" if lacks else ": put @dataclass(frozen=True) above it" if cls else ""
        raise ValueError(f"{path!r} is not a method (a frozen dataclass with {', '.join(PROTOCOL)}){why}; "
                         f"methods in {home.__name__}: {', '.join(classes) or 'none'}")  # fmt: skip
    return cls
