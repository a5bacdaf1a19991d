"""What an app's run config says (the keys of `posterity run`, and a few of its own), and whether a run goes on with it.

A simulation that is resumed has one configuration, that of its folder. On Flower the run config is given each time, so
it is compared with `config.toml` of the server's folder. What makes method, network and rounds is in the agreement's
fingerprint, where a value that is written out equals the same one by default; the rest is compared by name. What no
server or site looks at may change.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from posterity.methods import split_preset
from posterity.runs.folder import CONFIG
from posterity.settings.config import Config, from_table, read_toml, settings_where
from posterity.settings.hyperparameters import convert, parse_percent

AMOUNT = re.compile(r"\d{1,9}|(100|\d{1,2})(\.\d+)?%")


@dataclass(frozen=True)
class RoundRules:
    """When a round counts.

    Attributes:
        minimum: usable replies that it needs: a number of clients, or a share of its cohort, rounded up; a cohort that
            is smaller than the number must be complete
        tries: how often those whose reply is missing are asked, until the run stops
        pause: seconds before they are asked again: a node that was killed takes a while to come back
    """

    minimum: str = "50%"
    tries: int = 3
    pause: float = 30.0

    def __post_init__(self) -> None:
        if not AMOUNT.fullmatch(self.minimum):
            raise ValueError(f"minimum = {self.minimum!r} was given: give a number of clients ('2') or a share ('50%')")
        if self.tries < 1:
            raise ValueError(f"tries = {self.tries} was given: clients must be asked once at least; give 1 or more")

    def needed(self, cohort: int) -> int:
        """Usable replies that a round with such a cohort needs; of somebody, one at least."""
        percent = parse_percent(self.minimum)
        wanted = int(self.minimum) if percent is None else math.ceil(percent / 100 * cohort)
        return min(cohort, max(1, wanted))


MIN_COUNT = 5  # samples behind a class's statistics or a score for it to leave a site
DEADLINE = 3600.0  # seconds until a reply is given up


@dataclass(frozen=True)
class RunSettings:
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
    given = {name: table.get(name, value) for name, value in mine.items()}
    rest = {name: value for name, value in table.items() if name not in mine}
    chosen = {name.removeprefix("set."): rest.pop(name) for name in [*rest] if name.startswith("set.")}
    config = from_table({**rest, "set": chosen})
    if config.min_count is None:
        of_paper = any(paper for _, paper in map(split_preset, config.method.split("+")))  # in which all is sent
        config = replace(config, min_count=1 if of_paper else MIN_COUNT)
    sites = int(_number(given, "sites", int, 0, "a whole number")) or config.clients
    if not sites:
        raise ValueError("the run config does not say how many sites there are: give sites = 3, or clients = 3")
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


# --- whether a run goes on
FREE = settings_where(lambda use: use.changes in ("sample", "rounding", "nothing"))
COMPARED = settings_where(lambda use: use.changes in ("data", "division", "cohort", "scores"))


def check_settings(config: Config, folder: Path) -> None:
    changed = [each for each in _changes(config, folder) if each[0] in COMPARED or each[0].startswith("data.")]
    if changed:
        raise ValueError(_another(folder, changed))


def check_agreed(config: Config, folder: Path, now: str, before: str) -> None:
    """Refuse to go on where the fingerprint is another; settings that have changed are named."""
    if now != before:
        raise ValueError(_another(folder, _changes(config, folder)))


def _changes(config: Config, folder: Path) -> list[tuple[str, Any, Any]]:
    """Settings with another value than the run began with: name, given, expected."""
    given, expected = _values(config), _values(from_table(read_toml(folder / CONFIG)))
    names = dict.fromkeys((*expected, *given))
    pairs = ((name, given.get(name), expected.get(name)) for name in names)
    return [(name, now, was) for name, now, was in pairs if now != was and str(now) != str(was)]


def _another(folder: Path, changed: Iterable[tuple[str, Any, Any]]) -> str:
    shown = [(name, *("nothing" if value is None else repr(value) for value in pair)) for name, *pair in changed]
    named = "; ".join(f"{name} = {now} was given, expected {was}" for name, now, was in shown)
    return (f"{folder} holds another experiment ({named or 'method, configuration, network or posterity differ'}): put "
            "back what it began with, or give 'out' another folder and 'experiment' another name")  # fmt: skip


def _values(config: Config) -> dict[str, Any]:
    """Whatever may make other numbers, by name."""
    found = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in {*FREE, "set"}}
    return {**found, "evaluate_every": config.every, **config.set}
