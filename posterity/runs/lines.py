"""Every client's numbers of a scored round, where there are too many clients for a line of text.

Up to `LISTED` clients a line of `metrics.jsonl` carries the numbers. Beyond, and where only a sample is scored, they
are columns of float32: in memory for a run without a folder, else in `clients/round-N.safetensors`, and read when
somebody asks, if its checksum is the one that the line holds. To a reader all forms are the same: metric → one value
per client of the group, nan for who was not scored.

What null stands for in a line of scores: JSON knows neither infinity nor NaN, and both are written as null.

A NLL or a squared error is infinite where a model was certain and wrong, or its prediction was no number, and undefined
only where there are no rows (`scores.py`). So a null with rows behind it was infinite, and one without was undefined.
The other metrics of the package are never infinite. A metric of somebody's own may be, and undefined as well, so a line
notes where it was infinite. Whoever reads lines puts back here what was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

LISTED = 2000  # clients up to which a line carries every client's numbers
HELD = 100  # clients up to which a run holds these numbers in memory although they are in its folder
FOLDER = "clients"
NAME = re.compile(rf"{FOLDER}/round-\d+\.safetensors")
Line = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ClientColumns(Mapping[str, list[Any]]):
    """Numbers of some clients of a group of `size`."""

    size: int
    clients: Tensor  # (scored,) their places in the group
    columns: Mapping[str, Tensor]  # metric → (scored,)

    def __getitem__(self, name: str) -> list[Any]:
        values = torch.full((self.size,), 0.0 if name == "n" else math.nan, dtype=torch.float64)
        values[self.clients.long()] = self.columns[name].double()
        return [int(v) for v in values] if name == "n" else values.tolist()

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class StoredColumns(Mapping[str, list[Any]]):
    """`ClientColumns` in a file, under a name."""

    path: Path
    key: str
    checksum: str | None  # as the line says it; None: from before lines did

    def _columns(self) -> ClientColumns:
        if self.path.is_symlink() or not self.path.is_file():
            raise ValueError(f"{self.path} is missing or no ordinary file: put the run's own file back")
        data = self.path.read_bytes()
        if self.checksum not in (None, hashlib.sha256(data).hexdigest()):
            raise ValueError(f"{self.path} is not as it was written: put back a copy that is whole")
        prefix = f"{self.key}/"
        found = {n.removeprefix(prefix): leaf for n, leaf in load(data).items() if n.startswith(prefix)}
        return ClientColumns(int(found.pop("size")), found.pop("clients"), found)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns())

    def __len__(self) -> int:
        return len(self._columns())


@dataclass(frozen=True, eq=False)
class StoredLine(Mapping[str, list[Any]]):
    """The numbers of a line of `metrics.jsonl`."""

    path: Path
    round: int
    key: str

    def _found(self) -> dict[str, list[Any]]:
        wanted, last = f'"round": {self.round},', dict[str, list[Any]]()
        with self.path.open(encoding="utf-8") as file:
            for text in file:
                if wanted in text[:200] and (line := json.loads(text))["kind"] == "score" and key_of(line) == self.key:
                    last = restored(line)["clients"]  # of a round that was repeated, the later one
        return last

    def __getitem__(self, name: str) -> list[Any]:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


def key_of(line: Mapping[str, Any]) -> str:
    """What a line of scores is about, within its round."""
    return f"{line['group']}/{line['point']}/{line['epochs']}/{line['part']}"


def write_columns(folder: Path, lines: Sequence[Line]) -> list[Line]:
    """The lines as they are written to `metrics.jsonl`; columns go to a file of their own, whole or not at all."""
    many = [line for line in lines if isinstance(line.get("clients"), ClientColumns)]
    if not many:
        return list(lines)
    place = f"{FOLDER}/round-{many[0]['round']:06d}.safetensors"
    named: dict[str, Tensor] = {}
    for line in many:
        each: ClientColumns = line["clients"]
        columns = {**each.columns, "clients": each.clients, "size": torch.tensor(each.size)}
        named |= {f"{key_of(line)}/{n}": t.detach().cpu().contiguous().clone() for n, t in columns.items()}
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(path.name + ".part")
    data = save(named)
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    told = {"clients": {}, "clients_file": place, "clients_checksum": hashlib.sha256(data).hexdigest()}
    return [{**line, **told} if isinstance(line.get("clients"), ClientColumns) else line for line in lines]


def stored(line: Mapping[str, Any], folder: Path) -> Line:
    """A line of a run whose folder holds every client's numbers: they are read from there when they are asked for."""
    clients, place = line.get("clients"), line.get("clients_file")
    if place and NAME.fullmatch(str(place)):  # nothing outside of the folder
        return {**line, "clients": StoredColumns(folder / place, key_of(line), line.get("clients_checksum"))}
    if isinstance(clients, dict) and len(clients.get("n") or ()) > HELD:
        return {**line, "clients": StoredLine(folder / "metrics.jsonl", line["round"], key_of(line))}
    return dict(line)


UNBOUNDED = ("mse", "nll")
NOTE = "infinite"  # of a line: {"metrics": {name: {rule: sign}}, "clients": {name: {client: sign}}}


def noted(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with a note of the infinite values that nobody could tell from undefined ones when they are null."""
    metrics, clients = line.get("metrics"), line.get("clients")
    if line.get("kind") != "score" or not isinstance(metrics, dict):
        return dict(line)
    each = clients if isinstance(clients, dict) else {}  # columns in a file know infinity
    listed = {name: {str(k): v for k, v in enumerate(values)} for name, values in each.items() if name != "n"}
    note = {"metrics": _signs(metrics), "clients": _signs(listed)}
    return {**line, **({NOTE: note} if any(note.values()) else {})}


def _signs(by_name: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """1 or -1 for every infinite value of a metric that is not of the package."""
    found = {name: {place: 1 if v > 0 else -1 for place, v in values.items() if isinstance(v, float) and math.isinf(v)}
             for name, values in by_name.items() if name not in UNBOUNDED}  # fmt: skip
    return {name: signs for name, signs in found.items() if signs}


def restored(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` with the infinite values that it was written from."""
    return _known(_as_noted(line))


def _as_noted(line: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the line has a note of; a packed one may have lost its clients."""
    read = {name: value for name, value in line.items() if name != NOTE}
    note = line.get(NOTE)
    if not isinstance(note, dict):
        return read
    metrics, clients = dict(read.get("metrics") or {}), read.get("clients")
    for name, signs in note.get("metrics", {}).items():
        metrics[name] = {**metrics.get(name, {}), **{rule: sign * math.inf for rule, sign in signs.items()}}
    listed = dict(clients) if isinstance(clients, dict) else {}
    for name, signs in note.get("clients", {}).items():
        if name in listed:
            listed[name] = [signs[str(k)] * math.inf if str(k) in signs else v for k, v in enumerate(listed[name])]
    return {**read, "metrics": metrics, **({"clients": listed} if isinstance(clients, dict) else {})}


def _known(line: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the rows behind a null."""
    metrics, clients = line.get("metrics"), line.get("clients")
    if line.get("kind") != "score" or not isinstance(metrics, dict):
        return dict(line)
    again = {name: _summary(metrics[name]) for name in UNBOUNDED if name in metrics}
    known = _known_clients(clients) if isinstance(clients, dict) else clients
    return {**line, "metrics": {**metrics, **again}, **({"clients": known} if "clients" in line else {})}


def _known_clients(clients: Mapping[str, Any]) -> dict[str, Any]:
    """The same for every client's numbers."""
    rows = clients.get("n") or ()
    return {**clients, **{name: _values(clients[name], rows) for name in UNBOUNDED if name in clients}}


def _summary(by_rule: Any) -> Any:
    """One metric by rule; without an infinite value of all rows together no client has one."""
    if not isinstance(by_rule, dict) or by_rule.get("pooled", 0.0) is not None or not by_rule.get("clients"):
        return by_rule
    return {rule: math.inf if value is None else value for rule, value in by_rule.items()}


def _values(values: Sequence[Any], rows: Sequence[Any]) -> Sequence[Any]:
    if None not in values or len(values) != len(rows):
        return values
    return [math.inf if value is None and n else value for value, n in zip(values, rows, strict=True)]
