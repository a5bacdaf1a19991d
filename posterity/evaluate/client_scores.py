"""Every client's numbers of a scored round, where there are too many clients for a line of text.

Up to `LISTED` clients a line of `metrics.jsonl` carries the numbers. Beyond, and where only a sample is scored, they
are columns of float32: in memory for a run without a folder, else in `clients/round-N.safetensors`, and read when
somebody asks, if its checksum is the one that the line holds. To a reader all forms are the same: metric → one value
per client of the group, nan for who was not scored.
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

from posterity.evaluate.infinite import restored

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


__all__ = ["LISTED", "ClientColumns", "StoredColumns", "StoredLine", "key_of", "stored", "write_columns"]
