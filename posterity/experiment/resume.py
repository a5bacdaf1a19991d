"""May this run go on? What its folder says is compared with what is here now, always in this order.

    files      all there, whole, its own; the configuration is the one that it began with (`runs/folder.py`)
    code       what the configuration names as `package.module:attribute` is imported only if the user says so: the
               folder may be anybody's, and `run` and `compare` name theirs on the command line
    settings   those that are asked for, where a comparison or several seeds ask
    method     hyper-parameters, and the source of what made the numbers (`fingerprint.py`)
    data       partition, names and sizes of the clients, values
    network    name, size, and weights that no seed could make again

Whatever differs is refused in a sentence that says what was and what is. A comparison does such runs again instead:
nothing is deleted, `seed-0` becomes `seed-0.before-1`, a run like any other if it is named, but not part of its
comparison any more.

A run's folder stands alone: what a finished run needs of its data is in it, and no row is. `inputs.safetensors` says
how raw samples become what a network sees, run.json has names, counts, a fingerprint of the data and where their file
lay. A finished run is loaded with a federation that has names and counts only. One that goes on needs the data
themselves, the same ones: they are looked for where they lay when the run began.
"""

import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from posterity.data import DataError, Partition
from posterity.data.federation import Federation, FederationSpec, Part
from posterity.data.preprocess import Preprocessing, fingerprint
from posterity.data.user_files import looks_like_path
from posterity.engine.simulation import Simulation
from posterity.experiment.facts import network_facts
from posterity.experiment.fingerprint import outside_names, tell_changes
from posterity.experiment.setup import load_federation
from posterity.runs import files
from posterity.runs.folder import CONFIG, PLAN, RUN, place_aside, read_saved, runs_below, save_checkpoint
from posterity.settings.config import Config, from_table, read_toml
from posterity.version import __version__

Tell = Callable[[str], None]  # a sentence for the user
Known = dict[tuple[Any, ...], str | None]  # fingerprints of users' own data as they are now, each read once
DATA = (*(f.name for f in fields(FederationSpec) if f.name != "options"), "data_seed")  # of a configuration
INPUTS = "inputs.safetensors"


def tell_user(sentence: str) -> None:
    """Say something that is no result."""
    print(sentence, file=sys.stderr, flush=True)


def read_config(folder: Path) -> Config:
    return from_table(read_toml(folder / CONFIG))


# --- code
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
    """What the configurations name as code: where, for which setting, what."""
    found = [(path, read_toml(path)) for path in sorted(folder.rglob(CONFIG))]
    if (folder / PLAN).exists():
        plan = files.read_json(folder / PLAN)
        table = tomllib.loads(str(plan.get("config", "")))
        found += [(folder / PLAN, {**table, "method": str(name)}) for name in plan.get("methods", ())]
    for path, each in found:
        for setting, name in outside_names(from_table(each)).items():
            yield path, setting, name


# --- settings, versions, method, data, network
def check_settings(path: Path, config: Config) -> None:
    """Refuse a run in `path` that has other settings than `config`, and name them."""
    tables = [{**vars(each), **each.set, "set": None} for each in (read_config(path), config)]
    pairs = {name: [table.get(name) for table in tables] for name in {**tables[0], **tables[1]}}
    told = [f"{name}: there {_word(was)}, now {_word(now)}" for name, (was, now) in pairs.items() if was != now]
    if told:
        raise ValueError(f"{path} holds a run with other settings ({', '.join(told)}): give another --out, or these "
                         "settings")  # fmt: skip


def _word(value: Any) -> Any:
    return "not set" if value is None else value


def remark_versions(facts: Mapping[str, Any], folder: Path) -> None:
    """Say that a run goes on with other versions than it began with."""
    now = {"posterity": __version__, "torch": torch.__version__}
    if other := [f"{name} {facts[name]} (here: {now[name]})" for name in now if facts[name] != now[name]]:
        warnings.warn(f"{folder} was begun with {' and '.join(other)}: the last digits may differ from those of a run "
                      "that was never interrupted", stacklevel=2)  # fmt: skip


def check_same(facts: Mapping[str, Any], config: Config, sim: Simulation, out: Path) -> None:
    """Refuse to go on with another method, other data or another network than the run began with."""
    if facts.get("status") != "finished" and (changes := tell_changes(facts, config)):
        raise ValueError(
            f"{out} cannot go on, because it was begun with something else: {'; '.join(changes)}. Put back what was "
            f"there, or begin again: 'posterity run --config {out / CONFIG} --out ANOTHER' (a comparison: "
            "give its 'posterity compare …' again, which moves what changed aside)"
        )
    size = facts.get("processes", 1)
    if facts.get("status") != "finished" and size != sim.processes.size:  # sums of other shares round otherwise
        start = "posterity" if size == 1 else f"torchrun --standalone --nproc-per-node {size} -m posterity"
        raise ValueError(f"{out} was begun with its clients shared out among {size} processes, and here are "
                         f"{sim.processes.size}: go on with '{start} resume {out}'")  # fmt: skip
    before, now = facts["federation"], sim.federation
    if before["name"] == now.name:
        check_rule(before, now.partition, out)
    if (before["name"], before["train"]) != (now.name, now.train.counts.tolist()):
        raise ValueError(
            f"{out} was run on {before['name']!r} with {before['clients']} clients, but its configuration gives "
            f"{now.name!r} with {now.clients}: if the federation was an object of yours, hand it in again "
            "(posterity.load(folder, federation=..., model=...)); if a data file changed, put the old one back"
        )
    check_values(before, now, out)
    _check_network(facts["network"], network_facts(sim), out)


def check_rule(before: Mapping[str, Any], rule: Partition | None, out: Path) -> None:
    """Refuse a run whose clients came from another version of the partition than the rule has now.

    Clients put together by hand have none.
    """
    told = before["partition"]
    if rule is not None and told is not None and told["version"] != rule.version:
        raise ValueError(
            f"{out} was begun with version {told['version']} of the partition {rule.name!r}; here it has version "
            f"{rule.version}, which gives other clients for the same seed: read the run with 'posterity report {out}', "
            "go on with the posterity that began it, or begin again in another folder"
        )


def check_values(before: Mapping[str, Any], federation: Federation, folder: Path) -> None:
    """Refuse to go on with data in which values were edited."""
    if not federation.absent and before["fingerprint"] != fingerprint_of(federation):
        raise ValueError(
            f"{folder} was run on {before['name']!r} with other values than now: rows were edited, or moved to other "
            "parts. Put the old data back to go on; to use the new ones, begin again in another folder"
        )


def _check_network(before: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    if before == now:
        return
    was, here = (
        f"{told['name']!r} with {told['numbers']:,} numbers"
        + (f", {told['frozen']['numbers']:,} of them frozen" if told.get("frozen") else "")
        for told in (before, now)
    )
    raise ValueError(
        f"{out} was begun with the network {was}; here it is {'one with other weights' if was == here else here}: hand "
        "over the one that it had, with the weights that it came with (posterity.load(folder, model=…)); if the file "
        "that makes it was changed, put the old one back"
    )


# --- what has changed is done again
def find_changed(folder: Path, known: Known) -> dict[Path, tuple[str, ...]]:
    """The runs of one method that were begun with another one, or other data, and what changed."""
    found = {}
    for path in runs_below(folder, "seed-*"):
        facts, config = files.read_json(path / RUN), read_config(path)
        if changes := tell_changes(facts, config) + _data_changes(path, facts, config, known):
            found[path] = tuple(changes)
    return found


def _data_changes(path: Path, facts: Mapping[str, Any], config: Config, known: Known) -> list[str]:
    """What has changed in the clients since the run in `path` began; of data, users' own alone are looked at."""
    told = facts["federation"]["partition"]
    if told is not None and (now := Partition(told["rule"]).version) != told["version"]:
        return [f"the partition {told['rule']!r} had version {told['version']} and has {now} now"]
    if not (looks_like_path(config.dataset) or ":" in config.dataset):
        return []
    key = (*(getattr(config, name) for name in DATA), str(config.settings("data")))
    if key not in known:
        try:
            known[key] = fingerprint_of(find_federation(config, path, facts))
        except (ValueError, OSError):  # gone: whoever needs them will say so
            known[key] = None
    before = facts["federation"]["fingerprint"]
    return [f"values of {config.dataset} were edited"] if known[key] not in (None, before) else []


def begin_again(name: str, changed: Mapping[Path, tuple[str, ...]], tell: Tell) -> None:
    """Move the runs of one method aside that were begun with another one, and say so."""
    with ExitStack() as stack:
        for path in changed:
            stack.enter_context(files.locked(path))
        places = {path: path.rename(place_aside(path)) for path in changed}
    for changes in dict.fromkeys(changed.values()):
        moved = [path for path, why in changed.items() if why == changes]
        tell(f"{name}: {'; '.join(changes)}. What it had done ({', '.join(path.name for path in moved)}) is kept as "
             f"{places[moved[0]]}{' and so on' * (len(moved) > 1)}, counts no more, and is done again as far as it is "
             "asked for")  # fmt: skip


# --- the data of a run
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
    """Of the values as they were read, before any scaling."""
    parts = (federation.train, federation.validation, federation.test)
    rows = [each for part in parts for each in (part.rows, part.offsets)]
    return federation.fingerprint or fingerprint((federation.x, federation.y, *rows))


def save_inputs(folder: Path, federation: Federation) -> None:
    """How samples are prepared, beside the run that they are for."""
    way = federation.preprocessing
    trees = {} if way.shift is None else {"shift": {"x": way.shift}, "scale": {"x": way.scale}}
    save_checkpoint(folder, trees, {"columns": list(way.columns), "pictures": way.pictures}, INPUTS)


def absent_federation(folder: Path, facts: Mapping[str, Any]) -> Federation:
    """Names and counts of a finished run's federation; its samples are missing."""
    told = facts["federation"]
    leaves, way = read_saved(folder / INPUTS)
    columns = tuple(map(str, way["columns"]))
    dtype = getattr(torch, told["samples"])
    x = torch.full((2, *told["shape"]), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
    y = torch.zeros(2, dtype=torch.int64 if told["task"] == "classification" else torch.float32)
    parts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        offsets = torch.tensor([0, *told[name]]).cumsum(0)
        parts[name] = Part(torch.zeros(int(offsets[-1]), dtype=torch.int64), offsets)
    return Federation(
        told["name"], told["task"], x, y, told["classes"], **parts, members=told["members"], names=tuple(told["names"]),
        class_names=tuple(told["class_names"]), notes=tuple(told["notes"]), fingerprint=told["fingerprint"],
        preprocessing=Preprocessing(columns, bool(way["pictures"]), leaves.get("shift/x"), leaves.get("scale/x")),
        public=torch.zeros(told["public"], dtype=torch.int64) if told["public"] else None, absent=True,
    )  # fmt: skip


def find_federation(config: Config, folder: Path, facts: Mapping[str, Any]) -> Federation:
    """The federation of a run, from where its file lay when it began, or from here."""
    told = facts["federation"]
    for name, key in (("dataset", "file"), ("data_dir", "data_dir")):
        if told[key] and Path(told[key]).exists():
            config = replace(config, **{name: told[key]})
    try:
        return load_federation(config)
    except DataError as error:
        raise DataError(f"{error}. The run in {folder} is not finished and needs its data to go on") from None
