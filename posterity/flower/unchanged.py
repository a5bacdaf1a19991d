"""Whether an experiment goes on with the settings that it began with, those in `config.toml` of the server's folder.

A simulation that is resumed has one configuration, that of its folder. On Flower the run config is given each time, so
it is compared. What makes method, network and rounds is in the agreement's fingerprint, where a value that is written
out equals the same one by default; the rest is compared by name. What no server or site looks at may change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from posterity.experiment.config import Config, from_table, read_toml
from posterity.experiment.run_folder import CONFIG

FREE = {"engine", "convolution", "onednn", "device", "data_dir", "evaluate_clients", "evaluate_points", "keep",
        "metrics", "store", "memory"}  # fmt: skip
COMPARED = {"dataset", "target", "client_column", "group", "clients", "newcomers", "partition", "subset", "split",
            "test_partition", "public", "participation", "data_seed", "evaluate_every", "newcomer_epochs"}  # fmt: skip
DATA = "data."  # settings of the data in [set]


def check_settings(config: Config, folder: Path) -> None:
    """Refuse settings that would change numbers of a run that has begun, and that no fingerprint holds."""
    changed = [each for each in changes(config, folder) if each[0] in COMPARED or each[0].startswith(DATA)]
    if changed:
        raise ValueError(told(folder, changed))


def check_agreed(config: Config, folder: Path, now: str, before: str) -> None:
    """Refuse to go on where the fingerprint is another; settings that have changed are named."""
    if now != before:
        raise ValueError(told(folder, changes(config, folder)))


def changes(config: Config, folder: Path) -> list[tuple[str, Any, Any]]:
    """Settings with another value than the run began with: name, given, expected; a folder of before says nothing."""
    if not (folder / CONFIG).exists():
        return []
    given, expected = _values(config), _values(from_table(read_toml(folder / CONFIG)))
    names = dict.fromkeys((*expected, *given))
    pairs = ((name, given.get(name), expected.get(name)) for name in names)
    return [(name, now, was) for name, now, was in pairs if now != was and str(now) != str(was)]


def told(folder: Path, changed: Iterable[tuple[str, Any, Any]]) -> str:
    named = "; ".join(f"{name} = {_shown(now)} was given, expected {_shown(was)}" for name, now, was in changed)
    return (f"{folder} holds another experiment ({named or 'method, configuration, network or posterity differ'}): put "
            "back what it began with, or give 'out' another folder and 'experiment' another name")  # fmt: skip


def _values(config: Config) -> dict[str, Any]:
    """Whatever may make other numbers, by name."""
    found = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in {*FREE, "set"}}
    return {**found, "evaluate_every": config.every, **config.set}


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


__all__ = ["check_agreed", "check_settings"]
