"""A run's folder stands alone: what a finished run needs of its data is in it, and no row is.

    inputs.safetensors   how raw samples become what a network sees (`data/preprocess.py`), and names of columns
    run.json             names, counts, the shape of a sample, a fingerprint of the data, where their file lay

A finished run is loaded with a federation that has names and counts only. One that goes on needs the data themselves,
the same ones: they are looked for where they lay when the run began.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posterity.data import DataError
from posterity.data.federation import Federation, Part
from posterity.data.preprocess import Preprocessing, fingerprint
from posterity.data.user_files import looks_like_path
from posterity.experiment import run_folder
from posterity.experiment.config import Config
from posterity.experiment.setup import load_federation

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
