"""A site's own samples: from a file, or its share of a dataset that is divided as in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from posterity.data.assemble import assemble
from posterity.data.federation import Federation, FederationSpec
from posterity.data.tables import Columns
from posterity.data.user_files import read_user_files
from posterity.experiment.resume import fingerprint_of
from posterity.experiment.setup import DTYPES, load_federation
from posterity.flower.agreement import SampleSpec
from posterity.flower.codec import fingerprint
from posterity.settings.config import Config

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Samples:
    name: str  # the client's
    kind: SampleSpec
    x: Tensor
    y: Tensor
    rows: dict[str, Tensor]  # train, validation, test
    newcomer: bool = False  # a client that is only scored
    private: bool = False  # its classes are those of its own file
    fingerprint: str = ""  # of its own file's values and of which row is for what

    def named(self, least: int) -> tuple[str, ...]:
        """The classes that this client names: of its own ones those with so many samples."""
        return tuple(name for name in self.kind.classes if not self.private or self.size_of(name) >= least)

    def size_of(self, name: str) -> int:
        return int((self.y == self.kind.classes.index(name)).sum())

    def as_kind(self, kind: SampleSpec, least: int = 1) -> Samples:
        """With columns in everybody's order and labels numbered as everybody does.

        Samples of a class that this client did not name, and nobody else did, are left out.
        """
        mine = self
        if self.kind.columns != kind.columns:
            mine = replace(self, x=self.x[:, kind.order_of(self.kind.columns, f"client {self.name!r}")])
        if replace(self.kind, classes=kind.classes, columns=kind.columns) != kind:
            raise ValueError(f"the server's samples are {kind.facts()!r:.300}, not {self.kind.facts()!r:.300}")
        if self.kind.classes == kind.classes:
            return replace(mine, kind=kind)
        strange = [name for name in self.named(least) if name not in kind.classes]
        if strange:
            raise ValueError(f"{self.name!r} has the class {strange[0]!r}, which nobody had at first: leave it out")
        place = torch.tensor([kind.classes.index(n) if n in kind.classes else -1 for n in self.kind.classes])
        y = place[self.y]
        return replace(mine, kind=kind, y=y, rows={part: rows[y[rows] >= 0] for part, rows in self.rows.items()})


def samples_of(federation: Federation, number: int, dtype: torch.dtype, name: str = "") -> Samples:
    """One client's samples of a federation, without those of others."""
    parts = [getattr(federation, part).client(number) for part in PARTS]
    mine, sizes = torch.cat(parts), [len(part) for part in parts]
    rows = dict(zip(PARTS, torch.split(torch.arange(len(mine)), sizes), strict=True))
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (federation.x[mine], federation.y[mine]))
    classes = federation.class_names or tuple(map(str, range(federation.classes)))
    integers, columns = not federation.x.is_floating_point(), federation.preprocessing.columns
    kind = SampleSpec(federation.shape, federation.task, classes, integers, columns)
    return Samples(name or federation.names[number], kind, x, y, rows, number >= federation.members)


def read_samples(config: Config, name: str, path: Path | None = None) -> Samples:
    if path is not None:
        return read_site_file(config, name, path)[1]
    federation = load_federation(config)
    return samples_of(federation, find_client(federation.names, name), DTYPES[config.dtype])


def read_site_file(config: Config, name: str, path: Path) -> tuple[Federation, Samples]:
    """A client's own file: as a federation of one, which knows its scales, and as samples."""
    federation = read_file(config, path)
    mine = samples_of(federation, 0, DTYPES[config.dtype], name)
    values = fingerprint([fingerprint_of(federation), mine.kind.facts()])
    return federation, replace(mine, private=True, fingerprint=values)


def read_public(config: Config) -> Tensor | None:
    """The rows without labels that the server may use, if the configuration gives it any."""
    federation = load_federation(config) if str(config.public) not in ("0", "0%") else None
    if federation is None or federation.public is None:
        return None
    rows = federation.x[federation.public]
    return rows.to(DTYPES[config.dtype]) if rows.is_floating_point() else rows


def find_client(names: Sequence[str], name: str) -> int:
    if name in names:
        return list(names).index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    known = ", ".join(map(repr, names[:3]))
    raise ValueError(f"there is no client {name!r} in this federation of {len(names)}: give a number, or {known} …")


def read_file(config: Config, path: Path) -> Federation:
    """A federation of one client; others may have the classes that it lacks."""
    asked = {f.name: getattr(config, f.name) for f in fields(FederationSpec) if f.name not in ("seed", "options")}
    one = {"dataset": str(path), "clients": 1, "partition": "iid", "newcomers": "0", "public": "0"}
    spec = FederationSpec(**{**asked, **one}, seed=config.seed, options=config.settings("data"))
    columns = Columns(spec.target, spec.client_column, spec.group)
    return assemble(read_user_files(path, columns, spec.options, least=1), spec)
