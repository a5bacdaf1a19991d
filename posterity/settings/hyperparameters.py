"""Hyper-parameters: documented once, on their field, with where the value comes from; and the reading of texts.

Flags, TOML keys, tables of documentation and error messages are made from these fields. A field has a default, which is
what we recommend, and may have a second value, `paper`: what its paper states, where that is something else.
Configurations (`settings/config.py`) are made of such fields too.

What was typed on a command line, or stands in a TOML file, is read here and nowhere else: `convert` reads a value by
its declared type, `guess` one without a type, `parse_…` and `split_…` read forms, `declared` says what a function
takes. They raise a ValueError or TypeError that says little: callers know what was asked for and write the sentence.
"""

import difflib
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

Search = tuple[Any, ...]
MANY = 24  # words: a list of more is no help to somebody who has mistyped one
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("at least", operator.ge), "gt": ("above", operator.gt),
    "le": ("at most", operator.le), "lt": ("below", operator.lt),
}  # fmt: skip
UNSTATED: Any = object()  # the paper says nothing else than the default; None is a value


@dataclass(frozen=True)
class Knob:
    """One hyper-parameter as users see it; its name and type are those of its field.

    A last choice such as `package.module:engine` allows anything of that form. `search` is where tuning looks for it:
    (lowest, highest, "log") or (lowest, highest, "linear"), or some values. `infinite`: whether `inf` means something.
    Bounds of a number are `ge`, `gt`, `le` and `lt`, as in `ge=0`; None is within all of them.
    """

    name: str
    kind: Any
    default: Any
    doc: str
    source: str
    choices: tuple[str, ...]
    paper: Any = UNSTATED
    search: Search | None = None
    infinite: bool = False
    bounds: Mapping[str, float] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether the paper states another value than the default."""
        return self.paper is not UNSTATED and bool(self.paper != self.default)


def hyper(
    default: Any, doc: str, source: str = "", choices: tuple[str, ...] = (), paper: Any = UNSTATED,
    search: Search | None = None, infinite: bool = False, **bounds: float,
) -> Any:  # fmt: skip
    """A field of a method: its default, its meaning, where the default comes from, and the rest of a `Knob`."""
    knob = Knob("", None, default, doc, source, choices, paper, search, infinite, bounds)
    return field(default=default, metadata={"knob": knob})


def knobs(cls: type) -> list[Knob]:
    """The hyper-parameters of a method or of any dataclass made with `hyper`."""
    made = [f for f in fields(cls) if "knob" in f.metadata]
    hints = _types(cls) if made else {}
    return [replace(f.metadata["knob"], name=f.name, kind=hints[f.name]) for f in made]


def _types(cls: type) -> dict[str, Any]:
    """The types of a class's fields; code that was handed to `exec` has no module, but its functions know its names."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        functions = [each for base in cls.__mro__ for each in vars(base).values() if inspect.isfunction(each)]
        return typing.get_type_hints(cls, localns={k: v for each in functions for k, v in each.__globals__.items()})


def paper_values(cls: type) -> dict[str, Any]:
    """The fields whose value is another one in the method's paper, with that value."""
    return {knob.name: knob.paper for knob in knobs(cls) if knob.differs}


def flat_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their full names: `[set.model] hidden = …` is `model.hidden`, and so are the fields of a record."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if is_dataclass(value) and not isinstance(value, type):  # a file has no None, and reads it from this word
            value = {f.name: "none" if (v := getattr(value, f.name)) is None else v for f in fields(value)}
        flat |= flat_settings(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def nearest(word: str, possible: Iterable[str]) -> str:
    """A sentence that names what is possible, closest first; of many words those that are close, if any is."""
    words = sorted(possible)
    close = difflib.get_close_matches(word, words, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    if close and len(words) > MANY:
        return f"{hint} ({len(words)} are possible)"
    return f"{hint} possible: {', '.join(words)}".strip()


def unknown(what: str, given: str, possible: Iterable[str]) -> str:
    """The text of an error: `given` is no `what`; the nearest names; all names."""
    return f"there is no {what} {given!r}: {nearest(given, [n for n in possible if n])}"


def describe(kind: Any) -> str:
    """A type in words."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", type(None): "none"}
    return " or ".join(words.get(o, str(o)) for o in options)


def parse(text: Any, knob: Knob) -> Any:
    """`text` (of a flag or a TOML value) as the type of the knob, or an error that says what was expected."""
    try:
        value = convert(text, knob.kind)
    except MISTAKES:
        raise ValueError(f"{knob.name} takes {describe(knob.kind)}; {text!r} was given ({knob.doc})") from None
    if isinstance(value, float) and not math.isfinite(value) and not (knob.infinite and value > 0):
        raise ValueError(f"{knob.name} must be a finite number; {value} was given ({knob.doc})")
    if knob.choices and value not in knob.choices and not (":" in str(value) and ":" in knob.choices[-1]):
        raise ValueError(f"{knob.name} = {value!r} is unknown: {nearest(str(value), knob.choices)}")
    return value


def check_fields(value: Any) -> None:
    """Refuse a record whose fields have other types or values than declared; every method does when it is made."""
    for knob in knobs(type(value)):
        current = getattr(value, knob.name)
        if is_dataclass(current):
            continue
        if isinstance(parse(current, knob), str) != isinstance(current, str):  # a text is converted by `parse` alone
            raise ValueError(f"{knob.name} takes {describe(knob.kind)}; the text {current!r} was given")
        _check_bounds(knob, current)


def _check_bounds(knob: Knob, given: Any) -> None:
    """Refuse a number that is not within the bounds of its field; NaN is within none."""
    if given is not None and not all(BOUNDS[name][1](given, limit) for name, limit in knob.bounds.items()):
        words = " and ".join(f"{BOUNDS[name][0]} {limit}" for name, limit in knob.bounds.items())
        raise ValueError(f"{knob.name} must be {words}; {given} was given ({knob.doc})")


MISTAKES = (ValueError, TypeError, OverflowError)  # what a conversion of something unsuitable raises
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def convert(value: Any, kind: Any) -> Any:
    """`value`, a text or already a value, as the declared type `kind`: a plain type, a tuple of one, or a union."""
    if _is_union(kind):
        return _first(value, typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else list(value)
        return tuple(convert(item, typing.get_args(kind)[0]) for item in items)
    if kind is bool:
        if isinstance(value, bool):
            return value
        if (word := str(value).lower()) not in BOOLEANS:
            raise ValueError(value)
        return BOOLEANS[word]
    if kind is int:
        if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
            raise ValueError(value)
        return int(value)
    if kind is float and isinstance(value, bool):
        raise ValueError(value)
    if kind is not float and isinstance(value, (Mapping, list, tuple, set, type)):  # these are no words
        raise ValueError(value)
    return float(value) if kind is float else str(value)


def guess(value: Any) -> Any:
    """A text whose type nobody declared: a number, true/false, a list of these (32,16), else a word."""
    if not isinstance(value, str):
        return value
    if "," in value:
        return tuple(guess(piece) for piece in value.split(",") if piece)
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value.lower(), value)


def parse_percent(text: str) -> float | None:
    """The number before a percent sign (`20%` is 20.0); None where there is no sign."""
    return float(text[:-1]) if text.endswith("%") else None


def parse_share(value: str | float) -> float:
    """A share: `20%` or 0.2."""
    text = str(value).strip()
    percent = parse_percent(text)
    return float(text) if percent is None else percent / 100


def parse_amount(value: str | float, total: int) -> int:
    """How many of `total` are meant by `25%`, by a share below 1, or by a whole number."""
    text = str(value).strip()
    percent = parse_percent(text)
    number = float(text) if percent is None else percent
    if not math.isfinite(number) or number < 0:
        raise ValueError(value)
    if percent is not None:
        amount = round(total * number / 100)
    elif 0 < number < 1:
        amount = round(total * number)
    else:
        amount = convert(number, int)
    if amount > total:
        raise ValueError(value)
    return amount


def parse_split(text: str) -> tuple[float, float]:
    """`80/20` as two numbers."""
    first, second = (float(part) for part in text.split("/"))
    return first, second


def split_list(text: str) -> list[str]:
    """The pieces between commas, without those that are empty; one in brackets does not part: `a[x=1,y=2],b (c, d)`."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces if piece.strip()]


def parse_ranges(text: str) -> list[int]:
    """Whole numbers as `0,1,2`, `0-4`, or both; at least one, and at least one in every range."""
    found: list[int] = []
    for piece in split_list(text) or [""]:
        low, dash, high = piece.partition("-")
        numbers = range(convert(low, int), convert(high, int) + 1) if dash else [convert(low, int)]
        if not numbers:
            raise ValueError(piece)
        found += numbers
    return found


def split_name(text: str) -> tuple[str, list[str]]:
    """`NAME:ARG:ARG` as its name and the texts of its arguments."""
    name, *arguments = text.strip().split(":")
    return name, arguments


@dataclass(frozen=True)
class Declared:
    """What a function says about one of its parameters."""

    kind: Any  # its type; None if it says nothing
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, value: Any) -> Any:
        """A value that was typed, as what the function expects."""
        return guess(value) if self.kind is None else convert(value, self.kind)

    def read_given(self, value: Any) -> Any:
        """The same for a value that is not None: where None may be typed by leaving the argument out."""
        kinds = tuple(k for k in typing.get_args(self.kind) if k is not type(None))
        only = _is_union(self.kind) and len(kinds) == 1
        return replace(self, kind=kinds[0] if only else self.kind).read(value)


def declared(function: Callable[..., Any], given: tuple[str, ...] = ()) -> dict[str, Declared]:
    """The parameters of a function that a user may set, with types and defaults: all but those `given` elsewhere."""
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # a function without a signature, written in C
        return {}
    hints = _hints(getattr(function, "func", function))  # of what a `functools.partial` calls
    named = [p for p in found if p.name not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    kinds = {p.name: hints.get(p.name, type(p.default)) for p in named}
    return {p.name: Declared(kinds[p.name] if _is_known(kinds[p.name]) else None, p.default) for p in named}


def _is_known(kind: Any) -> bool:
    """Whether `convert` knows a type."""
    plain = kind in (int, float, bool, str) or typing.get_origin(kind) in (tuple, typing.Literal)
    return plain or _is_union(kind)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # a name that is imported for type checkers only; an object without annotations
        return {}


def _first(value: Any, kinds: tuple[Any, ...]) -> Any:
    """The first of several types that takes `value`; none is asked for by its name."""
    if type(None) in kinds and (value is None or str(value).lower() in ("none", "")):
        return None
    for kind in (k for k in kinds if k is not type(None)):
        try:
            return convert(value, kind)
        except (ValueError, TypeError):
            continue
    raise ValueError(value)
