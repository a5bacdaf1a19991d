"""Where a dataset comes from, in which forms its files are read, and which of them are there.

A file of `data/datasets` declares a `DataSource`. Its forms stand in the order in which they are looked for: one that
holds the complete dataset comes before one that holds a part of it, and of two complete ones the smaller comes first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from posterity.data.pool import DataError

VARIABLE = "POSTERITY_DATA"
OURS = ("compact", "halves", "half")  # keys of files that our experiments used and that nobody publishes


@dataclass(frozen=True)
class File:
    """One file, or folder, of a distribution."""

    name: str  # as it is published
    size: int = 0  # bytes as published, 0 where it is not known
    checksum: str = ""  # "md5 …" or "sha256 …" as published, nothing where it is not known


@dataclass(frozen=True)
class Form:
    """One way in which a dataset is distributed: all of its files are needed."""

    key: str  # by which the dataset's file knows what it is to read
    title: str
    files: tuple[File, ...]


def form(key: str, title: str, *files: File | str) -> Form:
    """A form of these files; a name stands for a file of unknown size."""
    return Form(key, title, tuple(File(file) if isinstance(file, str) else file for file in files))


@dataclass(frozen=True)
class DataSource:
    """The official place of a dataset, and the forms that are read."""

    url: str
    folders: tuple[str, ...]  # below the data folder, in the order in which they are searched; "" is that folder itself
    forms: tuple[Form, ...]
    system: Path | None = None  # where a package of the operating system puts the files
    advice: str = ""  # a further way to the files

    def places(self, data_dir: Path | None) -> list[Path]:
        """The folders in which files are looked for."""
        below = [data_dir / name for name in self.folders] if data_dir else []
        return [*below, *([self.system] if self.system else [])]

    def among(self, keys: tuple[str, ...]) -> list[Form]:
        """The forms with these keys; all without any."""
        return [form for form in self.forms if not keys or form.key in keys]


@dataclass(frozen=True)
class Found:
    """A form of which every file is there."""

    form: Form
    paths: tuple[Path, ...]


def find_form(source: DataSource, data_dir: Path | None, among: tuple[str, ...] = ()) -> Found | None:
    """The first form of which every file is there; with `among`, of these forms only.

    Any form in the data folder is before any of the system's: who put files there means them.
    """
    for places in (replace(source, system=None).places(data_dir), source.places(None)):
        for form, place in product(source.among(among), places):
            paths = tuple(place / file.name for file in form.files)
            if all(os.path.exists(path) for path in paths):
                return Found(form, paths)
    return None


def locate_form(name: str, source: DataSource, data_dir: Path | None, among: tuple[str, ...] = ()) -> Found:
    """The first form of which every file is there, or a sentence about what is missing."""
    if found := find_form(source, data_dir, among):
        return found
    forms = source.among(among)
    published = [form for form in forms if form.key not in OURS] or forms
    expected = ", or ".join(" and ".join(file.name for file in form.files) for form in published)
    where = f"`posterity datasets {name}` says where the files come from"
    point = f"set {VARIABLE} or pass data_dir (--data-dir)"
    if data_dir is None and source.system is None:
        raise DataError(f"dataset {name}: no data folder given; expected one that holds {expected}; {point}; {where}")
    looked = ", ".join(str(place) for place in source.places(data_dir))
    gone = data_dir is not None and not os.path.isdir(data_dir)
    given = f"the data folder {data_dir} does not exist" if gone else _incomplete(source, forms, data_dir)
    raise DataError(
        f"dataset {name}: {given or 'none of its files is there'} (looked in {looked}); expected {expected}; put the "
        f"files into one of these folders, or {point}; {where}{source.advice and '; '}{source.advice}"
    )


def _incomplete(source: DataSource, forms: list[Form], data_dir: Path | None) -> str:
    """What is missing of a form that is there in part."""
    for form, place in product(forms, source.places(data_dir)):
        missing = [file.name for file in form.files if not os.path.exists(place / file.name)]
        if 0 < len(missing) < len(form.files):
            return f"{place} has {len(form.files) - len(missing)} files, and not {', '.join(missing)}"
    return ""
