"""Runs of a comparison whose method or data were edited since: they are moved aside, and done again.

Nothing is deleted: `seed-0` becomes `seed-0.before-1`, a run like any other if it is named, but not part of its
comparison any more (`runs/folder.py`).

Modules that a run's folder names: importing one runs whatever stands in it, so the user must have named it, too.

`posterity run` and `compare` name theirs on the command line. A folder that is taken up again may be anybody's: what
its configuration names as `package.module:attribute` is imported only if the user says so.

A run's folder stands alone: what a finished run needs of its data is in it, and no row is.

    inputs.safetensors   how raw samples become what a network sees (`data/preprocess.py`), and names of columns
    run.json             names, counts, the shape of a sample, a fingerprint of the data, where their file lay

A finished run is loaded with a federation that has names and counts only. One that goes on needs the data themselves,
the same ones: they are looked for where they lay when the run began.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from posterity.data import DataError
from posterity.data.federation import Federation, FederationSpec, Part
from posterity.data.partition import RULES
from posterity.data.preprocess import Preprocessing, fingerprint
from posterity.data.user_files import looks_like_path
from posterity.experiment.fingerprint import tell_changes
from posterity.experiment.setup import load_federation
from posterity.runs import folder as run_folder
from posterity.runs.folder import MARK, PLAN, is_aside
from posterity.settings.config import Config, from_table, read_toml
from posterity.settings.hyperparameters import split_name

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


def outside_names(config: Config) -> dict[str, str]:
    """What a configuration takes from modules of the user's own: setting → `package.module:attribute`."""
    found = {
        "method": next((word for word in config.method.split("+") if ":" in word), ""),
        "dataset": config.dataset if ":" in config.dataset and not looks_like_path(config.dataset) else "",
        "partition": _user_rule(config.partition or ""),
        "model": config.model if ":" in config.model else "",
        "engine": config.engine if ":" in config.engine else "",
        "metrics": config.metrics or "",
    }
    return {setting: name for setting, name in found.items() if name}


def _user_rule(partition: str) -> str:
    """The partition if it is none of ours: these have numbers behind a colon, others a name."""
    return partition if ":" in partition and split_name(partition)[0] not in RULES else ""


def check_trusted(folder: Path, trust: bool) -> None:
    """Refuse to import what the configurations in or under a folder name, unless the user trusts them."""
    for path, setting, name in () if trust else _code(folder):
        raise ValueError(
            f"{path} names code of its own (the {setting} {name!r}), which would be imported and run: if you know "
            "who wrote the folder and the module, say so with --trust (in Python: trust=True)"
        )


def needs_trust(folder: Path) -> bool:
    """Whether `resume` will ask for `--trust`; not of a folder that cannot be read."""
    try:
        return next(_code(folder), None) is not None
    except (ValueError, OSError):
        return False


def _code(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """What the configurations in or under a folder name as code: where, for which setting, what."""
    for path, config in _configs(folder):
        for setting, name in outside_names(config).items():
            yield path, setting, name


def _configs(folder: Path) -> Iterator[tuple[Path, Config]]:
    """Every configuration that `resume` would take up."""
    if (folder / PLAN).exists():
        plan = run_folder.read_json(folder / PLAN)
        for method in plan.get("methods", ()):
            table = {**tomllib.loads(str(plan.get("config", ""))), "method": str(method)}
            yield folder / PLAN, from_table(table)
    for path in sorted(folder.rglob(run_folder.CONFIG)):
        yield path, from_table(read_toml(path))


INPUTS = "inputs.safetensors"


def data_facts(config: Config, federation: Federation) -> dict[str, Any]:
    """What `run.json` says so that a run can be taken up elsewhere."""
    own = looks_like_path(config.dataset)
    return {
        "shape": list(federation.shape),
        "samples": str(federation.x.dtype).removeprefix("torch."),
        "fingerprint": fingerprint_of(federation),
        "file": str(Path(config.dataset).absolute()) if own else None,
        "data_dir": None if config.data_dir is None else str(Path(config.data_dir).absolute()),
    }


def fingerprint_of(federation: Federation) -> str:
    """Of the values as they were read, where they were scaled afterwards; else of those that there are."""
    parts = (federation.train, federation.validation, federation.test)
    rows = [each for part in parts for each in (part.rows, part.offsets)]
    return federation.fingerprint or fingerprint((federation.x, federation.y, *rows))


def save_inputs(folder: Path, federation: Federation) -> None:
    """How samples are prepared, beside the run that they are for."""
    way = federation.preprocessing
    trees = {} if way.shift is None else {"shift": {"x": way.shift}, "scale": {"x": way.scale}}
    facts = {"columns": list(way.columns), "pictures": way.pictures}
    run_folder.save_checkpoint(folder, trees, facts, INPUTS)


def read_inputs(folder: Path) -> Preprocessing:
    leaves, facts = run_folder.read_saved(folder / INPUTS)
    columns = tuple(map(str, facts["columns"]))
    return Preprocessing(columns, bool(facts["pictures"]), leaves.get("shift/x"), leaves.get("scale/x"))


def stands_alone(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether the folder of a finished run has all that is needed; those of before have not."""
    return "shape" in facts.get("federation", {}) and (folder / INPUTS).exists()


def check_end(federation: Federation, round: int, rounds: int) -> None:
    """Refuse to train on data that are not here."""
    if federation.absent and round < rounds:
        raise ValueError(f"this run says that it is finished, but its checkpoint is of round {round} of {rounds}: hand "
                         "its data in to go on (posterity.load(folder, federation=...))")  # fmt: skip


def absent_federation(folder: Path, facts: dict[str, Any]) -> Federation:
    """Names and counts of a finished run's federation; its samples are missing."""
    told = facts["federation"]
    dtype = getattr(torch, told["samples"])
    x = torch.full((2, *told["shape"]), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
    y = torch.zeros(2, dtype=torch.int64 if told["task"] == "classification" else torch.float32)
    parts: dict[str, Any] = {name: _counted(told[name]) for name in ("train", "validation", "test")}
    return Federation(
        told["name"], told["task"], x, y, told["classes"], **parts, members=told["members"], names=tuple(told["names"]),
        class_names=tuple(told["class_names"]), notes=tuple(told["notes"]), preprocessing=read_inputs(folder),
        fingerprint=told["fingerprint"], absent=True,
        public=torch.zeros(told["public"], dtype=torch.int64) if told.get("public") else None,
    )  # fmt: skip


def _counted(counts: list[int]) -> Part:
    """A part of which the counts are known."""
    offsets = torch.tensor([0, *counts]).cumsum(0)
    return Part(torch.zeros(int(offsets[-1]), dtype=torch.int64), offsets)


def find_federation(config: Config, folder: Path, facts: dict[str, Any]) -> Federation:
    """The federation that a run's folder asks for: from where its file lay when the run began, or from here."""
    told = facts.get("federation", {})
    for name, key in (("dataset", "file"), ("data_dir", "data_dir")):
        if told.get(key) and Path(told[key]).exists():
            config = replace(config, **{name: told[key]})
    try:
        return load_federation(config)
    except DataError as error:
        ended = facts.get("status") == "finished"
        why = "was written before runs stood alone" if ended else "is not finished and needs its data to go on"
        raise DataError(f"{error}. The run in {folder} {why}") from None


def check_values(before: dict[str, Any], federation: Federation, folder: Path) -> None:
    """Refuse to go on with data in which values were edited; folders from before fingerprints say nothing."""
    told = before.get("fingerprint")
    if told and not federation.absent and told != fingerprint_of(federation):
        raise ValueError(
            f"{folder} was run on {before.get('name')!r} with other values than now: rows were edited, or moved to "
            "other parts. Put the old data back to go on; to use the new ones, begin again in another folder"
        )
