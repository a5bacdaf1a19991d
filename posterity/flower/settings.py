"""What an app's run config says: the keys of `posterity run`, and a few of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posterity.core.parse import convert
from posterity.experiment.config import Config, from_table
from posterity.flower.rules import RoundRules
from posterity.methods import split_preset

MIN_COUNT = 5  # samples behind a class's statistics or a score for it to leave a site
DEADLINE = 3600.0  # seconds until a reply is given up


@dataclass(frozen=True)
class RunSettings:
    """What an app's run config says."""

    config: Config
    experiment: str
    out: Path
    sites: int
    deadline: float
    rules: RoundRules
    leave: tuple[str, ...]  # clients that go for good


def read_settings(table: Mapping[str, Any]) -> RunSettings:
    """The run config, whose other keys are those of `posterity run`; `set.` stands before those of [set]."""
    usual = RoundRules()
    mine = {"experiment": "experiment", "out": "", "sites": 0, "deadline": DEADLINE, "minimum": usual.minimum,
            "tries": usual.tries, "leave": ""}  # fmt: skip
    given = {**mine, **{name: value for name, value in table.items() if name in mine}}
    rest = {name: value for name, value in table.items() if name not in mine}
    chosen = {name.removeprefix("set."): value for name, value in rest.items() if name.startswith("set.")}
    config = from_table({**{n: v for n, v in rest.items() if not n.startswith("set.")}, "set": chosen})
    if config.min_count is None:
        config = replace(config, min_count=1 if _of_paper(config) else MIN_COUNT)
    sites = int(_number(given, "sites", int, 0, "a whole number")) or config.clients
    if not sites:
        raise ValueError("the run config does not say how many sites there are; give sites = 3, or clients = 3 where "
                         "a dataset is divided among them")  # fmt: skip
    experiment = str(given["experiment"])
    out = Path(str(given["out"]) or f"runs/{experiment}")
    leave = tuple(name.strip() for name in str(given["leave"]).split(",") if name.strip())
    deadline, tries = _number(given, "deadline", float, 1, "seconds"), _number(given, "tries", int, 1, "a whole number")
    return RunSettings(config, experiment, out, sites, deadline, RoundRules(str(given["minimum"]), int(tries)), leave)


def _number(given: Mapping[str, Any], name: str, kind: type, least: int, what: str) -> float:
    try:
        found: float = convert(given[name], kind)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not found >= least:
        raise ValueError(f"{name} = {given[name]!r} was given in the run config: give {what}, {least} or more")
    return found


def _of_paper(config: Config) -> bool:
    """Whether the values are those of a paper, in which everything is sent; `experiment.py` warns."""
    return any(paper for _, paper in map(split_preset, config.method.split("+")))


__all__ = ["DEADLINE", "MIN_COUNT", "RunSettings", "read_settings"]
