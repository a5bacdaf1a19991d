"""Hyper-parameters: documented once, on their field, with where the value comes from.

Flags, TOML keys, tables of documentation and error messages are made from these fields. A field has a default, which is
what we recommend, and may have a second value, `paper`: what its paper states, where that is something else. How a text
becomes a value is said in `core/parse.py`; configurations (`experiment/config.py`) are made of such fields too.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

from posterity.core.parse import MISTAKES, convert

Search = tuple[Any, ...]
MANY = 24  # words: a list of more is no help to somebody who has mistyped one
UNSTATED: Any = object()  # the paper says nothing else than the default; None is a value


def hyper(
    default: Any, doc: str, source: str = "", choices: tuple[str, ...] = (), paper: Any = UNSTATED,
    search: Search | None = None, infinite: bool = False,
) -> Any:  # fmt: skip
    """A field of a method: its default, its meaning, where the default comes from, its allowed values, the paper's.

    A last choice such as `package.module:engine` allows anything of that form. `search` is where tuning looks for it:
    (lowest, highest, "log") or (lowest, highest, "linear"), or some values. `infinite`: whether `inf` means something.
    """
    said = {"doc": doc, "source": source, "choices": choices, "paper": paper, "search": search, "infinite": infinite}
    return field(default=default, metadata=said)


@dataclass(frozen=True)
class Knob:
    """One hyper-parameter as users see it."""

    name: str
    kind: Any
    default: Any
    doc: str
    source: str
    choices: tuple[str, ...]
    paper: Any = UNSTATED
    search: Search | None = None
    infinite: bool = False

    @property
    def differs(self) -> bool:
        """Whether the paper states another value than the default."""
        return self.paper is not UNSTATED and bool(self.paper != self.default)


def knobs(cls: type) -> list[Knob]:
    """The hyper-parameters of a method or of any dataclass made with `hyper`."""
    hints = typing.get_type_hints(cls)
    return [_knob(f, hints[f.name]) for f in fields(cls) if "doc" in f.metadata]


def _knob(f: Field[Any], kind: Any) -> Knob:
    default = None if f.default is MISSING else f.default
    said = f.metadata
    return Knob(f.name, kind, default, said["doc"], said["source"], said["choices"], said["paper"], said["search"],
                said["infinite"])  # fmt: skip


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


def nearest(word: str, possible: typing.Iterable[str]) -> str:
    """A sentence that names what is possible, closest first; of many words those that are close, if any is."""
    words = sorted(possible)
    close = difflib.get_close_matches(word, words, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    if close and len(words) > MANY:
        return f"{hint} ({len(words)} are possible)"
    return f"{hint} possible: {', '.join(words)}".strip()


def parse(text: Any, knob: Knob) -> Any:
    """`text` (of a flag or a TOML value) as the type of the knob, or an error that says what was expected."""
    try:
        value = convert(text, knob.kind)
    except MISTAKES:
        raise ValueError(f"{knob.name} takes {describe(knob.kind)}; {_kind_of(text)}{text!r} was given "
                         f"({knob.doc})") from None  # fmt: skip
    if isinstance(value, float) and not math.isfinite(value) and not (knob.infinite and value > 0):
        raise ValueError(f"{knob.name} must be a finite number; {value} was given ({knob.doc})")
    if knob.choices and value not in knob.choices and not (":" in str(value) and ":" in knob.choices[-1]):
        raise ValueError(f"{knob.name} = {value!r} is unknown: {nearest(str(value), knob.choices)}")
    return value


def _kind_of(value: Any) -> str:
    """What something is that is no single value."""
    if isinstance(value, Mapping):
        return "the table "
    return "the list " if isinstance(value, (list, tuple, set)) else ""


def describe(kind: Any) -> str:
    """A type in words."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    words = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", type(None): "none"}
    return " or ".join(words.get(o, str(o)) for o in options)


def check_fields(value: Any) -> None:
    """Refuse a record whose fields have other types or values than declared; `__post_init__` of methods calls it."""
    for knob in knobs(type(value)):
        current = getattr(value, knob.name)
        if is_dataclass(current):
            continue
        if isinstance(parse(current, knob), str) != isinstance(current, str):  # a text is converted by `parse` alone
            raise ValueError(f"{knob.name} takes {describe(knob.kind)}; the text {current!r} was given")


def within(value: Any, **bounds: tuple[float | None, float | None]) -> None:
    """Refuse fields of `value` that are not between their bounds (None = no bound); NaN is between none."""
    for name, (low, high) in bounds.items():
        given = getattr(value, name)
        if given is None:
            continue
        if (low is not None and not given >= low) or (high is not None and not given <= high):
            words = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            raise ValueError(f"{name} must be {' and '.join(words)}; {given} was given")
