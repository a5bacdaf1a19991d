"""The parameters of `posterity.run` and its like: the fields of `Config`, typed, documented and named when mistyped.

`Settings` is what a type checker and an editor see. `documented` gives a function the same parameters at run time, so
that `help` and notebooks show each with its default and meaning. A test holds both equal to `Config`. Nothing here
imports PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypedDict, TypeVar

from posterity.core.hyperparameters import knobs, nearest
from posterity.experiment.config import Config

P = ParamSpec("P")
R = TypeVar("R")


class SharedSettings(TypedDict, total=False):
    """Settings that all runs of a comparison have in common."""

    dataset: str
    target: str | None
    client_column: str | None
    group: str | None
    data_dir: str | None
    clients: int | None
    newcomers: str
    partition: str | None
    subset: str | None
    split: str
    test_partition: str
    public: str
    rounds: int
    local_epochs: int | None
    local_steps: int | None
    batch_size: int | None
    lr: float | None
    optimiser: str | None
    augment: str | None
    participation: str
    min_count: int | None
    data_seed: int | None
    engine: str
    convolution: str
    onednn: str
    device: str
    precision: str
    dtype: str
    evaluate_every: int | None
    evaluate_clients: str | None
    evaluate_points: str
    newcomer_epochs: int
    keep: str
    metrics: str | None
    store: str
    memory: int | None
    set: Mapping[str, Any]


class Settings(SharedSettings, total=False):
    """Settings of one run."""

    seed: int


def documented(function: Callable[P, R]) -> Callable[P, R]:
    """A function `(…, **settings: Unpack[Settings])` that shows all of its parameters and refuses others."""
    takes = inspect.signature(function).parameters.values()
    fixed = [p for p in takes if p.kind is not p.VAR_KEYWORD]
    left_out = {p.name for p in fixed}
    if any("SharedSettings" in str(p.annotation) for p in takes):
        left_out |= {"method", "seed"}  # there are several of them
    shown = [knob for knob in knobs(Config) if knob.name not in left_out]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(k.name, kind, default=k.default, annotation=k.kind) for k in shown]
    more.append(inspect.Parameter("set", kind, default={}, annotation=Mapping[str, Any]))
    names = [p.name for p in (*fixed, *more)]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{function.__name__} has no parameter {name!r}: {nearest(name, names)}. Settings of a "
                                f"method, a model or data go into set={{{name!r}: …}}")  # fmt: skip
        return function(*args, **kwargs)

    checked.__signature__ = inspect.signature(function).replace(parameters=[*fixed, *more])  # type: ignore[attr-defined]
    lines = [
        f"    {knob.name}: {knob.doc}" + (f" ({', '.join(knob.choices)})" if knob.choices else "") for knob in shown
    ]
    lines.append("    set: settings of the method, and model.* and data.*, by name: set={'xi': 10, 'model.hidden': 32}")
    checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n" + "\n".join(lines) + "\n"
    return checked
