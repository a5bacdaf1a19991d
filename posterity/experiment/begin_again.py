"""Runs of a comparison whose method or data were edited since: they are moved aside, and done again.

Nothing is deleted: `seed-0` becomes `seed-0.before-1`, a run like any other if it is named, but not part of its
comparison any more (`report/aside.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any

from posterity.data.federation import FederationSpec
from posterity.data.user_files import looks_like_path
from posterity.experiment import run_folder
from posterity.experiment.config import Config, from_table, read_toml
from posterity.experiment.fingerprint import tell_changes
from posterity.experiment.without_data import find_federation, fingerprint_of
from posterity.report.aside import MARK, is_aside

Tell = Callable[[str], None]  # a sentence for the user
DATA = (*(f.name for f in fields(FederationSpec) if f.name != "options"), "data_seed")  # of a configuration


def tell_user(sentence: str) -> None:
    """Say something that is no result."""
    print(sentence, file=sys.stderr, flush=True)


def runs_below(folder: Path, pattern: str = "**") -> list[Path]:
    """The runs in or below a folder that have begun, without those that were moved aside."""
    found = sorted(path.parent for path in folder.glob(f"{pattern}/{run_folder.CONFIG}"))
    return [path for path in found if not is_aside(path, folder)]


def check_settings(path: Path, config: Config) -> None:
    """Refuse a run in `path` that has other settings than `config`, and name them."""
    before = from_table(read_toml(path / run_folder.CONFIG))
    if before == config:
        return
    names = [f.name for f in fields(Config) if f.name != "set" and getattr(before, f.name) != getattr(config, f.name)]
    told = [_difference(name, getattr(before, name), getattr(config, name)) for name in names]
    keys = [key for key in {**before.set, **config.set} if before.set.get(key) != config.set.get(key)]
    told += [_difference(key, before.set.get(key), config.set.get(key)) for key in keys]
    raise ValueError(
        f"{path} holds a run with other settings ({', '.join(told)}): give another --out, or these settings"
    )


def _difference(name: str, before: Any, now: Any) -> str:
    was, given = ("not set" if value is None else value for value in (before, now))
    return f"{name}: there {was}, now {given}"


@dataclass(frozen=True)
class DataNow:
    """Fingerprints of users' own data as they are now; those that several methods have are read once."""

    known: dict[tuple[Any, ...], str | None] = field(default_factory=dict)

    def changes(self, path: Path, facts: dict[str, Any], config: Config) -> list[str]:
        """What has changed since the run in `path` began, in words; the package's own data sets are not looked at."""
        before = facts.get("federation", {}).get("fingerprint")
        if not before or not (looks_like_path(config.dataset) or ":" in config.dataset):
            return []
        key = (*(getattr(config, name) for name in DATA), str(config.settings("data")))
        if key not in self.known:
            self.known[key] = _read(path, facts, config)
        return [f"values of {config.dataset} were edited"] if self.known[key] not in (None, before) else []


def _read(path: Path, facts: dict[str, Any], config: Config) -> str | None:
    try:
        return fingerprint_of(find_federation(config, path, facts))
    except (ValueError, OSError):  # gone: whoever needs them will say so
        return None


def find_changed(folder: Path, now: DataNow) -> dict[Path, tuple[str, ...]]:
    """The runs of one method (`folder/seed-0`, …) that were begun with another one, or other data, and what changed."""
    found = {}
    for path in runs_below(folder, "seed-*"):
        facts, config = run_folder.read_json(path / run_folder.RUN), from_table(read_toml(path / run_folder.CONFIG))
        if changes := tell_changes(facts, config) + now.changes(path, facts, config):
            found[path] = tuple(changes)
    return found


def move_aside(paths: Sequence[Path]) -> list[Path]:
    """Move runs of one method aside; where they are now."""
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(run_folder.locked(path))
        for path in paths:  # what seeds that ran at once have pledged belongs to them
            seeds = run_folder.read_json(path / run_folder.RUN).get("together", [])
            if seeds:
                run_folder.keep_pledge([path.parent / f"seed-{seed}" for seed in seeds])
        (paths[0].parent / run_folder.PLEDGE).unlink(missing_ok=True)
        places = [_free(path) for path in paths]
        for path, place in zip(paths, places, strict=True):
            path.rename(place)
    return places


def _free(path: Path) -> Path:
    return next(place for n in count(1) if not (place := path.with_name(f"{path.name}{MARK}{n}")).exists())


def begin_again(name: str, changed: dict[Path, tuple[str, ...]], tell: Tell) -> None:
    """Move the runs of one method aside that were begun with another one, and say so."""
    places = move_aside(list(changed))
    for changes in dict.fromkeys(changed.values()):
        moved = [(path, place) for (path, why), place in zip(changed.items(), places, strict=True) if why == changes]
        runs = ", ".join(path.name for path, _ in moved)
        tell(
            f"{name}: {'; '.join(changes)}. What it had done ({runs}) is kept as {moved[0][1]}"
            f"{' and so on' * (len(moved) > 1)}, counts no more, and is done again as far as it is asked for"
        )


def remark_on_others(paths: Sequence[Path], tell: Tell, now: DataNow) -> None:
    """Say of methods that are in the folder but not asked for whether they, or their data, were edited since."""
    for folder in dict.fromkeys(path.parent for path in paths):
        try:
            changed = find_changed(folder, now)
        except ValueError:  # a method that is not there any more
            continue
        if changed:
            changes = next(iter(changed.values()))
            tell(
                f"remark: {folder} was not asked for and stays in the table, but {'; '.join(changes)} since; name it "
                "in --methods to have it done again"
            )


def remark_on_old(paths: Sequence[Path], tell: Tell) -> None:
    """Say of how many runs nobody knows which source they had."""
    old = [path for path in paths if "sources" not in run_folder.read_json(path / run_folder.RUN)]
    if old:
        more = ", …" * (len(old) > 1)
        tell(
            f"remark: {len(old)} of the runs ({old[0]}{more}) began before the source of a method was written down "
            "with its runs: their hyper-parameters are the same, their source is taken to be"
        )


__all__ = [
    "DataNow", "Tell", "begin_again", "check_settings", "find_changed", "move_aside", "remark_on_old",
    "remark_on_others", "runs_below", "tell_user"
]  # fmt: skip
