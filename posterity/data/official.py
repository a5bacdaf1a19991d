"""Where a dataset comes from, in which forms its files are read, and which of them are there.

A file of `data/datasets` declares a `DataSource`. Its forms stand in the order in which they are looked for: one that
holds the complete dataset comes before one that holds a part of it, and of two complete ones the smaller comes first.
"""

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


@dataclass(frozen=True)
class Found:
    """A form of which every file is there."""

    form: Form
    paths: tuple[Path, ...]


def find_form(source: DataSource, data_dir: Path | None) -> Found | None:
    """The first form of which every file is there.

    Any form in the data folder is before any of the system's: who put files there means them.
    """
    for places in (replace(source, system=None).places(data_dir), source.places(None)):
        for form, place in product(source.forms, places):
            paths = tuple(place / file.name for file in form.files)
            if all(os.path.exists(path) for path in paths):
                return Found(form, paths)
    return None


def locate_form(name: str, source: DataSource, data_dir: Path | None) -> Found:
    """The first form of which every file is there, or a sentence about what is missing."""
    if found := find_form(source, data_dir):
        return found
    places = source.places(data_dir)
    files = dict.fromkeys(file.name for form in source.forms for file in form.files)
    there = [str(place / file) for file, place in product(files, places) if os.path.exists(place / file)]
    looked = f"looked in {', '.join(map(str, places))}" if places else "no data folder given"
    given = f"files found: {', '.join(there) or 'none'} ({looked})"
    published = [form for form in source.forms if form.key not in OURS] or source.forms
    expected = ", or ".join(" and ".join(file.name for file in form.files) for form in published)
    advice = f"`posterity datasets {name}` says where the files come from{source.advice and '; '}{source.advice}"
    where = f"put them there, or set {VARIABLE} or pass data_dir (--data-dir)"
    raise DataError(f"dataset {name}: {given}; expected a folder with {expected}; {where}; {advice}")
