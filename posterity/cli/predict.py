"""`posterity predict RUN FILE`: rows of a file in, what each client's own model says about them out.

Columns are found by their names, so their order does not matter and others may stand between them. The answer is a CSV
file, written whole or not at all.
"""

import csv
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posterity
from posterity.data.archives import Array, check_file, read_npz
from posterity.data.federation import Federation
from posterity.data.pool import DataError, check_features, listed, tensor_of
from posterity.data.tables import CLIENT, SUFFIXES, named_values, read_csv, read_parquet
from posterity.experiment.result import Result
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.hyperparameters import nearest
from posterity.settings.text import plain

ASIDE = "--client was given, so the file's own clients are not looked at"


@dataclass(frozen=True)
class FileRows:
    x: Array
    client: Sequence[str] | None
    notes: tuple[str, ...] = ()


def predict_file(
    folder: Path, file: Path, client: str | None = None, show: str = "validated", trust: bool = False
) -> tuple[str, list[str]]:  # fmt: skip
    result = _finished(folder, trust)
    told = result.setup.sim.federation
    column = result.config.client_column or CLIENT
    asked = read_rows(file, told.preprocessing.columns, column, client)
    owners, notes = _owners(file, asked, client, column, told), list(asked.notes)
    delivery = result.delivered(show)
    why = files.read_json(folder / run_folder.RUN).get("diverged") or result.diverged
    notes += [f"this is no result: {why}"] if why else []
    notes += [delivery.note] if delivery.note else []
    points = dict.fromkeys("received" if who >= told.members else delivery.point for who in sorted(owners))
    notes.append(f"models of round {delivery.round} ({show}), as {' and newcomers as '.join(points)}")
    outputs: list[list[float]] = [[] for _ in owners]
    for who in sorted(set(owners)):
        rows = [i for i, owner in enumerate(owners) if owner == who]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the note is printed once, for all clients
            found = result.predict_proba(who, asked.x[rows], show=show).double().cpu()
        for i, output in zip(rows, as_numbers(found, told.task == "regression"), strict=True):
            outputs[i] = output
    names = [told.names[k] for k in owners]
    if unknown := [name for name, values in zip(names, outputs, strict=True) if np.isnan(values).any()]:
        whose = listed(map(plain, dict.fromkeys(unknown)))
        notes.append(f"{len(unknown)} rows have no prediction: the models of {whose} give nan for them")
    return as_csv(names, outputs, told.class_names or tuple(map(str, range(told.classes)))), notes


def _finished(folder: Path, trust: bool) -> Result:
    if not (folder / run_folder.CONFIG).exists():
        inside = sorted(str(path.parent) for path in folder.glob(f"**/{run_folder.CONFIG}")) if folder.is_dir() else []
        hint = f"; it holds several, give one of them: {listed(inside)}" if inside else ""
        raise ValueError(f"{folder} holds no run (there is no {run_folder.CONFIG} in it){hint}")
    if not run_folder.is_finished(folder):
        raise ValueError(f"the run in {folder} is not finished: 'posterity resume {folder}' takes it to its end")
    return posterity.load(folder, trust=trust)


def read_rows(path: Path, columns: Sequence[str], who: str, client: str | None = None) -> FileRows:
    """The samples of a .csv, .parquet or .npz file, in the order of a run's columns.

    `who` names the column of clients in the training's table; where it is missing, `client` does, unless that is a
    feature. It is not looked at where the one `client` is asked for, whoever's the rows are.
    """
    check_file(path, "a .csv, .npz or .parquet file")
    kind = path.suffix.lower()
    found: Mapping[str, Any]
    words: Callable[[str], Array]
    if kind == ".npz":
        stored = read_npz(path)
        found, columns, x = stored, ("x",), _samples(path, stored, who)
        words = partial(_names, path, stored, len(x))
    elif kind in (".csv", ".parquet"):
        sheet = read_csv(path) if kind == ".csv" else read_parquet(path)
        found, words = sheet.columns, sheet.words
        _check_columns(path, found, columns)
        x = np.stack([sheet.numbers(name) for name in columns], axis=1)
    else:
        raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}; convert it")
    who = CLIENT if who not in found and CLIENT in found and CLIENT not in columns else who
    extra = [name for name in found if name not in columns and name != who]
    notes = (f"{path}: what is no feature is not looked at: {listed(map(plain, extra))}",) * bool(extra)
    if who not in found or client is not None:
        return FileRows(x, None, notes + (ASIDE,) * (who in found))
    return FileRows(x, [str(name) for name in words(who)], notes)


def _check_columns(path: Path, found: Mapping[str, Any], columns: Sequence[str]) -> None:
    if not columns:
        raise DataError(f"{path}: a table, but this run's columns have no names; expected an .npz with an array x")
    if missing := [name for name in columns if name not in found]:
        near = f" ({nearest(missing[0], list(found))})" if len(missing) == 1 else ""
        lacking = listed(map(repr, missing))
        raise DataError(f"{path}: no column {lacking}{near}; expected all {len(columns)} features, by their names")


def _samples(path: Path, found: Mapping[str, Array], who: str) -> Array:
    if "x" not in found:
        raise DataError(f"{path}: arrays {listed(found) or 'none'}; expected x and perhaps {who}; rename them")
    x = found["x"]
    if x.dtype.kind not in "biuf" or x.ndim < 1:
        raise DataError(f"{path}: x holds {x.dtype} in the shape {x.shape}; expected a row of numbers for each sample")
    check_features(tensor_of(x, f"{path}: x"), f"{path}: x")
    return x[:, None] if x.ndim == 1 else x  # as it is when it is trained on


def _names(path: Path, found: Mapping[str, Array], rows: int, who: str) -> Array:
    if found[who].shape != (rows,):
        raise DataError(f"{path}: x has {rows} rows and {who} the shape {found[who].shape}; expected ({rows},)")
    return named_values(path, who, found[who], True)


def _owners(path: Path, asked: FileRows, client: str | None, column: str, told: Federation) -> list[int]:
    if not len(asked.x):
        raise DataError(f"{path}: no rows; expected samples to predict for; fill in the file")
    names = {name: number for number, name in enumerate(told.names)}
    if client is None and asked.client is None:
        if told.clients == 1:
            return [0] * len(asked.x)
        called = " or ".join(dict.fromkeys((repr(column), repr(CLIENT))))
        raise DataError(f"{path}: whose rows are these? Expected a column called {called} that names a client of each "
                        f"row, or --client NAME with one of {listed(told.names)}")  # fmt: skip
    given = [client] * len(asked.x) if client is not None else list(asked.client or ())
    for row, name in enumerate(given):
        if name not in names:
            where = "--client" if client is not None else f"{path}, row {row}"
            raise DataError(f"{where}: there is no client {name!r} in this run; {nearest(name, told.names)}")
    return [names[name] for name in given]


def as_numbers(found: Tensor, regression: bool) -> list[list[float]]:
    """Probabilities as they are; of a mean and a variance the mean and the standard deviation."""
    answers: list[list[float]] = (torch.stack((found[:, 0], found[:, 1].sqrt()), 1) if regression else found).tolist()
    return answers


def as_csv(owners: Sequence[str], outputs: list[list[float]], classes: Sequence[str]) -> str:
    """A line for each row: whose it is, and what was predicted; without classes it is a regression."""
    text, regression = io.StringIO(), not classes
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "client", *(("mean", "sd") if regression else ("predicted", *(f"p_{c}" for c in classes)))])
    for row, (owner, values) in enumerate(zip(owners, outputs, strict=True)):
        best = [] if regression else ["" if np.isnan(values).any() else classes[int(np.argmax(values))]]
        writer.writerow([row, owner, *best, *(f"{value:.6g}" for value in values)])
    return text.getvalue()


def check_place(out: Path, file: Path) -> None:
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"--out {out} is the file that is read, and would be replaced; give another")


def write_predictions(path: Path, text: str) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path}: expected a file in a folder that exists; give another --out")
    files.write_atomic(path, text.encode())
